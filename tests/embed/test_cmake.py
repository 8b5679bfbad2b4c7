"""Kernels in a CMake project: the example of docs/cmake.md, by the real CMake."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import run_to_end
from tilusbuild.embed import functions
from tilusbuild.runtime.script import read_script

EXAMPLE = ROOT / "examples/cmake"
CONFIG = ROOT / "tilusbuild/embed/cmake"
GENERATORS = {"Ninja": "ninja", "Unix Makefiles": "make"}
STARTED = "Building the kernels kernels"


@dataclass
class CMakeProject:
    """A copy of the example, configured."""

    directory: Path
    generator: str

    def cmake(self, *words: str | Path, status: int | None = 0) -> str:
        """Everything that cmake prints."""
        home = {"HOME": str(self.directory.parent)}
        ran = run_to_end(["cmake", *words], cwd=self.directory, environment=home, status=status)
        return ran.stdout + ran.stderr

    def configure(self, *words: str, status: int = 0) -> str:
        command = self.directory.parent / "tilusbuild"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tilusbuild "$@"\n')
        command.chmod(0o755)
        return self.cmake(
            *("-B", "build", "-G", self.generator, f"-Dtilusbuild_DIR={CONFIG}"),
            *(f"-DTILUSBUILD_EXECUTABLE={command}", *words),
            status=status,
        )

    def build(self, status: int | None = 0) -> str:
        return self.cmake("--build", "build", status=status)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.directory / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], CMakeProject]:
    def make(generator: str) -> CMakeProject:
        for tool in ("cmake", GENERATORS[generator]):
            if shutil.which(tool) is None:
                pytest.skip(f"needs {tool}")
        directory = shutil.copytree(EXAMPLE, tmp_path / "project of cmake")
        return CMakeProject(directory, generator)

    return make


Make = Callable[[str], CMakeProject]


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_kernels_are_built_when_a_source_of_theirs_changes(project: Make, generator: str) -> None:
    """Given the example, built and tested, when nothing, a time, and a header changes, and when it
    is installed and its build directory is gone."""
    cmake_project = project(generator)
    cmake_project.configure()
    assert STARTED in cmake_project.build()
    run_to_end(["ctest", "--test-dir", "build"], cwd=cmake_project.directory)

    assert STARTED not in cmake_project.build()
    (cmake_project.directory / "kernels/unit.h").touch()
    output = cmake_project.build()
    assert STARTED in output
    assert "4 programs, nothing to do" in output
    assert "main.cpp" not in output
    assert "kernels.c" not in output
    assert STARTED not in cmake_project.build()

    cmake_project.edit("kernels/unit.h", "1.0f", "2.0f")
    assert "2 compiled, 2 up to date" in cmake_project.build()
    assert "7 1.5" in run_to_end(["build/waves"], cwd=cmake_project.directory, status=1).stdout
    installed = cmake_project.directory.parent / "installed"
    cmake_project.cmake("--install", "build", "--prefix", installed)
    shutil.rmtree(cmake_project.directory / "build")
    assert "7 1.5" in run_to_end([installed / "bin/waves"], status=1).stdout


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs/cmake.md").read_text()
    files = {path.read_text() for path in EXAMPLE.rglob("*.*")}
    blocks = re.findall(r"^```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    assert set(blocks) <= files


HEADER = """\
/* x = x * rate, in single or double precision
   Script decay[dtype=f64], for cpu.
     x: f64*[n], read and written
     rate: f64
     n: i64
   On the host: `stream` is ignored. */
__attribute__((visibility("default"))) int k_decay_f64(double *x, double rate, int64_t n, void *stream);
"""  # noqa: E501


def test_the_header_says_what_each_function_takes_and_compiles_as_c(tmp_path: Path) -> None:
    """Given the example's scripts, when a C compiler reads what is written of them, with all
    warnings, and a C++ compiler."""
    shutil.copytree(EXAMPLE, tmp_path / "p")
    words = [sys.executable, "-m", "tilusbuild", "cmake", "build", "k", "--cache-dir", "cache"]
    run_to_end(words, cwd=tmp_path / "p")
    assert HEADER in (tmp_path / "p/k.h").read_text()
    strict = ["-c", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-o", "k.o"]
    for compiler in (["gcc", "-std=c11", "k.c"], ["g++", "-std=c++17", "-xc++", "k.c"]):
        run_to_end([*compiler, *strict], cwd=tmp_path / "p")


def test_the_code_of_the_best_target_serves_each_gpu(tmp_path: Path) -> None:
    """Given a script for two GPUs, when they are tabled, then by the rules of `load`."""
    shutil.copytree(EXAMPLE, tmp_path / "p")
    words = [sys.executable, "-m", "tilusbuild", "build", "-q", "--cache-dir", "cache", "saxpy"]
    run_to_end(words, cwd=tmp_path / "p")
    (path,) = (tmp_path / "p/cache/scripts/saxpy").iterdir()
    script = read_script(str(path))._replace(kind="cuda")
    code = script.code._replace(toolkit="12.8.0")
    both = [script._replace(target=t, code=code._replace(archs=(t,))) for t in ("sm_80", "sm_90a")]
    source = functions.write_library_sources("k", [*both, script._replace(kind="cpu")], {})["k.c"]
    assert "tk_devices_saxpy[] = {{80, 0}, {86, 0}, {87, 0}, {88, 0}, {89, 0}, {90, 1}" in source
    assert "int k_saxpy_cpu(" in source


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MANIFEST tilus.toml", "MANIFEST kernels", "MANIFEST kernels is not a tilus.toml"),
        ("SCRIPTS saxpy", "SCRIPT saxpy", "unknown argument SCRIPT;saxpy"),
        ("LANGUAGES CXX", "LANGUAGES NONE", "needs the language C or CXX"),
    ],
)
def test_a_mistake_in_a_cmakelists_ends_its_configuration(
    project: Make, old: str, new: str, message: str
) -> None:
    cmake_project = project("Ninja")
    cmake_project.edit("CMakeLists.txt", old, new)
    assert message in " ".join(cmake_project.configure(status=1).split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--script", "sapxy"), 'did you mean "saxpy"?'),
        (("--target", "gpu"), "known: cpu"),
        (("--manifest", "nowhere/tilus.toml"), "nowhere/tilus.toml"),
    ],
)
def test_what_cannot_be_built_is_named(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    command = [sys.executable, "-m", "tilusbuild", "cmake", "build", "k", *words]
    command += ["--sources", str(tmp_path), "--beside", str(tmp_path)]
    ran = run_to_end(command, cwd=EXAMPLE, status=2)
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []
