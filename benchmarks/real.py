"""Real projects beside their own builds: `make real`.

Each project comes from its published package, gets the manifest that is below `_real/ports`, and is
built both ways with the same compiler. Printed is, for each: instances, kernels whose machine code
is the same bytes, CPU time, size, what a build with nothing to do takes, and how many compiles an
edit of a header asks for. `--all` builds all instances, which takes hours on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

from _bench import Arm, as_installed, machine, ratio
from _real import (
    cutlass,
    deep_gemm,
    entry_size,
    flash_attention,
    flashinfer,
    kernel_tuner,
    llama_cpp,
    marlin,
    torch_headers,
    world,
)
from _real.project import Measured, Project, measure

_PROJECTS: dict[str, Callable[[int | None], Project]] = {
    "llama.cpp": llama_cpp.prepare,
    "flashinfer-decode": lambda _: flashinfer.prepare("single_decode"),
    "flashinfer-batch-decode": lambda _: flashinfer.prepare("batch_decode"),
    "flashinfer-prefill": lambda _: flashinfer.prepare("single_prefill"),
    "marlin-unit": lambda count: marlin.prepare(count, "unit"),
    "marlin-group": lambda count: marlin.prepare(count, "group"),
    "marlin": lambda count: marlin.prepare(count, "single"),
    "deep-gemm": deep_gemm.prepare,
    "flash-attention": flash_attention.prepare,
    "cutlass": cutlass.prepare,
    "kernel-tuner": lambda count: kernel_tuner.prepare("convolution", count),
    "kernel-tuner-readme": lambda count: kernel_tuner.prepare("readme", count),
}

_ROWS: dict[str, Callable[[int], None]] = {
    "torch-headers": torch_headers.report,
    "entry-size": lambda _: entry_size.report(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "projects", nargs="*", metavar="PROJECT", help=", ".join((*_PROJECTS, *_ROWS))
    )
    parser.add_argument("--instances", type=int, default=6, help="of each project (default: 6)")
    parser.add_argument("--all", action="store_true", help="all instances of all projects")
    parser.add_argument("--rounds", type=int, default=1, help="times both builds run (default: 1)")
    parser.add_argument("-j", dest="jobs", type=int, default=2)
    asked = parser.parse_args()
    unknown = sorted(set(asked.projects) - set(_PROJECTS) - set(_ROWS))
    if unknown:
        parser.error(f"{unknown[0]} is not a project; there are {', '.join((*_PROJECTS, *_ROWS))}")
    world.python()
    as_installed()
    for name in asked.projects or (*_PROJECTS, *_ROWS):
        print(f"{name} …", file=sys.stderr, flush=True)
        if name in _ROWS:
            _ROWS[name](asked.rounds)
        else:
            project = _PROJECTS[name](None if asked.all else asked.instances)
            _print(measure(project, asked.jobs, asked.rounds))
    print(f"\n{machine()}")


def _print(build: Measured) -> None:
    project, noop = build.project, build.noop
    rows = [
        ("compiles, ours and theirs", f"{build.programs}, {project.theirs_compiles}"),
        ("kernels with the same machine code", str(build.code)),
        ("CPU, ours by theirs", f"{ratio(build.ours, build.theirs, 'cpu')} ({_cpu(build)})"),
        ("size, ours by theirs", "{:.2f} ({:,} and {:,} bytes)".format(
            build.sizes[0] / build.sizes[1], *build.sizes)),
        ("nothing to do, CPU", f"{noop[0].cpu * 1e3:.0f} ms, {noop[1].cpu * 1e3:.0f} ms"),
        (
            "an edited header compiles",
            f"{build.again[0]}, {build.again[1]} ({project.header.name})",
        ),
    ]  # fmt: skip
    print(f"\n{project.name}")
    for what, value in rows:
        print(f"  {what:38}{value}", flush=True)


def _cpu(build: Measured) -> str:
    def middle(arm: Arm) -> float:
        return statistics.median(ran.cpu for ran in arm.runs)

    return f"{middle(build.ours):.1f} s and {middle(build.theirs):.1f} s"


if __name__ == "__main__":
    main()
