"""A small list, by hand; and a project of two scripts, built for the cpu under two names."""

from pathlib import Path
from typing import Any

import pytest

from support.marks import MARK, MARK_SCRIPT
from support.project import Project
from tilusbuild.package.listing import (
    FileEntry,
    FileList,
    HostNeeds,
    PackageTarget,
    ProgramEntry,
    ScriptEntry,
)
from tilusbuild.package.model import Image
from tilusbuild.state.files import sha256_text


def digest(word: str) -> str:
    """A sha256 to stand for something."""
    return sha256_text(word)


def program_files(program: str, *more: str) -> dict[str, FileEntry]:
    names = ("program.txt", "options.txt", "meta.json", "module/lib.so", *more)
    return {f"programs/{program}/{name}": FileEntry(7, digest(name)) for name in names}


def script_files(script: str, script_hash: str, *more: str) -> dict[str, FileEntry]:
    names = ("script.txt", "script.json", *more)
    return {f"scripts/{script}/{script_hash}/{name}": FileEntry(5, digest(name)) for name in names}


def small_list() -> FileList:
    """Two programs of a script for a GPU, one for the CPU, and a table."""
    first, second, third = digest("p1"), digest("p2"), digest("p3")
    scripts = (
        ScriptEntry("AddOne", digest("s1"), "host", {"dtype": '"f32"'}, (third,)),
        ScriptEntry("AddOne", digest("s2"), "h100", {"dtype": '"f32"'}, (second, first)),
    )
    return FileList(
        name="runtime",
        version="1.2.0",
        project="kernels",
        tool="0.1.0",
        targets={
            "h100": PackageTarget("cuda", ("sm_90a",), ptx=False, toolkit="13.0.88"),
            "host": PackageTarget("cpu", ("cpu",), ptx=False, toolkit=None),
        },
        needs=HostNeeds("x86_64", "x86-64-v2", "2.14", ("libc.so.6", "libm.so.6"), "0.1"),
        scripts=tuple(sorted(scripts, key=lambda entry: (entry.script, entry.target, entry.hash))),
        programs={
            first: ProgramEntry("AddOne", "h100", (Image("sass", "sm_90a"),)),
            second: ProgramEntry("AddOne", "h100", (Image("sass", "sm_90a"),)),
            third: ProgramEntry("AddOne", "host", ()),
        },
        files={
            **script_files("add_one", digest("s1"), "schedule.txt"),
            **script_files("add_one", digest("s2"), "schedule.txt", "dispatch_table.json"),
            **program_files(first),
            **program_files(second),
            **program_files(third),
        },
    )


@pytest.fixture(scope="session")
def listed() -> FileList:
    return small_list()


MANIFEST = """\
edition = 1

[project]
name = "Marks"
version = "1.2"

[target.host]
arch = "cpu"

[target.spare]
arch = "cpu"

MARK_SCRIPT
[script.DoubleIt]
template = "double.cu.j2"
kernel = "twice"
targets = ["host"]
include-dirs = ["include"]

[script.DoubleIt.args]
x = "f32*[n]"
y = { type = "f32*[n]", out = true }
n = "i64"

[script.DoubleIt.params]
bias = [0, 1]
""".replace("MARK_SCRIPT", MARK_SCRIPT)

TEMPLATES = {
    "mark.cu.j2": MARK,
    "double.cu.j2": """\
#include "twice.h"
extern "C" void twice(const float *x, float *y, long long n) {
  for (long long i = 0; i < n; i++) y[i] = TWICE(x[i]) + {{ bias }};
}
""",
    "include/twice.h": "#define TWICE(x) (2 * (x))\n",
}


class PackedProject(Project):
    """A project with a built cache."""

    def package(self, *words: str, **environment: Any) -> Path:
        """The directory with what was packed."""
        self.run("package", *words, **environment)
        return self.directory / "dist"

    def append(self, text: str) -> None:
        """More of a manifest."""
        with open(self.directory / "tilus.toml", "a", encoding="utf-8") as file:
            file.write(text)


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> PackedProject:
    files = {**TEMPLATES, "tilus.toml": MANIFEST, ".git": ""}
    return PackedProject.built(tmp_path_factory.mktemp("marks"), files)


@pytest.fixture
def project(_built: PackedProject, tmp_path: Path) -> PackedProject:
    """A copy of one's own."""
    return _built.copy(tmp_path / "project")


@pytest.fixture(scope="session")
def packed(_built: PackedProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project in every carrier, not to be changed."""
    directory = tmp_path_factory.mktemp("packed")
    _built.run("package", "--format", "dir,tar.zst,wheel,oci", "-o", str(directory))
    return directory
