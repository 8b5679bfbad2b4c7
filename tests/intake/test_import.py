"""`tilusbuild import` as a command: what it refuses, and what serves instead."""

from pathlib import Path

import pytest

from support.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


REFUSED: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "a T1 file": ({"k.json": '{"ConfigurationSpace": {}}'}, ("k.json",), "space-file of a script"),
    # Python itself refuses it.
    "deep Python": (
        {"deep.py": "x = " + "(" * 5000 + ")" * 5000},
        ("deep.py",),
        "was run, and fai",
    ),
    "deep JSON": ({"deep.json": "[" * 100_000}, ("deep.json",), "imported"),
    "odd JSON": (
        {"odd.json": '[1, {"directory": 3, "arguments": 4}, {"command": "nvcc \'"}]'},
        ("odd.json",),
        "imported",
    ),
    "a loop": (
        {"loop.ninja": "a = $a\nrule c\n  command = $a\nbuild a: c b\n"},
        ("loop.ninja",),
        "imported",
    ),
    "no call": ({"tune.py": "print(1)\n"}, ("tune.py",), "tune_kernel"),
    "cut JSON": ({"wrong.json": "{"}, ("wrong.json",), "cannot be imported"),
    "-o": ({"tune.py": "import kernel_tuner\n"}, ("tune.py", "-o", "x"), "-o is for builds"),
    "a source": ({"a.cu": ""}, ("a.cu",), "a.cu is a file that does not say how its sources are"),
    "nothing": ({"Makefile": ""}, ("makefile",), 'did you mean "Makefile"?'),
    "a directory": ({}, (".",), "compile_commands.json"),
    "sources": ({}, (".",), 'sources = ["**/*.cu"]'),
    "CMake": ({"CMakeLists.txt": ""}, ("CMakeLists.txt",), "cmake -S . -B build -G Ninja"),
    "a directory of CMake": ({"CMakeLists.txt": ""}, (".",), "cmake -S . -B build -G Ninja"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_an_error(project: Project, case: str) -> None:
    files, words, message = REFUSED[case]
    project.write_all(files)
    assert message in project.run("import", *words, status=2).err
