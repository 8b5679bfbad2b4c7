"""Libraries for aarch64, compiled on another machine, as docs/toolchain.md has it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.binary.elf import read_needs
from tilusbuild.binary.fatbin import read_archs

CXX, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64"
PAGE = Path(__file__).parents[2] / "docs/toolchain.md"
MANIFEST = """\
edition = 1
[build]
cache-dir = ".cache"
[project]
name = "scaled"
version = "1.0"
[target.cpu]
arch = "cpu"
[target.gpu]
arch = "sm_80"
[script.scale]
template = "scale.j2"
kernel = "scale"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }
launch = { grid = ["cdiv(n, 64)"], block = [64] }
"""
TEMPLATE = """\
{% if target.kind == "cpu" %}
extern "C" void scale(float a, const float *x, float *y, long n) {
  for (long i = 0; i < n; ++i) y[i] = a * x[i];
}
{% else %}
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {
  long long i = blockIdx.x * 64ll + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
{% endif %}
"""
CALLER = """\
#include <dlfcn.h>
#include <cstdio>
int main(int, char **names) {
  void *library = dlopen(names[1], RTLD_NOW);
  if (!library) return puts(dlerror()), 1;
  auto launch = (int (*)(float, const void *, void *, long, void *))dlsym(library, "launch");
  float x[3] = {1, 2, 3}, y[3];
  int status = launch(2, x, y, 3, nullptr);
  printf("%d %g %g %g", status, y[0], y[1], y[2]);
}
"""


@pytest.fixture
def crossed(project: Project) -> Project:
    """The project, built for aarch64 with the toolchain of the page."""
    if shutil.which(CXX) is None:
        pytest.skip(f"needs {CXX} (Debian: g++-aarch64-linux-gnu)")
    (toolchain,) = re.findall(rf'(\[toolchain\]\ncxx = "{re.escape(CXX)}"[^`]*)', PAGE.read_text())
    project.write_all({"tilus.toml": MANIFEST + toolchain, "scale.j2": TEMPLATE})
    project.run("build")
    return project


def find_library(project: Project, *, has_gpu_code: bool) -> Path:
    paths = project.cache.glob("programs/*/module/lib.so")
    (library,) = (p for p in paths if bool(read_archs(p.read_bytes())) == has_gpu_code)
    return library


def test_libraries_of_both_targets_are_for_the_other_machine(crossed: Project) -> None:
    gpu = find_library(crossed, has_gpu_code=True).read_bytes()
    cpu = find_library(crossed, has_gpu_code=False).read_bytes()
    assert [image.arch for image in read_archs(gpu)] == ["sm_80"]
    for library in (gpu, cpu):
        needs = read_needs(library)
        assert needs.machine == "aarch64"
        assert not needs.find_missing_exports("launch", "__tvm_ffi_launch")


def test_a_package_names_the_machine_and_is_checked_for_it(crossed: Project) -> None:
    crossed.run("package", "--format", "dir", "--format", "wheel")
    (wheel,) = crossed.directory.glob("dist/*.whl")
    assert wheel.name.endswith("_aarch64.whl")
    devices = ("-d", "cpu", "-d", "sm_86")
    crossed.run("preflight", "dist/scaled-1.0", *devices, "--machine", "aarch64")
    refused = crossed.run("preflight", "dist/scaled-1.0", *devices, "--machine", "x86_64", status=1)
    assert "made for aarch64, not x86_64" in refused.out


def test_an_emulator_runs_a_program(crossed: Project) -> None:
    if shutil.which(QEMU) is None:
        pytest.skip(f"needs {QEMU} (Debian: qemu-user)")
    source, program = crossed.write("caller.cc", CALLER), crossed.directory / "caller"
    subprocess.run((CXX, source, "-o", program), check=True)
    library = find_library(crossed, has_gpu_code=False)
    command = (QEMU, "-L", "/usr/aarch64-linux-gnu", program, library)
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout == "0 2 4 6"
