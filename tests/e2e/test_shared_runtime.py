"""Libraries for a process that has others, which are not linked: CUDA's runtime, and torch's."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.processes import run_python
from support.project import NewProject, Project, head, needs_cxx
from tilusbuild.binary.elf import read_needs

MANIFEST = (
    head("gpu", "sm_80")
    + """\
[toolchain]
cudart = "shared"
[script.shared]
template = "scale.cu"
render = false
entry = "scale"
args = { x = "f32*[n]", n = "i32", by = "f32" }
[script.own]
template = "scale.cu"
render = false
entry = "scale"
cudart = "static"
args = { x = "f32*[n]", n = "i32", by = "f32" }
"""
)
SOURCE = """\
__global__ void kernel(float *x, int n, float by) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) x[i] *= by;
}
extern "C" int scale(float *x, int n, float by, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, n, by);
  return cudaGetLastError();
}
"""
OPEN = """\
import sys, tvm_ffi
from tilusbuild.runtime.cuda_driver import open_with_dependencies
open_with_dependencies(lambda: tvm_ffi.load_module(sys.argv[1]))
"""


@pytest.mark.nvcc
def test_a_shared_runtime(new_project: NewProject, tmp_path: Path) -> None:
    project = new_project(MANIFEST, {"scale.cu": SOURCE})
    project.build()
    path_by_runtime = {
        (path / "program.txt").read_text().split('"')[1]: path for path in project.programs.values()
    }
    shared = (path_by_runtime["shared"] / "module/lib.so").read_bytes()
    assert (
        len(shared) < 21_000 < 500_000 < (path_by_runtime["own"] / "module/lib.so").stat().st_size
    )
    (runtime,) = (name for name in read_needs(shared).libraries if name.startswith("libcudart"))
    assert runtime.removeprefix("libcudart.so.").isdigit()
    options = (path_by_runtime["shared"] / "options.txt").read_text()
    assert f"\n{runtime} - " in options
    assert runtime not in (path_by_runtime["own"] / "options.txt").read_text()

    subprocess.run(
        [path_by_runtime["shared"] / "module/compile.sh", tmp_path / "again.so"], check=True
    )
    assert (tmp_path / "again.so").read_bytes() == shared

    # No toolkit is on the loader's path, so what opens it finds the runtime by itself.
    subprocess.run(
        [sys.executable, "-c", OPEN, path_by_runtime["shared"] / "module/lib.so"], check=True
    )


# `torch = true` and `needed`: libraries for a process that has others, which are not linked.
TORCH = (
    head("host")
    + """\
[library.ops]
sources = ["*.cpp"]
torch = true
output = "ops.so"
"""
)
OPERATOR = """\
#include <torch/csrc/api/include/torch/all.h>
#include <torch/all.h>
#include <cusparse.h>
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
    write(site / "nvidia/cusparse/include/cusparse.h", "#pragma once\n")
    write(site / "nvidia/cuda_runtime/include/cuda_runtime.h", "#error not the toolkit's\n")
    write(
        torch / "share/cmake/Torch/TorchConfig.cmake",
        'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n',
    )
    library(torch / "lib/libfarm.so.2", "int farm_() { return 1; }\n")
    cpu = library(torch / "lib/libtorch_cpu.so", "int answer() { return 42; }\n")
    library(torch / "lib/libtorch_unused.so", "int unused() { return 1; }\n")
    torch_library = library(torch / "lib/libtorch.so", "int whole() { return 1; }\n")
    code = "int answer(); int whole(); int all() { return answer() + whole(); }\n"
    library(torch / "lib/libtorch_python.so", code, cpu, torch_library)


@pytest.fixture
def ops(new_project: NewProject, tmp_path: Path) -> Project:
    """A project with an operator, and a package that has the parts of torch's that count."""
    needs_cxx()
    fake_torch(tmp_path / "site")
    project = new_project(TORCH, {"ops.cpp": OPERATOR})
    project.environment["PYTHONPATH"] = str(tmp_path / "site")
    return project


LOADED = """\
import ctypes, sys
made, libraries = sys.argv[1:]
try:
    ctypes.CDLL(made)
except OSError as error:
    assert "libtorch" in str(error) and "cannot open" in str(error), error
else:
    raise AssertionError("it brings its own torch")
for name in ("libtorch_cpu.so", "libtorch.so"):  # as `import torch` does
    ctypes.CDLL(f"{libraries}/{name}")
assert ctypes.CDLL(made).ask() == 42
"""
"""In a process of its own: the tests' may have loaded the real torch."""


def test_torch_is_named_and_not_linked(ops: Project, tmp_path: Path) -> None:
    ops.build()
    product = ops.directory / "ops.so"
    named = read_needs(product.read_bytes()).libraries
    assert {"libtorch_cpu.so", "libtorch.so"} <= {*named}
    assert "libtorch_unused.so" not in named
    run_python(LOADED, product, tmp_path / "site/torch/lib")
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
    project = new_project(TORCH, {"ops.cpp": OPERATOR})
    stderr = project.run("build", status=2, PYTHONPATH="").err
    assert 'no package "torch" is installed' in stderr
    assert "tilus.toml:11:" in stderr
