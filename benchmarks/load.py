"""From a cache tree to a call: what `load`, a selection and a call cost over the bare library.

- a call: `Kernel(...)` and the C dispatcher's packed call against the program's own, same arguments
- a call with its outputs left out, and one by keyword, against one with all arguments in order
- a call of a script with `serves`, one whose rule reads an address, and one that is recorded,
  against one without
- a selection: `Kernel.select`, and `<script>_select` in C over random sizes, less the empty loop
- a cold load: `import tilusbuild` and `load` in a new process against an interpreter that starts
- a process with 1 to 1,000 kernels, instances of one script: what one more takes to load and to be
  called first, the memory, and that all of them are right

Differences are of CPU time, which other work on the machine disturbs least. The script has two
dispatch keys and a table of 26 x 26 measured buckets. Runs on any machine with a C++ compiler:
python benchmarks/load.py; with `--rounds 0 --kernels 1000` only the last.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _bench import TILUSBUILD, Arm, Ran, alternate, arguments, machine, process, report, workshop

MANIFEST = """\
edition = 1
[project]
name = "load"
version = "0.1.0"
[build]
cache-dir = "cache"
[target.cpu]
arch = "cpu"
[script.tiny]
template = "tiny.cu.j2"
kernel = "tiny"
args = { x = "f32*[m, n]", y = { type = "f32*[m, n]", out = true }, m = "i32", n = "i32" }
[script.tiny.space]
variant = { range = [0, 3] }
[script.tiny.dispatch]
keys = ["m", "n"]
"""
for name, rule in (("served", "n % 4 == 0 or variant < 3"), ("aligned", "align(x) > variant")):
    script = MANIFEST[MANIFEST.index("[script.tiny]") : MANIFEST.index("[script.tiny.dispatch]")]
    MANIFEST += script.replace("script.tiny", f"script.{name}").replace(
        "args =", f'serves = {{ rule = "{rule}" }}\nargs ='
    )
TEMPLATE = """\
extern "C" void tiny(const float *x, float *y, int m, int n) {
  if (m && n) y[0] = x[0] + {{ variant }};
}
"""
C = """\
#define _POSIX_C_SOURCE 199309L
#include "dispatch.h"
#include <stdio.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static unsigned seed;
static int64_t size(void) { return 1 + ((seed = seed * 1664525u + 1013904223u) >> 19); }

int main(void) {
  enum { CALLS = 500000, ROUNDS = 41 };
  long sum = 0;
  for (int round = 0; round < ROUNDS; round++) {
    double start, empty, full;
    seed = 1, start = now();
    for (int i = 0; i < CALLS; i++) { int64_t m = size(); sum += m ^ size(); }
    empty = now() - start, seed = 1, start = now();
    for (int i = 0; i < CALLS; i++) { int64_t m = size(); sum += tiny_select(m, size()); }
    full = now() - start;
    printf("%f\\n", (full - empty) / CALLS);
  }
  return sum == 42;
}
"""


MANY = """\
edition = 1
[project]
name = "many"
version = "0.1.0"
[build]
cache-dir = "cache"
[target.cpu]
arch = "cpu"
[script.each]
template = "each.cu.j2"
kernel = "each"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
params = { number = NUMBERS }
space = { scale = [2] }
[script.each.dispatch]
keys = ["n"]
table = [{ when = "n <= 4", use = { scale = 2 } }]
"""
EACH = """\
extern "C" void each(const float *x, float *y, int n) {
  for (int i = 0; i < n; i++) y[i] = {{ scale }} * x[i] + {{ number }};
}
"""
LOADS = """\
import json, os, sys, time
import numpy as np, tvm_ffi
import tilusbuild

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

def right(number):
    return (kernels[number](x) == 2 * x + number).all()

count, kernels, rows, x = int(sys.argv[1]), [], [], np.arange(9, dtype="float32")
before = resident()
for upto in [n for n in (1, 10, 100, 300) if n < count] + [count]:
    new = range(len(kernels), upto)
    began, cpu = time.perf_counter(), time.process_time()
    kernels += [tilusbuild.load("each", where="cache", number=number) for number in new]
    loaded, called = time.process_time(), time.perf_counter()
    good = sum(map(right, new))
    rows.append({
        "kernels": upto, "load_ms": (loaded - cpu) / len(new) * 1e3,
        "call_ms": (time.process_time() - loaded) / len(new) * 1e3,
        "seconds": time.perf_counter() - began, "mb": resident() - before, "right": int(good),
    })
