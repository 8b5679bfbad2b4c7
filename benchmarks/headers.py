"""Kernels that include much: NVRTC with precompiled headers, without, and `nvcc -cubin` alone.

Three small kernels, each with headers that cost more than it does: CuTe's, CUB's, and those of half
precision. tilusbuild makes libraries, with and without precompiled headers (which need the
sandbox), and the libraries must be the same bytes; ninja with `nvcc -cubin` makes device code of
the sources that tilusbuild rendered, and stops there. With CUTLASS's headers here, then the
default schedule of `examples/cutlass`: how long, how large, and how much memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import _bench
import _projects
from _bench import Arm, process
from cold import ONE_PASS, emptied, peer, remove_compiled
from nvrtc import find_version

from tilusbuild.binary.fatbin import extract_cubins

_MANIFEST = """\
edition = 1
[project]
name = "headers"
version = "0.1.0"
[build]
cache-dir = ".cache"
{build}
[target.gpu]
arch = "sm_90a"
[script.k]
template = "k.cu.j2"
kernel = "k"
targets = ["gpu"]
args = {{ x = {{ type = "f32*[n]", out = true }}, n = "i32" }}
launch = {{ grid = [1], block = ["width"] }}
space = {{ width = {widths} }}
"""


@dataclass(frozen=True)
class Kind:
    """A kernel and what it includes."""

    name: str
    source: str
    build: str = ""
    flags: tuple[str, ...] = ()


HALF = Kind(
    "cuda_fp16.h and cuda_bf16.h",
    """#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(float *x, int n) {
  __half h = __hadd(__float2half(x[threadIdx.x]), __float2half({{ width }}));
  __nv_bfloat16 b = __hmul(__float2bfloat16(x[0]), __float2bfloat16({{ width }}));
  x[threadIdx.x] = __half2float(h) + __bfloat162float(b);
}
""",
)
CUB = Kind(
    "cub/block/block_reduce.cuh",
    """#include <cub/block/block_reduce.cuh>
