"""From a built project to a package: the same bytes whoever packs; nothing when it cannot be."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.package.listing import FileList, parse_list
from tilusbuild.state.files import sha256_bytes, sha256_file

ALL = ("--format", "dir,tar.zst,wheel,oci")
STEM = "Marks-1.2"


def tree(directory: Path) -> dict[str, tuple[int, str]]:
    """Every file below a directory, with its mode and digest."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, sha256_file(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def listed(directory: Path) -> FileList:
    return parse_list((directory / STEM / "tilus-package.json").read_bytes())


def test_another_path_umask_user_and_time_give_the_same_bytes(project, packed, tmp_path) -> None:
    shutil.move(project.directory, tmp_path / "elsewhere")
    moved = type(project)(tmp_path / "elsewhere")
    before = os.umask(0o077)
    try:
        directory = moved.package(*ALL, USER="somebody", HOME=str(tmp_path), TILUSBUILD_JOBS="1")
    finally:
        os.umask(before)
    assert tree(directory) == tree(packed)


def test_the_list_is_of_all_that_is_there(packed: Path) -> None:
    file_list = listed(packed)
    file_by_path = tree(packed / STEM)
    assert file_by_path.pop("tilus-package.json")[1] == file_list.digest
    assert {path: digest for path, (_, digest) in file_by_path.items()} == {
        path: file.sha256 for path, file in file_list.files.items()
    }
    assert (file_list.name, file_list.version, file_list.project) == ("Marks", "1.2", "Marks")
    assert {(s.script, s.target, *s.params.items()) for s in file_list.scripts} == {
        ("DoubleIt", "host", ("bias", "0")),
        ("DoubleIt", "host", ("bias", "1")),
        ("mark", "host"),
        ("mark", "spare"),
    }
    assert len(file_list.programs) == 6, "one program serves both targets"
    assert file_list.needs.machine == os.uname().machine
    assert file_list.needs.tvm_ffi == "0.1.9"
    assert "libc.so.6" in file_list.needs.libraries


def test_runtime_by_default(packed: Path) -> None:
    names = {re.sub(r"[0-9a-f]{64}", "H", path) for path in listed(packed).files}
    assert names == {
        "programs/H/meta.json",
        "programs/H/module/lib.so",
        "programs/H/options.txt",
        "programs/H/program.txt",
        *(
            f"scripts/{script}/H/{name}"
            for script in ("double_it", "mark")
            for name in (
                *("schedule.txt", "script.json", "script.txt"),
                *("dispatch_table.json", "dispatch_table.txt"),
            )
        ),
        *(f"scripts/mark/H/dispatch/{n}" for n in ("dispatch.h", "dispatch.json", "libmark.so")),
    }


def test_sources_when_asked_for(project: Any) -> None:
    project.append('[package.dev]\ninclude = ["sources"]\nformats = ["dir"]\n')
    file_list = parse_list((project.package() / "Marks-dev-1.2/tilus-package.json").read_bytes())
    names = {path.split("/", 2)[2] for path in file_list.files if not path.startswith("scripts/")}
    assert {"module/source.cu", "module/compile.sh", "MANIFEST"} <= names
    assert "module/nvcc_output.txt" not in names
    assert any(name.endswith("twice.h") for name in names)
    (program,) = [p for p in file_list.programs if file_list.programs[p].script == "DoubleIt"][:1]
    directory = project.directory / "dist/Marks-dev-1.2/programs" / program
    library = (directory / "module/lib.so").read_bytes()
    (directory / "module/lib.so").unlink()
    assert os.system(f"{directory}/module/compile.sh >/dev/null") == 0
    assert (directory / "module/lib.so").read_bytes() == library


def test_only_what_dispatch_can_choose(project: Any) -> None:
    project.append(
        '[package.few]\nprograms = "dispatched"\nscripts = ["mark"]\nformats = ["dir"]\n'
    )
    file_list = parse_list((project.package() / "Marks-few-1.2/tilus-package.json").read_bytes())
    texts = [
        (project.cache / "programs" / p / "program.txt").read_text() for p in file_list.programs
    ]  # the rule's and the default
    assert sorted(re.findall(r"variant = (\d)", " ".join(texts))) == ["1", "2"]


