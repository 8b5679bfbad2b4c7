"""Recipes of a saxpy, a toolchain of this machine's tools, and modules to compile or link."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from tilusbuild.arch import parse_arch
from tilusbuild.compile.model import Launch, Options, Pipeline, Recipe
from tilusbuild.compile.module import collect_module_files, lay_out_launcher
from tilusbuild.compile.pipelines.cpu import CPU
from tilusbuild.compile.pipelines.nvcc import HOST, KERNEL_NVCC, choose_image_name
from tilusbuild.compile.pipelines.nvrtc import KERNEL_NVRTC
from tilusbuild.compile.program import compile_launcher
from tilusbuild.compile.steps import collect_tools, list_steps
from tilusbuild.expr import parse_expression
from tilusbuild.process.local import LocalRunner
from tilusbuild.signature.model import Argument, Tile
from tilusbuild.signature.parsing import join_arguments, parse_argument, resolve_constants
from tilusbuild.state.envelope import StepStore

HEADER = """\
#pragma once
namespace {
__device__ int counter;
template <int N> __device__ float scaled(float v) { counter += N; return v * N; }
}
static __device__ float helper(float v) { return scaled<3>(v); }
__device__ inline const char *header() { return __FILE__; }
"""
"""With names that are its own: of the anonymous namespace, and static."""

KERNEL_SOURCE = """\
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""

CPU_SOURCE = """\
extern "C" void saxpy(float a, const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}
"""

HOST_SOURCE = """\
static __global__ void kernel(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" int saxpy(float a, const float *x, float *y, int n, cudaStream_t stream) {
  kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, x, y, n);
  return cudaGetLastError();
}
"""

PIPELINES: dict[str, tuple[Pipeline, str]] = {
    "kernel": (KERNEL_NVCC, KERNEL_SOURCE),
    "kernel-nvrtc": (KERNEL_NVRTC, KERNEL_SOURCE),
    "cpu": (CPU, CPU_SOURCE),
    "host": (HOST, HOST_SOURCE),
}

SAXPY = {"a": "f32", "x": "f32*[n]", "y": "f32*[n]", "n": "i32"}


def make_signature(arguments: dict[str, Any], out: tuple[str, ...] = ("y",)) -> Any:
    """A signature from {"x": "f32*[n]"}; a value may be (text, {"low": …})."""
    parsed_arguments = []
    for name, text in arguments.items():
        if isinstance(text, Tile):
            parsed_arguments.append(Argument(name, "CUtensorMap", None, tile=text))
            continue
        text, more = text if isinstance(text, tuple) else (text, {})
        parsed_arguments.append(parse_argument(Argument(name, text, out=name in out, **more)))
    return resolve_constants(join_arguments(parsed_arguments), {})


def make_recipe(pipeline: str = "kernel", **changes: Any) -> Recipe:
    """A saxpy; `arguments`, `grid`, `block`, `smem`, `archs` are given as texts, and so are the
    launch's attributes, `cluster` among them."""
    arguments = changes.pop("arguments", SAXPY)
    out = changes.pop("out", ("y",))
    launch = Launch(
        tuple(parse_expression(text) for text in changes.pop("grid", ("cdiv(n, block)",))),
        tuple(parse_expression(text) for text in changes.pop("block", ("block",))),
        parse_expression(changes.pop("smem", "0")),
        tuple(parse_expression(text) for text in changes.pop("cluster", ())),
        *(
            parse_expression(changes.pop(name)) if name in changes else None
            for name in ("cooperative", "pdl", "carve_out")
        ),
    )
    options = {n: changes.pop(n) for n in Options.__struct_fields__ if n in changes}
    archs = changes.pop("archs", ("cpu",) if pipeline == "cpu" else ("sm_90a",))
    compiled_by, source = PIPELINES[pipeline]
    recipe = Recipe(
        pipeline=compiled_by,
        archs=tuple(parse_arch(name) for name in archs),
        ptx=False,
        source=source,
        symbol="saxpy",
        signature=make_signature(arguments, out),
        launch=launch,
        constants={"block": 256},
        options=Options(**options),
    )
    return replace(recipe, **changes)


def make_toolchain(
    nvcc: str | None = None, root: str | None = None, flags: tuple[str, ...] = ()
) -> Any:
    """What the pipelines need of a toolchain, with this machine's host tools."""
    names = ("g++", "gcc", "as", "ld")
    tools = [SimpleNamespace(path=shutil.which(name), version="-") for name in names]
    toolkit = {"root": root or "/nowhere", "link_flags": flags, "cudart": None, "include_dirs": ()}
    cuda = SimpleNamespace(nvcc=nvcc, **toolkit) if nvcc else None
    return SimpleNamespace(
        cuda=cuda,
        host=SimpleNamespace(tools=tools, cxx=tools[0], cc=tools[1], ld=tools[3]),
        build_environment=lambda: {"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        fingerprint_cuda=("nvcc 0 test",),
        nvrtc=None,
        fingerprint_nvrtc=(),
        fingerprint_joiner=(),
        fingerprint_cudart=(),
        fingerprint_host=("gcc 0 test",),
        find_reach=lambda: None,
    )


def write_module(recipe: Recipe, toolchain: Any, module: Path) -> None:
    """The module's files, and in a tree the launcher where compile.sh finds it."""
    module.mkdir(parents=True)
    launcher = None
    if not recipe.pipeline.host_code:
        with LocalRunner() as running:
            result = compile_launcher(recipe, toolchain, str(module.parent), running, StepStore())
        assert isinstance(result, bytes), result
        launcher = result
    digest, files = lay_out_launcher(recipe, launcher)
    for name, data in collect_module_files(recipe, toolchain, digest).items():
        (module / name).write_bytes(data)
    if module.parents[1].name != "programs":
        return
    directory = module.parents[2] / "include" / digest
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def link_without_nvcc(recipe: Recipe, directory: Path, image: bytes = b"an image") -> Path:
    """The kernel pipeline's library around any bytes: what the launcher's tests call."""
    toolchain = make_toolchain()
    directory.mkdir(parents=True)
    for name, data in collect_module_files(recipe, toolchain).items():
        (directory / name).write_bytes(data)
    (directory / "launcher.c").write_bytes(lay_out_launcher(recipe)[1]["launcher.c"])
    (directory / choose_image_name(recipe)).write_bytes(image)
    for step in list_steps(recipe):
        argv = collect_tools(toolchain).fill_placeholders(step.argv)
        if step.name in ("image", "link"):
            subprocess.run(argv, cwd=directory, check=True)
        elif step.name == "launcher":
            (directory / step.output).write_bytes(_launcher_object(directory, argv))
    return directory / "lib.so"


_objects: dict[bytes, bytes] = {}


def _launcher_object(directory: Path, argv: tuple[str, ...]) -> bytes:
    source = (directory / "launcher.c").read_bytes()
    if source not in _objects:
        strict = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run([*argv, *strict], cwd=directory, check=True)
        _objects[source] = (directory / "launcher.o").read_bytes()
    return _objects[source]
