"""The closure against the compiler: a copy of the closure alone preprocesses to the same text."""

import os
import re
import subprocess

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.closures import closure, copy_to
from tilusbuild.render.closure import Outside, inside

NAMES = ["a.h", "b.h", "sub/a.h", "sub/c.h", "deep/er/d.h", "link/a.h", "link/c.h"]
PLACES = ["project/kernels", "project/include", "pkg/src/inc", "project"]
OUTSIDE = ["toolkit", "system"]
SPELLED = [
    *NAMES, "../a.h", "../include/a.h", "../include/sub/c.h", "sub/../b.h", "./a.h", "deep/../a.h",
    "er/d.h", "../../src/inc/b.h", "link/../b.h", "gone.h", "../../outside.h", "c.h",
]  # fmt: skip
QUOTED = [
    '#include "NAME"', '#  include /* c */ "NAME" // d', '%:include "NAME"', '#inc\\\nlude "NAME"',
    '#define COMPUTED "NAME"\n#include COMPUTED\n#undef COMPUTED', 'has NAME', '#import "NAME"',
    '#ifdef GUARD\n#include "NAME"\n#endif\n#define GUARD',
]  # fmt: skip
ANGLED = [
    "#include <NAME>", "/* c */#include<NAME>", "#define C(x) <x>\n#include C(NAME)\n#undef C",
    "#ifdef GUARD\n#else\n#include <NAME>\n#endif", "has NAME",
]  # fmt: skip
UNGUARDED = [
    '#include "NAME"', "#include <NAME>", '// #include "NAME"', '/*\n#include "NAME"\n*/',
    'R"(\n#include "NAME"\n)"', '"/*"\n#include "NAME"\n"*/"', "1'000 /*\n#include <NAME>\n'*/",
    "#if __has_include_next(<NAME>)\n#include_next <NAME>\n#endif",
]  # fmt: skip
GUARDED = [f'#if __has_include("NAME")\n{form}\n#endif' for form in QUOTED] + [
    f"#if __has_include(<NAME>)\n{form}\n#endif" for form in ANGLED
]

include = st.builds(
    lambda form, name: form.replace("NAME", name),
    # Mostly guarded: a header that is missing ends the compile, with little to compare.
    st.sampled_from(GUARDED * 8 + UNGUARDED),
    st.sampled_from(SPELLED),
)
body = st.lists(include, max_size=4).map("\n".join)
trees = st.dictionaries(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(NAMES)), body, min_size=4, max_size=24
)


def write_tree(directory, tree, places=PLACES):
    """Headers that are included once each, so that cycles end, and that leave their name behind."""
    for place in places:
        os.makedirs(directory / place / "deep/er", exist_ok=True)
        os.symlink("deep/er", directory / place / "link")
    for number, ((place, name), text) in enumerate(tree.items()):
        path = directory / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"#ifndef H{number}\n#define H{number}\n{text}\nin {place} {name}\n#endif\n"
        )
    (directory / "outside.h").write_text("outside\n")


def search_path(directory, outside=None):
    return ["-iquote", f"{directory}/project/kernels", f"-I{directory}/project/include",
            f"-I{directory}/pkg/src/inc",
            *(f"-isystem{outside}/{name}" for name in OUTSIDE if outside)]  # fmt: skip


def preprocess(directory, source, *options, outside=None):
    """Exit status and text of `g++ -E -P`, or the dependencies with -M."""
    where = search_path(directory, outside)
    command = ["g++", "-std=c++20", "-E", "-P", *options, *where, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tree=trees, source=st.lists(include, min_size=1, max_size=5).map("\n".join))
def test_a_compile_against_the_copy_sees_the_same_text(tmp_path_factory, tree, source):
    directory = tmp_path_factory.mktemp("tree")
    write_tree(directory, tree)
    (directory / "module").mkdir()
    path = directory / "module" / "source.cu.cpp"
    path.write_text(source + "\n")
    roots = [
        inside("project", str(directory / "project"), "kernels", quoted_only=True),
        inside("project", str(directory / "project"), "include"),
        inside("pkg", str(directory / "pkg"), "src/inc"),
    ]
    found = closure(source + "\n", roots)
    if any("leads out" in n.message or "symbolic link" in n.message for n in found.notes):
        # The copy has no such place; the note says what to do.
        return
    status, text = preprocess(directory, path)
    copy_to(directory / "copy", found)
    assert preprocess(directory / "copy", path) == (status, text)
    if status == 0:
        _, dependencies = preprocess(directory, path, "-M")
        read = {
            os.path.realpath(p)
            for p in re.findall(rf"{re.escape(str(directory))}/\S+", dependencies)
        }
        known = {os.path.realpath(h.path) for h in found.headers if h.path}
        assert read - {os.path.realpath(path)} <= known


outer_trees = st.dictionaries(
    st.tuples(st.sampled_from([*PLACES[1:3], *OUTSIDE, *OUTSIDE]), st.sampled_from(NAMES)),
    st.lists(include.filter(lambda text: ".." not in text), max_size=4).map("\n".join),
    min_size=6,
    max_size=24,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tree=outer_trees, source=st.lists(include, min_size=1, max_size=5).map("\n".join))
def test_headers_outside_see_the_copy_as_they_see_the_project(tmp_path_factory, tree, source):
    """What a toolkit's header includes is the project's where the project has it, in every copy."""
    directory = tmp_path_factory.mktemp("outer")
    shadow = dict.fromkeys([("project/include", "shadow.h"), ("toolkit", "shadow.h")], "")
    write_tree(directory, tree | shadow, [*PLACES, *OUTSIDE])
    path = directory / "source.cu.cpp"
    path.write_text(source + "\n")
    roots = [
        inside("project", str(directory / "project"), "kernels", quoted_only=True),
        inside("project", str(directory / "project"), "include"),
        inside("pkg", str(directory / "pkg"), "src/inc"),
    ]
    outside = Outside(tuple(str(directory / name) for name in OUTSIDE))
    found = closure(source + "\n", roots, outside=outside)
    if any("leads out" in n.message or "symbolic link" in n.message for n in found.notes):
        return
    copy_to(directory / "copy", found)
    expected = preprocess(directory, path, outside=directory)
    assert preprocess(directory / "copy", path, outside=directory) == expected
