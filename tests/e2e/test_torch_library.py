"""`torch = true` and `needed`: libraries for a process that has others, which are not linked."""

from __future__ import annotations

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.project import NewProject, Project, needs_cxx
from tilusbuild.binary import read_needs

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.host]
arch = "cpu"
[library.ops]
sources = ["*.cpp"]
torch = true
output = "ops.so"
"""
SOURCE = """\
#include <torch/csrc/api/include/torch/all.h>
#include <torch/all.h>
int answer();
extern "C" int ask() { return answer() + _GLIBCXX_USE_CXX11_ABI; }
"""


def library(path: Path, code: str, *needs: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["g++", "-shared", "-fPIC", "-xc++", "-", "-xnone", f"-Wl,-soname,{path.name}"]
    subprocess.run([*words, *needs, "-o", path], input=code, text=True, check=True)
    return path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def ops(new_project: NewProject, tmp_path: Path) -> Project:
    """A project with an operator, and a package that has the parts of torch's that count."""
    needs_cxx()
    torch = tmp_path / "site/torch"
    write(torch / "__init__.py", "raise RuntimeError('it is not imported')\n")
    write(torch / "include/torch/csrc/api/include/torch/all.h", "#pragma once\n")
    write(
        torch / "share/cmake/Torch/TorchConfig.cmake",
        'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n',
    )
    library(torch / "lib/libfarm.so.2", "int farm_() { return 1; }\n")
    cpu = library(torch / "lib/libtorch_cpu.so", "int answer() { return 42; }\n")
    library(torch / "lib/libtorch_unused.so", "int unused() { return 1; }\n")
    whole = library(torch / "lib/libtorch.so", "int whole() { return 1; }\n")
    code = "int answer(); int whole(); int all() { return answer() + whole(); }\n"
    library(torch / "lib/libtorch_python.so", code, cpu, whole)
    project = new_project(MANIFEST, {"ops.cpp": SOURCE})
    project.environment["PYTHONPATH"] = str(torch.parent)
    return project


def test_torch_is_named_and_not_linked(ops: Project, tmp_path: Path) -> None:
    ops.build()
    made = ops.directory / "ops.so"
    named = read_needs(made.read_bytes()).libraries
    assert {"libtorch_cpu.so", "libtorch.so"} <= {*named}
    assert "libtorch_unused.so" not in named
    with pytest.raises(OSError, match=r"libtorch\w*\.so: cannot open"):
        ctypes.CDLL(str(made))
    for name in ("libtorch_cpu.so", "libtorch.so"):  # as `import torch` does
        ctypes.CDLL(str(tmp_path / "site/torch/lib" / name))
    assert ctypes.CDLL(str(made)).ask() == 42
    assert not [*ops.cache.rglob("libtorch*")]


def test_another_release_with_the_same_headers_links_nothing(ops: Project, tmp_path: Path) -> None:
    ops.build()
    library(tmp_path / "site/torch/lib/libtorch_cpu.so", "int answer() { return 43; }\n")
    assert ops.compiled() == 0
    (tmp_path / "site/torch/include/torch/csrc/api/include/torch/all.h").write_text("enum {};\n")
    assert ops.compiled() == 2


def test_compile_sh_links_the_same_bytes(ops: Project, tmp_path: Path) -> None:
    ops.build()
    (link,) = (path for path in ops.programs.values() if (path / "module/lib.so").exists())
    subprocess.run([link / "module/compile.sh", tmp_path / "again.so"], check=True)
    assert (tmp_path / "again.so").read_bytes() == (ops.directory / "ops.so").read_bytes()


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_no_torch_is_said_where_it_is_asked_for(new_project: NewProject) -> None:
    project = new_project(MANIFEST, {"ops.cpp": SOURCE})
    said = project.run("build", status=2, PYTHONPATH="").err
    assert 'no package "torch" is installed' in said
    assert "tilus.toml:11:" in said
