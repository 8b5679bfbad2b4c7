"""After an edit exactly what depends on it is compiled, and `explain` says why."""

import os
import shutil
from pathlib import Path

import pytest

import tilusbuild
from support import scale
from support.project import NewProject, Project


@pytest.fixture
def three(new_project: NewProject):
    """Three scripts, of which `first` includes shared.h; built."""
    names = ("first", "second", "third")
    files = {f"kernels/{name}.cu.j2": scale.TEMPLATE for name in names}
    files["kernels/first.cu.j2"] = '#include "shared.h"\n' + scale.TEMPLATE
    files["include/shared.h"] = "#define SHARED 1\n"
    scripts = [scale.script(name, schedules=1) for name in names]
    project = new_project(scale.manifest(*scripts, build='include-dirs = ["include"]'), files)
    assert project.compiled() == 3
    return project


def test_a_comment_in_a_template(project: Project):
    project.build()
    project.edit("kernels/scale.cu.j2", "{# y = a * x #}", "{# y = a x, element by element #}")
    assert project.compiled() == 0
    project.edit("kernels/scale.cu.j2", "{# y", "{# more\n   lines,\n   and more\n   of y")
    assert project.compiled() == 0


def test_what_is_told_of_a_failure_follows_the_template(project: Project):
    """A template that grew a comment renders the same, and its messages name the new line."""
    project.edit("kernels/scale.cu.j2", "y[i] = a", "y[i] = {{ unroll }} * unknown")
    first = project.build(status=1)
    assert "kernels/scale.cu.j2:5:" in first["failures"][0]["message"]
    project.edit("kernels/scale.cu.j2", "{# y = a * x #}", "{# y =\n   a * x #}")
    second = project.build(status=1)
    assert second["attempts"] == 0
    assert "kernels/scale.cu.j2:6:" in second["failures"][0]["message"]


def test_a_header_that_one_of_three_scripts_includes(three):
    three.write("include/shared.h", "#define SHARED 2\n")
    wrap_oserror = three.run("explain", "--json").events
    assert [(e["program"], e["state"]) for e in wrap_oserror] == [
        ("first/0 cpu", "missing"),
        ("second/0 cpu", "built"),
        ("third/0 cpu", "built"),
    ]
    assert "header include/shared.h changed" in wrap_oserror[0]["reasons"]
    assert "shared.h changed" in three.run("explain", "first").out
    started = [e for e in three.run("build", "--json").events if e["event"] == "started"]
    assert [event["script"] for event in started] == ["first"]
    three.write("include/shared.h", "#define SHARED 1\n")
    assert three.compiled() == 0


def test_a_header_that_comes_before_another_of_its_name(three):
    (three.directory / "front").mkdir()
    three.edit("tilus.toml", '["include"]', '["front", "include"]')
    three.build()
    assert three.compiled() == 0
    three.write("front/shared.h", "#define SHARED 1 // in front\n")
    assert three.compiled() == 1
    three.write("kernels/shared.h", "#define SHARED 1 // beside the template\n")
    assert three.compiled() == 1
    os.remove(three.directory / "kernels/shared.h")
    assert three.compiled() == 0


def test_a_header_of_many_that_was_overwritten_in_the_cache_reaches_no_compile(three):
    """Neither a program of the same headers, nor one of others that share most of the files."""
    many = range(80)
    for number in many:
        three.write(f"include/many/{number}.h", f"#define MANY_{number} {number}\n")
    includes = "".join(f'#include "many/{number}.h"\n' for number in many)
    three.edit("kernels/first.cu.j2", "constexpr", f"{includes}constexpr")
    three.edit("kernels/first.cu.j2", "a * x[i]", "a * x[i] + MANY_7 + MANY_79")
    assert three.compiled() == 1
    (laid_out,) = three.cache.glob("include/*/project/include/many/7.h")

    def overwrite() -> None:
        with open(laid_out, "r+b") as file:
            file.write(laid_out.read_bytes().replace(b" 7", b" 8"))

    overwrite()
    three.edit("kernels/first.cu.j2", "MANY_79", "MANY_78")
    assert three.compiled() == 1
    assert laid_out.read_text() == "#define MANY_7 7\n"
    overwrite()
    three.write("include/many/78.h", "#define MANY_78 0\n")
    assert three.compiled() == 1
    texts = [path.read_text() for path in three.cache.glob("include/*/project/include/many/7.h")]
    assert sorted(texts) == ["#define MANY_7 7\n", "#define MANY_7 8\n"]

    clean = three.copy(three.directory.parent / "clean", cache=False)
    clean.build()
    assert clean.libraries.items() <= three.libraries.items()
    assert "many/7.h: was modified" in three.run("cache", "verify", status=1).out


COMPUTED = """\
#define STR(x) #x
#define XSTR(x) STR(x)
#define NAME sysexits
#if __has_include(XSTR(absent.h))
#include XSTR(absent.h)
#endif
#include XSTR(NAME.h)
static_assert(OURS, "");
"""