extern "C" __global__ void k(float *x, int n) {
  using Reduce = cub::BlockReduce<float, {{ width }}>;
  __shared__ typename Reduce::TempStorage room;
  float sum = Reduce(room).Sum(x[threadIdx.x]);
  if (threadIdx.x == 0) x[0] = sum;
}
""",
)
CUTE = Kind(
    "cute/tensor.hpp",
    """#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float *x, int n) {
  Tensor t = make_tensor(make_gmem_ptr(x), make_shape(n, Int<{{ width }}>{}));
  t(threadIdx.x, 1) = n;
}
""",
    'include-dirs = [{ package = "cutlass_library", path = "source/include" }]',
    ("-default-device",),
)


def tilusbuild(name: str, directory: Path, kind: Kind, programs: int, sandbox: str) -> Arm:
    """A build from nothing but what is known of the tools and of the plan."""
    flags = f"flags = {list(kind.flags)}".replace("'", '"')
    widths = [64 + 4 * number for number in range(programs)]
    text = _MANIFEST.format(build=f"{flags}\n{kind.build}", widths=widths)
    _projects.write(directory / "tilus.toml", text)
    _projects.write(directory / "k.cu.j2", kind.source)
    words = (*_bench.TILUSBUILD, "build", "--device-compiler", "nvrtc")
    environment = {"TILUSBUILD_SANDBOX": sandbox}
    process((*_bench.TILUSBUILD, "plan", "--device-compiler", "nvrtc"), directory)
    return Arm(
        name,
        lambda: process(words, directory, environment),
        lambda: len(libraries(directory)) == programs,
        lambda: remove_compiled(directory),
    )


def libraries(directory: Path) -> dict[str, str]:
    """The digests of the libraries, by program."""
    return {
        path.parts[-3]: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob(".cache/programs/*/module/lib.so")
    }


def ninja(directory: Path, texts: list[str], flags: list[str]) -> Arm:
    """The floor: device code alone."""
    peer(directory, texts, ["-cubin", *ONE_PASS, "-std=c++17", *flags], "cubin")
    jobs = len(os.sched_getaffinity(0))
    return Arm(
        "ninja, nvcc -cubin",
        lambda: process((_bench.ninja(), f"-j{jobs}"), directory),
        lambda: len(list(directory.glob("out/*.cubin"))) == len(texts),
        lambda: emptied(directory / "out"),
    )


def measure(directory: Path, kind: Kind, programs: int, rounds: int) -> dict[str, object]:
    """One kind of headers."""
    pch_project, plain = directory / "precompiled", directory / "plain"
    arms = [
        tilusbuild("NVRTC, precompiled headers", pch_project, kind, programs, "1"),
        tilusbuild("NVRTC, without", plain, kind, programs, "0"),
    ]
    arms[1].once(keep=False)
    texts = [path.read_text() for path in sorted(plain.glob(".cache/programs/*/module/source.cu"))]
    arms.append(ninja(directory / "ninja", texts, included()))
    _bench.alternate(arms, rounds, warm_up=False)
    assert libraries(pch_project) == libraries(plain), "precompiled headers changed bytes"
    return _bench.report(f"{kind.name}, {programs} programs, the same bytes", arms, per=programs)


def cutlass(directory: Path, rounds: int) -> dict[str, object]:
    """One whole kernel, whose templates cost more than its parsing."""
    project = directory / "project"
    shutil.copytree(_bench.ROOT / "examples/cutlass", project)
    manifest = (project / "tilus.toml").read_text()
    text = manifest.replace(
        "[build]\n", '[build]\ncache-dir = ".cache"\nflags = ["-default-device"]\n'
    )
    _projects.write(project / "tilus.toml", text)
    words = ("--device-compiler", "nvrtc", "--level", "0", "-t", "sm_90a")
    process((*_bench.TILUSBUILD, "plan", *words), project)
    nvrtc_arm = Arm(
        "NVRTC",
        lambda: process((*_bench.TILUSBUILD, "build", "--json", *words), project),
        lambda: len(libraries(project)) == 1,
        lambda: remove_compiled(project),
    )
    process((*_bench.TILUSBUILD, "render", *words[2:], "-o", str(directory / "rendered")), project)
    texts = [path.read_text() for path in directory.glob("rendered/**/*.cu")]
    arms = [nvrtc_arm, ninja(directory / "ninja", texts, included())]
    _bench.alternate(arms, rounds, warm_up=False)
    (library,) = project.glob(".cache/programs/*/module/lib.so")
    (cubin,) = directory.glob("ninja/out/*.cubin")
    cubin_data = extract_cubins(library.read_bytes())[0].data
    print(f"  cubin: {len(cubin_data)} bytes through NVRTC, {cubin.stat().st_size} of nvcc -cubin")
    events = [json.loads(line) for line in nvrtc_arm.runs[-1].out.splitlines() if line[:1] == "{"]
    peak = max(event["peak_rss"] for event in events if event["event"] == "finished")
    ninja_peak = max(ran.peak_rss for ran in arms[1].runs)
    print(f"  peak memory: {peak >> 20} MiB through NVRTC, {ninja_peak >> 20} MiB of nvcc -cubin")
    return _bench.report("linear of examples/cutlass, 1 program", arms, unit=1.0)


def included() -> list[str]:
    """The option that names CUTLASS's headers to nvcc, if they are here."""
    spec = importlib.util.find_spec("cutlass_library")
    return [f"-I{os.path.dirname(spec.origin or '')}/source/include"] if spec else []


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=16)
    if find_version() is None:
        return
    kinds = [HALF, CUB, *([CUTE] if included() else [])]
    if asked.small:
        kinds = [HALF]
    programs, rounds = (2, 1) if asked.small else (asked.programs, asked.rounds)
    results = []
    for kind in kinds:
        with _bench.workshop() as directory:
            results.append(measure(directory, kind, programs, rounds))
    if included() and not asked.small:
        with _bench.workshop() as directory:
            results.append(cutlass(directory, rounds))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
