"""The headers that a source can reach, and the copy that a compile sees instead of them."""

import os
import shutil

import pytest

from support.closures import closure, copy_to
from tilusbuild.errors import InputError
from tilusbuild.render import closure as closures
from tilusbuild.render.closure import Outside, make_root
from tilusbuild.render.headers import Headers
from tilusbuild.render.scans import ScanMemory
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.patterns import PatternTooWideError


@pytest.fixture
def roots(project):
    """The template's directory, for quotes only, then `include`, then a package's headers."""
    directory = str(project.directory)
    for name in ("project/kernels", "project/include", "pkg/src/inc"):
        os.makedirs(os.path.join(directory, name))
    return [
        make_root("project", f"{directory}/project", "kernels", quoted_only=True),
        make_root("project", f"{directory}/project", "include"),
        make_root("pkg", f"{directory}/pkg", "src/inc"),
    ]


def names(header_closure):
    return [header.name for header in header_closure.headers]


def test_climbing_within_the_project_keeps_its_place(project, roots, tmp_path):
    project.write({"project/include/common.h": "int common;\n"})
    header_closure = closure('#include "../include/common.h"\n', roots)
    # `kernels` holds no header, yet `kernels/..` must lead somewhere.
    assert names(header_closure) == ["project/include/common.h", "project/kernels/.keep"]
    copy = tmp_path / "copy"
    copy_to(copy, header_closure)
    assert (copy / "project/kernels/../include/common.h").read_text() == "int common;\n"
    assert header_closure.notes == ()


def test_climbing_out_of_the_project_keeps_its_place(project, roots, tmp_path):
    project.write({"outside.h": "", "project/include/a.h": '\n#include "../../outside.h"\n'})
    header_closure = closure("#include <a.h>", roots)
    assert names(header_closure) == ["project/_/include/a.h", "project/outside.h"]
    # The compile searches the directories where they are now.
    assert [root.name for root in header_closure.roots] == [
        "project/_/kernels", "project/_/include", "pkg/_/src/inc",
    ]  # fmt: skip
    copy = tmp_path / "copy"
    copy_to(copy, header_closure)
    assert (copy / "project/_/include/../../outside.h").exists()


def test_no_include_finds_another_tree_beside_its_own(project, roots, tmp_path):
    project.write({"project/include/a.h": "", "pkg/src/inc/b.h": ""})
    asked = (
        "#if __has_include(<../../../pkg/src/inc/a.h>) || __has_include(<../../pkg/src/inc/b.h>)"
    )
    # Beside the project there is pkg, but none is two directories above.
    header_closure = closure(f"#include <b.h>\n{asked}\n#endif\n", roots)
    copy_to(tmp_path / "copy", header_closure)
    assert not (
        tmp_path / "copy" / header_closure.roots[1].name / "../../../pkg/src/inc/a.h"
    ).exists()


def test_an_absolute_include_is_noted(roots):
    (note,) = closure("int a;\n#include </etc/a.h>\n", roots).notes
    assert str(note.location) == "source.cu:2:11"


def test_a_computed_include_takes_all_of_the_include_directories(project, roots):
    project.write(
        {
            "project/include/config.h": "", "project/include/..h": "", "project/include/.x": "",
            "project/include/std/list": "", "project/kernels/beside.h": "",
            "project/kernels/a.cu.j2": "",
            "project/include/.hidden/a.h": "",
            "project/include/cache/CACHEDIR.TAG": "",
            "pkg/src/other.h": "",
        }
    )  # fmt: skip
    header_closure = closure("#include IMPL\n", roots)
    assert names(header_closure) == [
        "project/include/..h", "project/include/config.h", "project/include/std/list",
        "project/kernels/beside.h",
    ]  # fmt: skip
    assert [note.message.split()[2] for note in header_closure.notes] == ["IMPL"]
    assert names(closure("#include <config.h>\n", roots)) == ["project/include/config.h"]