def test_a_header_whose_name_macros_make_and_the_system_has_too(three):
    three.edit("kernels/first.cu.j2", '#include "shared.h"\n', COMPUTED)
    assert three.build(status=1)["attempts"] == 1  # the system's is another
    three.write("include/sysexits.h", "#define OURS 1\n")
    assert three.compiled() == 1
    three.write("include/sysexits.h", "#define OURS 2\n")
    assert three.compiled() == 1
    three.write("include/absent.h", "#define THERE\n")
    assert three.compiled() == 1
    three.write("include/other.h", "")  # the name may be any
    assert three.compiled() == 1
    three.edit("kernels/first.cu.j2", "NAME sysexits", "NAME given")
    three.edit("tilus.toml", "[build]\n", '[build]\ndefines = { given = "mine" }\n')
    assert three.build(status=1)["attempts"] >= 1
    three.write("include/mine.h", "#define OURS 3\n")
    assert three.compiled() == 1


def test_a_header_is_seen_by_the_compiler_or_not_at_all(three):
    """A header in a hidden directory of which macros make the name is not found, and the message
    says what to do. It is not recorded."""
    name = ".own/long unsigned int.h"
    three.write(f"include/{name}", "#define HIDDEN 1\n")
    computed = "#define S(x) #x\n#define X(x) S(x)\n#include X(.own/__SIZE_TYPE__.h)\n"
    three.edit("kernels/second.cu.j2", "constexpr", computed + "constexpr")
    failed = three.build(status=1)
    (group,) = failed["failures"]
    assert name in group["message"]
    assert "headers" in group["message"]
    assert (failed["failed"], failed["crashed"]) == (0, 1)
    three.edit(
        "tilus.toml", "[script.second.space]", f'headers = ["{name}"]\n[script.second.space]'
    )
    assert three.compiled() == 1
    three.write(f"include/{name}", "#define HIDDEN 2\n")
    assert three.compiled() == 1


def test_a_flag_and_its_revert(project: Project):
    project.build()
    project.edit("tilus.toml", "[build]", "[build]\ndefines = { FAST = 1 }")
    (first, _) = project.run("explain", "--json").events
    assert any("-DFAST=1" in reason for reason in first["reasons"])
    assert project.compiled() == 2
    project.edit("tilus.toml", "\ndefines = { FAST = 1 }", "")
    assert project.compiled() == 0
    assert len(project.programs) == 4


def test_an_edit_that_keeps_size_and_time(project: Project):
    template = project.directory / "kernels/scale.cu.j2"
    project.build()
    assert project.compiled() == 0
    before = template.stat()
    project.edit("kernels/scale.cu.j2", "a * x[i]", "x[i] * a")
    os.utime(template, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert template.stat().st_size == before.st_size
    assert project.compiled() == 2


def test_a_build_of_a_script_leaves_nothing_that_its_space_has_lost(project: Project):
    """A lower level leaves the programs of a higher one, as long as no file has changed."""

    def count_loaded(*words: str) -> int:
        project.build(*words)
        return len(tilusbuild.load("scale", where=project.cache).programs)

    assert count_loaded() == 2
    assert count_loaded("scale", "--level", "0") == 2
    project.edit("tilus.toml", "range = [1, 2]", "range = [2, 2]")
    assert count_loaded("scale") == 1
    project.edit("tilus.toml", "range = [2, 2]", "range = [1, 2]")
    assert count_loaded("-t", "cpu") == 2
    project.edit("tilus.toml", "range = [1, 2]", "range = [1, 1]")
    assert count_loaded("scale", "--level", "0") == 1


def test_another_compiler_and_its_revert(project: Project, tmp_path: Path):
    project.build()
    assert project.compiled() == 0
    other = tmp_path / "bin/g++"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    other.chmod(0o755)
    project.environment["PATH"] = f"{other.parent}:{os.environ['PATH']}"
    (first, _) = project.run("explain", "--json").events
    assert [reason for reason in first["reasons"] if reason.startswith("tool g++ changed")]
    assert project.compiled() == 2
    del project.environment["PATH"]
    assert project.compiled() == 0


def test_what_is_not_an_input(project: Project):
    """Times, the environment, the number of jobs, a description, facts: nothing is compiled."""
    project.build()
    for path in project.directory.rglob("*"):
        if ".cache" not in path.parts:
            os.utime(path, (1, 1))
    project.edit("tilus.toml", 'arch = "cpu"', 'arch = "cpu"\nfacts = { cores = 3 }')
    project.edit("tilus.toml", "template", 'description = "y = a x"\ntemplate')
    project.environment |= {"CPATH": "/nowhere", "CXXFLAGS": "-O0", "LANG": "de_DE.UTF-8"}
    assert project.compiled("-j", "1") == 0
