"""`tilusbuild import` as a command: what it refuses, and what serves instead."""

from pathlib import Path

import pytest

from support.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})


def test_a_t1_file_is_refused_with_what_serves_instead(project: Project) -> None:
    project.write("k.json", '{"ConfigurationSpace": {}}')
    assert "space-file of a script" in project.run("import", "k.json", status=2).err


HOSTILE = {
    "deep.py": "x = " + "(" * 5000 + ")" * 5000,  # Python itself refuses it
    "deep.json": "[" * 100_000,
    "odd.json": '[1, {"directory": 3, "arguments": 4}, {"command": "nvcc \'"}]',
    "loop.ninja": "a = $a\nrule c\n  command = $a\nbuild a: c b\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_trusted_ends_as_an_error(project: Project, name: str) -> None:
    project.write(name, HOSTILE[name])
    refused = project.run("import", name, status=2)
    assert "imported" in refused.err or "was run, and failed" in refused.err


def test_nothing_to_import_is_an_error(project: Project) -> None:
    project.write("tune.py", "print(1)\n")
    assert "tune_kernel" in project.run("import", "tune.py", status=2).err
    project.write("wrong.json", "{")
    assert "cannot be imported" in project.run("import", "wrong.json", status=2).err


def test_the_manifest_of_a_script_is_beside_it(project: Project) -> None:
    project.write("tune.py", "import kernel_tuner\n")
    assert "-o is for builds" in project.run("import", "tune.py", "-o", "x", status=2).err


def test_what_says_nothing_of_compiles_points_to_what_does(project: Project) -> None:
    printed = project.run("import", ".", status=2).err
    assert "compile_commands.json" in printed
    assert 'sources = ["**/*.cu"]' in printed
    project.write("CMakeLists.txt", "")
    for what in ("CMakeLists.txt", "."):
        printed = project.run("import", what, status=2).err
        assert "cmake -S . -B build -G Ninja" in printed
