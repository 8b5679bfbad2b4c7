"""The workloads: projects of any number of programs, and the same graph for ninja and make.

A program's source includes 120 headers. The toolkit is the journaling double of the tests, whose
compiles take milliseconds, unless a real one is asked for. `fill` builds a project with a compiler
that starts no process, for when only what comes after the build is measured.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from _bench import ROOT

HEADERS = 120

TEMPLATE = """\
#include "all.h"
extern "C" __global__ void __launch_bounds__({{ threads }})
scale(float a, const float *x, float *y, long long n) {
  // {{ script.name }}, step {{ step }}
  const long long i = blockIdx.x * {{ threads }}ll + threadIdx.x;
#pragma unroll
  for (int j = 0; j < {{ step }}; ++j)
    if (i * {{ step }} + j < n) y[i * {{ step }} + j] = a * x[i * {{ step }} + j];
}
"""

_SCRIPT = """
[script.{name}]
template = "kernels/{name}.cu.j2"
kernel = "scale"
targets = ["gpu"]
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
launch = {{ grid = ["cdiv(n, tile)"], block = ["threads"] }}
space.threads = [128, 256]
space.step = {{ range = [1, {steps}] }}
derived.tile = "threads * step"
"""


def fake_toolkit(directory: Path) -> str:
    """Make the journaling toolkit; its nvcc."""
    path = ROOT / "tests/support/nvcc_journal.py"
    spec = importlib.util.spec_from_file_location("bench_nvcc_journal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    nvcc: str = module.make_toolkit(str(directory))
    os.environ.update(module.UNHELD)  # it writes a journal, which the sandbox forbids
    return nvcc


def project(directory: Path, programs: int, nvcc: str, *, scripts: int = 10) -> None:
    """Write a project of `scripts` scripts with `programs` programs in all, an even number each."""
    per_script = programs // scripts
    assert per_script * scripts == programs
    assert per_script % 2 == 0
    write(directory / "include/all.h", "".join(f'#include "h{i}.h"\n' for i in range(HEADERS - 1)))
    for i in range(HEADERS - 1):
        write(directory / f"include/h{i}.h", f"#pragma once\n#define H{i} {i}\n")
    text = (
        'edition = 1\n[project]\nname = "bench"\nversion = "0.1.0"\n'
        f'[build]\ncache-dir = ".cache"\ninclude-dirs = ["include"]\n[toolchain]\nnvcc = "{nvcc}"\n'
        '[target.gpu]\narch = "sm_80"\n'
    )
    for number in range(scripts):
        name = f"s{number}"
        text += _SCRIPT.format(name=name, steps=per_script // 2)
        write(directory / f"kernels/{name}.cu.j2", TEMPLATE)
    write(directory / "tilus.toml", text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(directory: Path, *words: str) -> dict[str, Any]:
    """Build with the command line; the summary. Raises `CalledProcessError`."""
    import json

    command = [sys.executable, "-m", "tilusbuild", "build", "--json", *words]
    ran = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return summary


FILL = """\
import json, os, sys, time
time.sleep(0.1)  # a record is only kept of inputs that are clearly older than the build
started = time.monotonic_ns()  # as the command line does
began = time.process_time()
from tilusbuild import noop
from tilusbuild.cache import disk
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import Compiled
from tilusbuild.plan.model import PlanSelection
from tilusbuild.builder import build, resources as builder
from tilusbuild.builder.project import Project
from tilusbuild.builder.noop_record import Invocation
from tilusbuild.compile.module import collect_module_files, lay_out_launcher

class NoCompiler(builder.ProgramCompiler):
    def compile(self, job, work, stage):
        module = os.path.join(stage.path, "module")
        os.mkdir(module)
        if LIKE:
            scope = self._runners.local.open_scope()
            launcher, _ = self._layout.lay_out_program(work, stage.path, scope)
        else:
            launcher, _ = lay_out_launcher(work.recipe, None)
        files = collect_module_files(work.recipe, work.toolchain, launcher)
        made = {name: read(os.path.join(LIKE, "module", name)) for name in MADE if LIKE}
        made["lib.so"] = made.get("lib.so", bytes(8000)) + job.hash.encode()
        for name, data in {**files, "nvcc_output.txt": b"", **made}.items():
            with open(os.path.join(module, name), "wb") as file:
                file.write(data)
        return Compiled(status="built", meta=META, seconds=0.25, peak_rss=1 << 28)

def read(path):
    with open(path, "rb") as file:
        return file.read()

if not SYNC:
    disk.Disk.sync_files = lambda self, paths: None
    disk.Disk.sync_directory = lambda self, path: None
MADE = ("nvcc_output.txt", "lib.so")
META = {"status": "built"}
if LIKE:
    found = json.loads(read(os.path.join(LIKE, "meta.json")))
    META = {k: v for k, v in found.items() if k not in ("schema", "program", "files", "digest")}
builder.ProgramCompiler = NoCompiler
words = ["build"]
THREAD = [0.0]
run_engine = build.run_engine
def timed(*words, **more):
    before = time.thread_time()
    try:
        return run_engine(*words, **more)
    finally:
        THREAD[0] = time.thread_time() - before