def test_a_computed_include_may_climb_where_a_text_says_so(project, roots):
    project.write({"project/include/a.h": "", "project/other/b.h": "", "project/x.md": ""})
    assert names(closure("#include IMPL\n", roots)) == ["project/include/a.h"]
    header_closure = closure("#include IMPL\n", roots, defines={"IMPL": '"../other/b.h"'})
    assert [name for name in names(header_closure) if "pkg/" not in name] == [
        "project/include/a.h", "project/kernels/.keep", "project/other/b.h",
    ]  # fmt: skip


def test_a_header_beside_a_computed_include_is_taken(project, roots):
    project.write({"project/other/a.h": "#include S(b.h)\n", "project/other/b.h": ""})
    header_closure = closure('#include "../other/a.h"\n', roots)
    assert {"project/other/a.h", "project/other/b.h"} <= {*names(header_closure)}


def test_a_new_header_is_a_part_of_a_computed_include(project, roots):
    source = "#if __has_include(S(N.h))\n#endif\n"
    before = closure(source, roots)
    assert names(before) == []
    assert before.external is None
    assert str(project.directory / "project/include") in before.probed
    project.write({"project/include/list.h": ""})
    assert names(closure(source, roots)) == ["project/include/list.h"]


def test_a_computed_include_of_a_toolkit_takes_nothing(project, roots, toolkit, tmp_path):
    project.write({"project/include/lib/part.h": "", "project/include/other.h": ""})
    (tmp_path / "toolkit/lib/part.h").write_text("#include NAME\n")
    (tmp_path / "toolkit/runtime.h").write_text("#include NAME\n#include <lib/part.h>\n")
    assert names(closure("", roots, outside=toolkit)) == ["project/include/lib/part.h"]


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_BYTES", 3)])
def test_more_than_a_computed_include_may_take_is_an_error(
    project, roots, monkeypatch, limit, value
):
    project.write({"project/include/a.h": "//a", "project/include/b.h": "//b"})
    monkeypatch.setattr(closures, limit, value)
    with pytest.raises(InputError) as raised:
        closure("int x;\n#include IMPL\n", roots)
    message = raised.value.render()
    assert message.startswith("source.cu:2:10: error: which header IMPL names is not known before")
    assert "matches 2 files of 0 MiB" in message
    assert "a smaller directory of include-dirs" in message
    with pytest.raises(PatternTooWideError, match="matches 2 files of 0 MiB"):
        closure("", roots, ["*.h"])


@pytest.mark.parametrize(
    "text",
    [
        'asm(".incbin \\"own.bin\\"\\n");',
        '#define S(x) #x\n__asm__(".section x;\\n"\n".incbin \\"" S(own) ".bin\\";\\n");',
        'asm(".include \\"own.bin\\"");',
    ],
)
def test_files_that_the_assembler_reads_are_in_the_closure(project, roots, text):
    project.write({"project/include/own.bin": ""})
    assert names(closure(text, roots)) == ["project/include/own.bin"]


def test_what_no_include_of_the_project_names_can_be_declared(project, roots):
    project.write({"project/include/impl/a.h": "", "project/include/impl/deep/b.h": ""})
    (note,) = closure("#include STRINGIFY(impl/NAME.h)\n", roots).notes
    assert str(note.location) == "source.cu:1:10"
    assert "headers = [" in str(note.hint)
    for pattern in ("impl/**/*.h", "include/impl/**/*.h"):
        header_closure = closure("", roots, [pattern, "gone/*.h"])
        assert names(header_closure) == [
            "project/include/impl/a.h",
            "project/include/impl/deep/b.h",
        ]
        assert header_closure.unmatched == ("gone/*.h",)


@pytest.mark.parametrize("pattern", ["../*.h", "/etc/*.h"])
def test_declared_headers_are_in_the_directories(roots, pattern):
    assert closure("", roots, [pattern]).unmatched == (pattern,)


