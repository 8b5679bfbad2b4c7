"""One library of many objects, beside ninja on the same graph.

The graph is that of a backend with template instances: each instance is a source that includes one
header with a kernel and the toolkit's `cuda_fp16.h`, host sources call them, and all of it becomes
one `.so`. ninja compiles the same sources, with nvcc's own depfiles. Cold, after an
edit of one host source, after an edit of the header, and with nothing to do.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, process
from cold import remove_compiled

_MANIFEST = """\
edition = 1
[project]
name = "library"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.gpu]
arch = "sm_80"
[library.backend]
sources = ["src/*.cpp"]
output = "libbackend.so"
[script.instance]
template = "instance.cu.j2"
library = "backend"
include-dirs = ["src"]
params = {{ n = {numbers} }}
"""
_HEADER = """\
#pragma once
#include <cuda_fp16.h>
template <int N> __global__ void scale(__half *x) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[threadIdx.x + i] = __hmul(x[threadIdx.x + i], __float2half(N));
}
template <int N> void run(void *x) { scale<N><<<1, 128>>>((__half *)x); }
"""
_INSTANCE = '#include "scale.cuh"\ntemplate void run<{{ n }}>(void *);\n'
_HOST = "template <int N> void run(void *);\nvoid call{n}(void *x) {{ run<{n}>(x); }}\n"
_LINK = "-shared -cudart static -cudadevrt none -nodlink -Xlinker -s"
_NINJA = """\
nvcc = {nvcc}
flags = -c -gencode arch=compute_80,code=sm_80 -std=c++17 -Isrc -Xcompiler -fPIC,-march=x86-64-v2
rule cu
  command = $nvcc $flags -MD -MF $out.d $in -o $out
  deps = gcc
  depfile = $out.d
rule cpp
  command = g++ -c -std=c++17 -march=x86-64-v2 -fPIC -MD -MF $out.d $in -o $out
  deps = gcc
  depfile = $out.d
rule link
  command = $nvcc {link} $in -o $out
"""


def project(directory: Path, instances: int) -> Path:
    """A project of so many instances, and a host source for each."""
    numbers = list(range(1, instances + 1))
    _projects.write(directory / "tilus.toml", _MANIFEST.format(numbers=numbers))
    _projects.write(directory / "instance.cu.j2", _INSTANCE)
    _projects.write(directory / "src/scale.cuh", _HEADER)
    for n in numbers:
        _projects.write(directory / f"src/call{n}.cpp", _HOST.format(n=n, N="N"))
    return directory


def peer(directory: Path, instances: int) -> Path:
    """The same sources with a `build.ninja`."""
    project(directory, instances)
    lines, objects = [_NINJA.format(nvcc=_bench.nvcc(), link=_LINK)], []
    for n in range(1, instances + 1):
        text = _INSTANCE.replace("{{ n }}", str(n))
        _projects.write(directory / f"instances/i{n}.cu", text)
        lines.append(f"build out/i{n}.o: cu instances/i{n}.cu")
        lines.append(f"build out/call{n}.o: cpp src/call{n}.cpp")
        objects += [f"out/i{n}.o", f"out/call{n}.o"]
    lines.append(f"build libbackend.so: link {' '.join(objects)}")
    _projects.write(directory / "build.ninja", "\n".join(lines) + "\n")
    return directory


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=12)
    instances = 2 if asked.small else asked.programs
    rounds = 1 if asked.small else asked.rounds
    jobs = len(os.sched_getaffinity(0))
    with _bench.workshop() as directory:
        mine = project(directory / "tilus", instances)
        other = peer(directory / "ninja", instances)
        commands = {
            mine: (*_bench.TILUSBUILD, "build", "-j", str(jobs)),
            other: (_bench.ninja(), f"-j{jobs}"),
        }
        edits = [0]

        def emptied(where: Path) -> None:
            remove_compiled(where)
            shutil.rmtree(where / "out", ignore_errors=True)
            for name in ("libbackend.so", ".ninja_log", ".ninja_deps"):
                (where / name).unlink(missing_ok=True)

        def edited(where: Path, name: str) -> None:
            edits[0] += 1
            path = where / "src" / name
            path.write_text(path.read_text() + f"inline int edit{edits[0]}() {{ return 1; }}\n")

        def arms(prepare: object, *arguments: str) -> list[Arm]:
            return [
                Arm(
                    name,
                    lambda where=where: run(where),  # type: ignore[misc]
                    lambda where=where: (where / "libbackend.so").exists(),  # type: ignore[misc]
                    lambda where=where: prepare(where, *arguments),  # type: ignore[misc, operator]
                )
                for name, where in (("tilusbuild", mine), ("ninja", other))
            ]

        def run(where: Path) -> Ran:
            return process(commands[where], where)

        results = []
        for title, arm_list in (
            (f"cold, {instances} instances and host sources", arms(emptied)),
            ("an edit of one host source", arms(edited, "call1.cpp")),
            ("an edit of the header", arms(edited, "scale.cuh")),
            ("nothing to do", arms(lambda where: None)),
        ):
            _bench.alternate(arm_list, rounds)
            results.append(_bench.report(title, arm_list, per=2 * instances))
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