def test_a_list_names_its_scripts_and_targets(project: Any) -> None:
    project.append('[package.one]\ntargets = ["spare"]\nformats = ["dir"]\n')
    file_list = parse_list(
        (project.package("one") / "Marks-one-1.2/tilus-package.json").read_bytes()
    )
    assert [(s.script, s.target) for s in file_list.scripts] == [("mark", "spare")]
    assert set(file_list.targets) == {"spare"}


def test_what_is_too_large_is_not_written_and_says_why(project: Any) -> None:
    project.append('[package.tiny]\nmax-size = "1kB"\nformats = ["dir", "tar.zst"]\n')
    done = project.run("package", "tiny", status=1)
    assert "more than max-size, 1000" in done.err
    assert "tilusbuild report" in done.err
    assert not list((project.directory / "dist").iterdir())


def test_an_edit_since_the_build_is_refused(project: Any) -> None:
    project.edit("mark.cu.j2", "10 *", "11 *")
    done = project.run("package", status=1)
    assert "8 of 10 programs are not built, or out of date: mark/0 host" in done.err
    assert "tilusbuild build" in done.err
    assert not (project.directory / "dist").exists()


def test_what_was_built_can_be_packed_though_it_is_out_of_date(project: Any, packed: Path) -> None:
    moved = project.directory.with_name("elsewhere")
    shutil.move(project.directory, moved)
    (moved / "mark.cu.j2").write_text("")
    directory = type(project)(moved).package("--as-built", "--format", "dir")
    assert tree(directory / STEM) == tree(packed / STEM)


@pytest.mark.parametrize("words", [(), ("--as-built",)])
def test_without_a_build_there_is_nothing_to_pack(project: Any, words: tuple[str, ...]) -> None:
    shutil.rmtree(project.cache)
    done = project.run("package", *words, status=1)
    assert "tilusbuild build" in done.err
    assert not project.cache.exists()


def test_a_damaged_library_is_not_packed(project: Any) -> None:
    library = next(project.cache.glob("programs/*/module/lib.so"))
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    library.write_bytes(data)
    done = project.run("package", status=1)
    assert "lib.so is not what was built" in done.err
    assert "cache verify --repair" in done.err


def test_a_package_is_replaced_and_nothing_else_is(project: Any, packed: Path) -> None:
    directory = project.package(*ALL)
    (directory / STEM / "more").write_text("left by somebody")
    assert tree(project.package(*ALL)) == tree(packed)
    shutil.rmtree(directory / STEM)
    (directory / STEM).mkdir()
    (directory / STEM / "thesis.tex").write_text("mine")
    (directory / f"{STEM}.tar.zst").write_bytes(b"kept")
    done = project.run("package", *ALL, status=1)
    assert "not a package of tilusbuild" in done.err
    assert (directory / STEM / "thesis.tex").read_text() == "mine"
    assert (directory / f"{STEM}.tar.zst").read_bytes() == b"kept"
    assert not list(directory.glob(".tilusbuild-tmp-*"))


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (("moon",), {}, 'no package "moon"'),
        (("--format", "zip"), {}, 'unknown format "zip"'),
        (("-o", "tilus.toml"), {}, "--output tilus.toml"),
        ((), {"SOURCE_DATE_EPOCH": "today"}, "SOURCE_DATE_EPOCH is 'today'"),
        ((), {"SOURCE_DATE_EPOCH": "4354819200"}, "at most 4354819199"),
    ],
)
def test_bad_input_is_told(project, words, env, message) -> None:
    done = project.run("package", *words, status=2, **env)
    assert message in done.err


def test_what_was_written_is_printed(project: Any) -> None:
    done = project.run("package", "--format", "tar.zst")
    assert done.out == "dist/Marks-1.2.tar.zst\n"
    digest = sha256_bytes(listed(project.package("--format", "dir")).encode())
    assert f"sha256 {digest}" in done.err
    lines = project.run("package", "--format", "tar.zst", "--json").out.splitlines()
    assert f'"digest": "{digest}"' in lines[0]
    assert '"event": "package"' in lines[-1]


def test_schedules_that_do_not_compile_stay_behind(project: Any) -> None:
    template = project.directory / "mark.cu.j2"
    template.write_text(template.read_text() + "{% if variant == 3 %}\n#error no\n{% endif %}\n")
    project.run("build")
    file_list = listed(project.package("--format", "dir"))
    assert [len(s.programs) for s in file_list.scripts] == [1, 1, 3, 3]