def test_a_new_header_of_a_pattern_is_where_a_plan_looks_again(project, roots):
    project.write({"project/include/a/v.h": "", "project/include/empty/other.txt": ""})
    directory = project.directory / "project/include"
    assert {str(directory), str(directory / "a"), str(directory / "empty")} <= {
        *closure("", roots, ["*/v.h"]).probed
    }


@pytest.fixture
def link(project):
    """`linked` of the project's headers leads elsewhere; both have a `b.h` above."""
    project.write({"project/include/b.h": "", "elsewhere/deep/x.h": "", "elsewhere/b.h": "//b"})
    os.symlink(project.directory / "elsewhere/deep", project.directory / "project/include/linked")


def test_climbing_follows_links(project, roots, link):
    (header,) = [h for h in closure('#include "linked/../b.h"\n', roots).headers if h.path]
    assert header.name == "project/include/b.h"
    assert header.path == str(project.directory / "elsewhere/b.h")


def test_a_header_that_is_a_link_is_where_the_link_is(project, roots, link):
    project.write({"elsewhere/own.h": "", "far/a.h": '#include "own.h"\n', "far/own.h": ""})
    os.symlink(project.directory / "far/a.h", project.directory / "elsewhere/a.h")
    header_closure = closure("#include <linked/../a.h>", roots)
    paths = {header.name: header.path for header in header_closure.headers}
    assert paths["project/include/own.h"] == str(project.directory / "elsewhere/own.h")


def test_the_next_header_may_be_beside_the_template(project, roots):
    """As gcc has it of a header that was found beside another: `-iquote` is searched then."""
    project.write({"project/include/a.h": "#include_next <b.h>\n", "project/kernels/b.h": ""})
    header_closure = closure('#include "../include/a.h"\n', roots)
    assert "project/kernels/b.h" in names(header_closure)


@pytest.mark.parametrize("name", ["b.h", "c.h"])
def test_a_name_that_would_mean_two_files_is_an_error(project, roots, link, name):
    project.write({"elsewhere/c.h": "", "pkg/src/inc/c.h": ""})
    with pytest.raises(InputError) as raised:
        closure(f'#include <{name}>\n#include "linked/../{name}"\n', roots)
    message = raised.value.render()
    assert message.startswith('source.cu:2:11: error: ".." after a symbolic link leads elsewhere')


def test_a_circle_of_includes_through_a_link_is_an_error(project, roots):
    project.write({"project/src/b.h": '#pragma once\n#include "../include/a.h"\n'})
    project.write({"project/include/a.h": '#include "linked/b.h"\n'})
    os.symlink("../src", project.directory / "project/include/linked")
    with pytest.raises(InputError, match="after a symbolic link"):
        closure("#include <a.h>\n", roots)


def test_a_name_that_is_missing_in_the_project_is_not_in_the_copy(project, roots, link):
    project.write({"project/include/sub/d.h": ""})
    for other in ("#include <sub/d.h>", "#include IMPL"):
        with pytest.raises(InputError, match="after a symbolic link"):
            closure(f"{other}\n#if __has_include(<linked/../sub/d.h>)\n#endif\n", roots)


def test_files_with_one_content_are_told_apart_after_pragma_once(project, roots):
    once = "#pragma once\nint a;\n"
    files = ["include/a.h", "include/b.h", "kernels/c.h"]
    project.write({f"project/{name}": once for name in files} | {"project/include/d.h": once})
    os.remove(project.directory / "project/include/d.h")
    os.symlink("b.h", project.directory / "project/include/d.h")
    source = '#include "a.h"\n#include "b.h"\n#include "c.h"\n#include "d.h"\n'
    a, b, d, c = closure(source, roots).headers
    assert (a.content, b.content, c.content) == tuple(
        once.encode() + b"\n" * count for count in range(3)
    )
    # A link to a file is that file.
    assert d.sha256 == b.sha256


def test_equal_files_with_guards_keep_their_content(project, roots):
    project.write({"project/include/a.h": "int x;", "project/include/b.h": "int x;"})
    first, second = closure("#include <a.h>\n#include <b.h>\n", roots).headers
    assert first.sha256 == second.sha256
    assert not second.content


