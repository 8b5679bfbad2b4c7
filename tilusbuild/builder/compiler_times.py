"""How long nvcc and NVRTC took for the same programs, so that `plan` and `doctor` can compare them.

Which of the two compiles is a choice about machine code and stays the project's; what the other one
would save is measured here, in builds of this cache. A schedule is known by its place in the plan.
Only a pair of compiles of the same `program.txt`, which says everything but the compiler, counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import counted
from tilusbuild.state.files import sha256_text
from tilusbuild.state.log import StateFile

if TYPE_CHECKING:
    from tilusbuild.engine.interfaces import Job

_COMPILERS = ("nvcc", "NVRTC")
_MARK_DIGITS = 12


@dataclass(frozen=True, slots=True)
class CompilersLine(JsonLine):
    """What both device compilers took for the programs that both have compiled, in seconds."""

    event: ClassVar[str] = "compilers"
    programs: int
    nvcc: float
    nvrtc: float

    def text(self, chosen: str) -> str:
        """Return it as a sentence; `chosen` is the device compiler that builds take now."""
        mine, other = (self.nvcc, self.nvrtc) if chosen == "nvcc" else (self.nvrtc, self.nvcc)
        name = "nvrtc" if chosen == "nvcc" else "nvcc"
        change = "saves" if other < mine else "costs"
        return (
            f'device-compiler = "{name}" {change} {abs(mine - other):.1f} s: {other:.1f} s instead '
            f"of {mine:.1f} s for {counted(self.programs, 'program')} that both have compiled "
            "here; their machine code differs"
        )


class CompilerTimes:
    """`state_dir` is a directory of the cache. `record` may be called from several threads."""

    def __init__(self, state_dir: str) -> None:
        self._file = StateFile(os.path.join(state_dir, "compilers"), "compilers")
        self._guard = threading.Lock()

    def record(self, job: Job, program_txt: str, compiler: str, seconds: float) -> None:
        """Remember a compile that made a library."""
        if compiler not in _COMPILERS:
            return
        mark = sha256_text(program_txt)[:_MARK_DIGITS]
        with self._guard:
            known = _valid(self._file.get(_key(job)))
            self._file.put(_key(job), {**known, compiler: [round(seconds, 3), mark]})

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        with self._guard:
            self._file.save()

    def compared(self, jobs: Iterable[Job] | None = None) -> CompilersLine | None:
        """Return the sums over `jobs`, or over all that is known; None if both compilers have no
        program in common."""
        if jobs is None:
            values = [value for _, value in self._file.items()]
        else:
            values = [self._file.get(key) for key in dict.fromkeys(map(_key, jobs))]
        known = [_valid(value) for value in values]
        pairs = [
            (one["nvcc"][0], one["NVRTC"][0])
            for one in known
            if len(one) == len(_COMPILERS) and one["nvcc"][1] == one["NVRTC"][1]
        ]
        if not pairs:
            return None
        return CompilersLine(
            len(pairs), *(round(sum(each), 3) for each in zip(*pairs, strict=True))
        )


def _key(job: Job) -> str:
    return f"{'/'.join(job.instance)}#{job.index}"


def _valid(value: Any) -> dict[str, tuple[float, str]]:
    """Return the compiles of a record of the file that have the shape of one."""
    found: dict[str, tuple[float, str]] = {}
    for name in _COMPILERS:
        one = value.get(name) if isinstance(value, dict) else None
        if isinstance(one, list | tuple) and len(one) == 2:
            seconds, mark = one
            if isinstance(seconds, int | float) and 0 <= seconds < 1e7 and isinstance(mark, str):
                found[name] = float(seconds), mark
    return found
