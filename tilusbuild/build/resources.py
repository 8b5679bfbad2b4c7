"""How a build shares the machine: make's jobserver, a limit on the load, memory, niceness.

Under make, a compile beside the first holds one of make's tokens. Elsewhere the tokens are of a
pool of our own, so that the threads of a compiler that asks for tokens (`compile/threads.py`) count
as compiles do. Make's own tokens are not shown to compilers: one that is killed gives none back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tilusbuild.engine.admission import Admission, Memory
from tilusbuild.engine.load import Each, LoadLimit
from tilusbuild.engine.slots import Slots
from tilusbuild.manifest import Settings
from tilusbuild.process.jobserver import Jobserver, Pool, Unusable, announced
from tilusbuild.process.local import LocalRunner


@dataclass(frozen=True, slots=True)
class Manners:
    """What a build asks before it starts a compiler, and what it gives to it."""

    slots: Slots
    admission: Admission
    warnings: tuple[str, ...]
    makeflags: str
    """MAKEFLAGS for compilers with threads of their own."""
    nice: int


@contextmanager
def manners(
    settings: Settings, environment: Mapping[str, str], runner: LocalRunner
) -> Iterator[Manners]:
    """Those of one build; at the end every token that is left is given back."""
    load = settings.load_average.value
    memory = Memory()
    warnings: tuple[str, ...] = ()
    outer: Jobserver | None = None
    with ExitStack() as opened:
        try:
            if (address := announced(environment)) is not None:
                outer = opened.enter_context(Jobserver(address, runner.hold))
        except Unusable as problem:
            warnings = (str(problem),)
        pool = opened.enter_context(Pool(0 if outer else settings.jobs.value - 1))
        yield Manners(
            slots=outer or pool,
            admission=memory if load is None else Each(memory, LoadLimit(load)),
            warnings=warnings,
            makeflags=pool.makeflags,
            nice=settings.nice.value,
        )
