"""What `-Xptxas -v` prints about each kernel, spills among it: the one thing a cubin does not hold.

The log is for people and its lines differ a little between releases, so what a line does not say
is 0. The functions that a kernel calls are printed after it; their spills are the kernel's, since
its threads pay for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>[^']+)' for '(?P<arch>[^']+)'")
_FRAME = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.ASCII
)
_USED = re.compile(r"Used (\d+) registers", re.ASCII)
_BARRIERS = re.compile(r"used (\d+) barriers", re.ASCII)
_STACK = re.compile(r"(\d+) bytes cumulative stack size", re.ASCII)
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem", re.ASCII)


@dataclass(frozen=True, slots=True)
class PtxasUsage:
    """What ptxas said about one kernel for one architecture. Sizes are bytes, of a thread's stack
    and spills, and of a block's static shared memory (without what the driver reserves)."""

    arch: str
    kernel: str
    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    static_smem: int = 0
    barriers: int = 0

    @property
    def spill_bytes(self) -> int:
        return self.spill_stores + self.spill_loads


def parse_ptxas(log: str) -> tuple[PtxasUsage, ...]:
    """Return the kernels of a compiler's log, in its order. A log without any has none."""
    found: list[PtxasUsage] = []
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            found.append(PtxasUsage(entry["arch"], entry["kernel"]))
        elif not found:
            continue
        elif frame := _FRAME.search(line):
            found[-1] = _with_frame(found[-1], *(int(number) for number in frame.groups()))
        elif used := _USED.search(line):
            found[-1] = _with_use(found[-1], int(used[1]), line)
    return tuple(found)


def _with_frame(kernel: PtxasUsage, stack: int, stores: int, loads: int) -> PtxasUsage:
    return replace(
        kernel,
        stack=max(kernel.stack, stack),
        spill_stores=kernel.spill_stores + stores,
        spill_loads=kernel.spill_loads + loads,
    )


def _with_use(kernel: PtxasUsage, registers: int, line: str) -> PtxasUsage:
    barriers, stack, smem = (pattern.search(line) for pattern in (_BARRIERS, _STACK, _SMEM))
    return replace(
        kernel,
        registers=registers,
        stack=max(kernel.stack, int(stack[1]) if stack else 0),
        static_smem=int(smem[1]) if smem else 0,
        barriers=int(barriers[1]) if barriers else 0,
    )
