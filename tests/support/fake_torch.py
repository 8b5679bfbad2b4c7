"""A package that has the parts of torch's that count, and a project with an operator."""

import subprocess
from pathlib import Path

from support.project import head

MANIFEST = (
    head("host")
    + """\
[library.ops]
sources = ["*.cpp"]
torch = true
output = "ops.so"
"""
)
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


def fake_torch(site: Path) -> None:
    """Make a package `torch` in a directory of packages."""
    torch = site / "torch"
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