def test_directories_pipes_and_dangling_links_are_no_headers(project, roots):
    directory = project.directory / "project/include"
    (directory / "a.h").mkdir()
    os.mkfifo(directory / "b.h")
    os.symlink("gone", directory / "c.h")
    os.symlink("d.h", directory / "d.h")
    source = "#include <a.h>\n#include <b.h>\n#include <c.h>\n#include <d.h>\n"
    assert closure(source, roots).headers == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_header_that_cannot_be_read_is_an_error(project, roots):
    project.write({"project/include/a.h": ""})
    (project.directory / "project/include/a.h").chmod(0)
    with pytest.raises(InputError):
        closure("#include <a.h>", roots)


def test_the_digest_depends_on_names_and_contents_only(project, roots, tmp_path):
    project.write({"project/include/a.h": "1", "pkg/src/inc/b.h": "2"})
    source = "#include <a.h>\n#include <b.h>\n"
    before = closure(source, roots)
    moved = tmp_path / "moved"
    shutil.copytree(project.directory / "project", moved / "project")
    shutil.copytree(project.directory / "pkg", moved / "pkg")
    moved_roots = [
        make_root("project", str(moved / "project"), "include"),
        make_root("pkg", str(moved / "pkg"), "src/inc"),
    ]
    assert closure(source, moved_roots).digest == before.digest
    assert closure(source.replace("a.h", "b.h"), roots).digest != before.digest
    project.write({"project/include/a.h": "3"})
    assert closure(source, roots).digest != before.digest


def test_many_sources_read_each_header_once(project, roots):
    project.write({"project/include/a.h": '#include "b.h"\n', "project/include/b.h": ""})
    read = []

    class Memory(DigestMemory):
        def digest_file(self, path):
            read.append(os.path.basename(path))
            return super().digest_file(path)

    headers = Headers(roots, digests=Memory())
    header_closures = [headers.find_closure(f'int x{i};\n#include "a.h"\n') for i in range(5)]
    assert len(set(header_closures)) == 1
    assert sorted(read) == ["a.h", "b.h"]


def test_a_directory_out_of_its_tree_is_no_root():
    with pytest.raises(ValueError, match="not inside"):
        make_root("project", "/p", "../elsewhere")


def test_a_header_is_scanned_once_in_all_processes_and_again_when_it_changed(
    project, roots, tmp_path
):
    put = []

    class Counted(ScanMemory):
        def put_scan(self, digest, scan):
            put.append([include.name for include in scan.includes])
            super().put_scan(digest, scan)

    for number in (0, 1, 1):
        project.write({"project/include/a.h": f'#include "b{number}.h"\n'})
        project.write({f"project/include/b{number}.h": f"int b{number};"})
        scans = Counted(str(tmp_path / "scans"))
        header_closure = Headers(roots, digests=DigestMemory(), scans=scans).find_closure(
            '#include "a.h"\n'
        )
        assert names(header_closure) == ["project/include/a.h", f"project/include/b{number}.h"]
        scans.save_scans()
    assert put == [["b0.h"], [], ["b1.h"], []]


@pytest.fixture
def toolkit(tmp_path):
    """A toolkit whose compiler includes `runtime.h`, which includes `lib/part.h`."""
    for name, text in {"runtime.h": "#include <lib/part.h>\n", "lib/part.h": ""}.items():
        path = tmp_path / "toolkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Outside((str(tmp_path / "toolkit"),), ("runtime.h",))


def test_nothing_outside_is_read_where_nothing_is_shadowed(project, roots, toolkit):
    project.write({"project/include/lib/mine.h": "", "project/include/other.h": ""})
    read = []

    class Digests:
        def digest_file(self, path):
            read.append(path)
            return ""

    header_closure = closure("#include <other.h>\n", roots, outside=toolkit, digests=Digests())
    assert names(header_closure) == ["project/include/other.h"]
    assert read == [os.path.join(project.directory, "project/include/other.h")]