build.run_engine = timed
class Quiet:
    def emit(self, event): pass
    def tick(self): pass
    def close(self): pass
with Project.open(os.getcwd(), {}, os.environ) as project:
    invocation = Invocation(noop.make_key(words, os.environ), started)
    result = build.build_project(project, PlanSelection(), BuildConfig(jobs=JOBS), Quiet(),
                         invocation=invocation)
assert result.summary.exit_status == 0, result.summary
import resource
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
cpu = time.process_time() - began
print(result.summary.compiled, result.summary.seconds, cpu, THREAD[0], memory)
"""


class Filled(NamedTuple):
    """A build without compilers: times in seconds, memory in bytes."""

    programs: int
    seconds: float
    cpu: float
    """Of the whole process, its start and the plan included."""
    scheduling: float
    """Of the thread that decides what is built next."""
    peak_rss: int


def fill(directory: Path, jobs: int = 2, *, sync: bool = True, like: Path | None = None) -> Filled:
    """Build with a compiler that starts no process; without `sync` it does not wait for the disk,
    for when only what comes after the build is measured. What was compiled is as in the entry
    `like`, but for the end of the library."""
    code = FILL.replace("JOBS", str(jobs)).replace("SYNC", str(sync))
    code = code.replace("LIKE", repr(str(like or "")))
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, check=False, capture_output=True, text=True
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    programs, seconds, cpu, scheduling, memory = ran.stdout.split()
    return Filled(int(programs), float(seconds), float(cpu), float(scheduling), int(memory))


_STAND_IN = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
/* Stands for a compiler: OUTPUT SOURCE DEPFILE INCLUDE -> an output, and what it was made from. */
int main(int count, char **word) {
  if (count != 5) return 2;
  int out = open(word[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  static char bytes[8000];
  if (out < 0 || write(out, bytes, sizeof bytes) != sizeof bytes) return 1;
  FILE *file = fopen(word[3], "w");
  if (!file) return 1;
  fprintf(file, "%s: %s \\\n %s/all.h", word[1], word[2], word[4]);
  for (int i = 0; i < 119; ++i) fprintf(file, " \\\n %s/h%d.h", word[4], i);
  fputc('\n', file);
  return fclose(file) != 0;
}
"""


def graph(directory: Path, programs: int) -> None:
    """The same programs as `build.ninja` and `Makefile`, with a stand-in for the compiler."""
    write(directory / "stand_in.c", _STAND_IN)
    subprocess.run(["gcc", "-O1", "-o", "stand_in", "stand_in.c"], cwd=directory, check=True)
    write(directory / "include/all.h", "".join(f'#include "h{i}.h"\n' for i in range(HEADERS - 1)))
    for i in range(HEADERS - 1):
        write(directory / f"include/h{i}.h", f"#pragma once\n#define H{i} {i}\n")
    (directory / "src").mkdir()
    (directory / "out").mkdir()
    lines = [
        "rule compile",
        "  command = ./stand_in $out $in $out.d include",
        "  depfile = $out.d",
        "  deps = gcc",
    ]
    for i in range(programs):
        (directory / f"src/p{i}.cu").write_text(f"// {i}\n")
        lines.append(f"build out/p{i}.so: compile src/p{i}.cu")
    write(directory / "build.ninja", "\n".join(lines) + "\n")
    write(
        directory / "Makefile",
        f"all: $(foreach i,$(shell seq 0 {programs - 1}),mk/p$(i).so)\n"
        "mk/%.so: src/%.cu\n\t@./stand_in $@ $< $@.d include\n-include mk/*.d\n",
    )
    (directory / "mk").mkdir()


def environment(nvcc: str) -> Mapping[str, str]:
    """What leads tilusbuild to a toolkit."""
    return {"CUDA_HOME": os.path.dirname(os.path.dirname(nvcc))}


_WORK = """\
edition = 1
[build]
cache-dir = "cache"
[target.cpu]
arch = "cpu"
[script.work]
template = "work.cu.j2"
kernel = "work"
targets = ["cpu"]
args = {{ x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i32" }}
space = {space}
tune = {{ sizes = [{{ n = {n} }}] }}
"""
# The compiler may not join the repeats.
_WORK_SOURCE = """\
extern "C" void work(const float *x, float *y, int n) {
  for (int repeat = 0; repeat < REPEATS; ++repeat) {
    for (int i = 0; i < n; ++i) y[i] = x[i] * 2.f;
    asm volatile("" ::: "memory");
  }
}
"""


def write_work(directory: Path, space: str, repeats: str, n: int) -> None:
    """Write a project with the script `work` on the cpu target: each program copies `n` elements
    `repeats` times, an expression of the template over `space`. The cache is `cache`."""
    directory.mkdir(exist_ok=True)
    (directory / "tilus.toml").write_text(_WORK.format(space=space, n=n))
    (directory / "work.cu.j2").write_text(_WORK_SOURCE.replace("REPEATS", repeats))