assert all(map(right, range(count)))
assert sum(row["right"] for row in rows) == count
print(json.dumps(rows))
"""


def build(directory: Path) -> Path:
    """The tree, with a table as tuning would write it."""
    (directory / "tilus.toml").write_text(MANIFEST)
    (directory / "tiny.cu.j2").write_text(TEMPLATE)
    process([*TILUSBUILD, "build"], directory)
    from tilusbuild.dispatch import tables
    from tilusbuild.runtime.device import get_cpu
    from tilusbuild.runtime.script import make_rounding, read_script
    from tilusbuild.runtime.tables import DeviceTable, TableEntry, TableFile

    (path,) = (directory / "cache" / "scripts" / "tiny").iterdir()
    script = read_script(str(path))
    sizes, chance = sorted(set(map(make_rounding("tilus"), range(1, 8193)))), random.Random(0)
    entries = [TableEntry((m, n), chance.randrange(4), 1e-6, (m, n)) for m in sizes for n in sizes]
    table = DeviceTable(get_cpu().make_fingerprint(script.hash), tuple(entries))
    table_file = TableFile((table,))
    (path / "dispatch_table.json").write_bytes(tables.format_json(script, table_file))
    process([*TILUSBUILD, "dispatch", "build", "tiny"], directory)
    return path


def repeated(
    name: str, call: Callable[[], Any], count: int, prepare: Callable[[], Any] = int
) -> Arm:
    """An arm of `count` calls in a loop of this process, after `prepare` and a first call."""

    def run() -> Ran:
        prepare()
        call()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            call()
        return Ran(time.perf_counter() - began, time.process_time() - cpu, 0)

    return Arm(name, run, lambda: True)


def spread(values: list[float]) -> str:
    """The median, and a quarter to three quarters of the rounds."""
    times = sorted(values)
    quarter = len(times) // 4
    return f"{times[len(times) // 2]:.2f} ({times[quarter]:.2f} to {times[-1 - quarter]:.2f})"


def calls(directory: Path, path: Path, rounds: int, count: int) -> list[dict[str, object]]:
    """Calls and selections in this process."""
    import numpy as np
    import tvm_ffi

    import tilusbuild

    kernel = tilusbuild.load("tiny", where=directory / "cache", strict=True)
    chosen = kernel.select(m=100, n=100)
    library = f"programs/{kernel.programs[chosen.program].hash}/module/lib.so"
    bare = tvm_ffi.load_module(str(directory / "cache" / library))["launch"]
    in_c = tvm_ffi.load_module(str(path / "dispatch" / "libtiny.so"))["launch"]
    x, y = np.ones((100, 100), "float32"), np.empty((100, 100), "float32")
    kinds: list[tuple[str, Any, Any]] = [("NumPy", x, y)]
    kinds.append(("tvm-ffi tensors", tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y)))
    try:
        import torch
    except ImportError:
        print("torch is not installed: its rows are missing")
    else:
        kinds.append(("torch", torch.from_numpy(x), torch.from_numpy(y)))
    reports = []
    for kind, a, b in kinds:
        arms = [
            repeated("the program's own call", partial(bare, a, b), count),
            repeated("Kernel(...)", partial(kernel, a, b), count),
            repeated("the C dispatcher's packed call", partial(in_c, a, b), count),
        ]
        alternate(arms, rounds)
        if y[0, 0] != 1 + int(chosen.schedule["variant"]):
            raise AssertionError("another program ran than was selected")
        reports.append(report(f"{count} calls, {kind}", arms))
        for arm in arms[1:]:
            pairs = zip(arm.runs, arms[0].runs, strict=True)
            print(
                f"  {arm.name}: {spread([(a.cpu - b.cpu) / count * 1e6 for a, b in pairs])} µs more"
            )
    reports += forms(kernel, kinds, rounds, count)
    reports += options_of_a_call(directory, kernel, kinds, rounds, count)
    arms = [repeated("Kernel.select", lambda: kernel.select(m=100, n=100), count)]
    alternate(arms, rounds)
    reports.append(report(f"{count} selections from Python", arms))
    return reports


def forms(kernel: Any, kinds: list[tuple[str, Any, Any]], rounds: int, count: int) -> list[Any]:
    """Calls whose outputs the caller allocates, beside those where the kernel does."""
    reports = []
    for kind, x, y in kinds:
        if kind.startswith("tvm-ffi"):
            continue  # its tensors say no library to allocate with
        make = partial(y.new_empty, (100, 100)) if kind == "torch" else partial(_numpy_like, y)
        arms = [
            repeated("outputs allocated by the caller", partial(_given, kernel, x, make), count),
            repeated("outputs left out", partial(kernel, x), count),
            repeated("all by keyword", partial(_named, kernel, x, make), count),
        ]
        alternate(arms, rounds)
        reports.append(report(f"{count} calls by form, {kind}", arms))
        for arm in arms[1:]:
            pairs = zip(arm.runs, arms[0].runs, strict=True)
            print(f"  {arm.name}: {spread([a.cpu / b.cpu for a, b in pairs])}x")
    return reports


def options_of_a_call(
    directory: Path, kernel: Any, kinds: list[tuple[str, Any, Any]], rounds: int, count: int
) -> list[Any]:
    """Calls with rules of `serves`, and calls that are recorded, beside those without."""
    import tilusbuild

    reports = []
    load = partial(tilusbuild.load, where=directory / "cache")
    served, aligned = load("served"), load("aligned")
    stop = partial(tilusbuild.record, None)
    start = partial(tilusbuild.record, directory / "calls.jsonl")
    for kind, x, y in kinds:
        arms = [
            repeated("neither", partial(kernel, x, y), count, stop),
            repeated("with `serves`", partial(served, x, y), count, stop),
            repeated("with `align`", partial(aligned, x, y), count, stop),
            repeated("recorded", partial(kernel, x, y), count, start),
        ]
        alternate(arms, rounds)
        stop()
        reports.append(report(f"{count} calls by option, {kind}", arms))
        for arm in arms[1:]:
            pairs = zip(arm.runs, arms[0].runs, strict=True)
            print(f"  {arm.name}: {spread([a.cpu / b.cpu for a, b in pairs])}x")
    return reports


def _numpy_like(array: Any) -> Any:
    import numpy as np

    return np.empty(array.shape, dtype=array.dtype)


def _given(kernel: Any, x: Any, make: Callable[[], Any]) -> None:
    kernel(x, make())


def _named(kernel: Any, x: Any, make: Callable[[], Any]) -> None:
    kernel(x=x, y=make())


def in_c(directory: Path, path: Path) -> list[float]:
    """Nanoseconds of a selection in C, a round each."""
    (directory / "main.c").write_text(C)
    library = path / "dispatch" / "libtiny.so"
    words = ["gcc", "-O2", "main.c", f"-I{library.parent}", str(library), "-o", "main"]
    process([*words, f"-Wl,-rpath,{library.parent}"], directory)
    done = subprocess.run([directory / "main"], capture_output=True, text=True, check=True)
    latencies = [float(line) for line in done.stdout.split()]
    print(f"\na selection in C: {spread(latencies)} ns")
    return latencies


def cold(directory: Path, rounds: int) -> dict[str, object]:
    """New processes, with the bytecode that an installed package has."""
    import compileall

    import tilusbuild

    compileall.compile_dir(Path(tilusbuild.__file__).parent, quiet=2)
    load = f"import tilusbuild; k = tilusbuild.load('tiny', where={str(directory / 'cache')!r})"
    # A call needs tvm-ffi, and tvm-ffi imports NumPy where there is one.
    ready = "import numpy as np, tvm_ffi; x = np.ones((4, 4), 'f'); "

    def python(name: str, code: str) -> Arm:
        return Arm(name, lambda: process([sys.executable, "-c", code], directory), lambda: True)

    arms = [
        python("python -c pass", "pass"),
        python("import tilusbuild; load", load),
        python("import tilusbuild; load, select", f"{load}; k.select(m=1, n=1)"),
        python("import numpy, tvm_ffi", ready),
        python("the same; load, a first call", f"{ready}{load}; k(x)"),
    ]
    alternate(arms, rounds)
    result = report("a cold load", arms)
    for name, a, b in (("load", arms[0], arms[1]), ("load and a first call", arms[3], arms[4])):
        pairs = zip(a.runs, b.runs, strict=True)
        print(f"  {name}: {spread([(w.cpu - v.cpu) * 1e3 for v, w in pairs])} ms more")
    return result


def many(directory: Path, kernels: int) -> list[dict[str, float]]:
    """Kernels in one process: what each takes, and what all of them hold."""
    directory.mkdir()
    (directory / "tilus.toml").write_text(MANY.replace("NUMBERS", str(list(range(kernels)))))
    (directory / "each.cu.j2").write_text(EACH)
    process([*TILUSBUILD, "build"], directory)
    ran = process([sys.executable, "-c", LOADS, str(kernels)], directory)
    rows = json.loads(ran.out.splitlines()[-1])
    print(f"\n{kernels} kernels in one process, all right")
    print(f"  {'kernels':>8}{'load, ms':>10}{'call, ms':>10}{'seconds':>10}{'MB':>8}")
    for row in rows:
        numbers = f"{row['load_ms']:10.2f}{row['call_ms']:10.2f}{row['seconds']:10.2f}"
        print(f"  {row['kernels']:8d}{numbers}{row['mb']:8.1f}")
    return list(rows)


def main() -> None:
    options = arguments(__doc__, rounds=40, kernels=1_000)
    rounds, count, kernels = options.rounds, 2_000, options.kernels
    if options.small:
        rounds, count, kernels = 1, 200, 3
    results: dict[str, object] = {}
    with workshop() as directory:
        if rounds:
            path = build(directory)
            results["calls"] = calls(directory, path, rounds, count)
            results["c_selection_ns"] = in_c(directory, path)
            results["cold"] = cold(directory, min(rounds, 11))
        if kernels:
            results["many"] = many(directory / "many", kernels)
    if options.json:
        print(json.dumps({"machine": machine(), **results}))


if __name__ == "__main__":
    main()
