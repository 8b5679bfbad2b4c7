"""A bench that plays recorded answers, and work made of nothing."""

import hashlib
import itertools
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilusbuild.tune.bench.bench import Answer
from tilusbuild.tune.bench.work import CallScalar, Candidate, Case, ProgramSource, Work

Seconds = Callable[[Candidate], "float | str"]
"""The true time of a program, or the status that it ends with."""


class Killed(Exception):  # noqa: N818 - an event
    """The recorded bench was told to stop here."""


@dataclass
class Recorded:
    """A bench whose answers follow from case, program and number alone, as recorded ones do.

    `noise` is the greatest share by which a sample is off. `lives` is how many answers it gives.
    """

    seconds: Seconds
    noise: float = 0.03
    lives: int | None = None
    first_factors: Mapping[int, float] = field(default_factory=dict)
    """How many times its true time a program's first sample has, by its number."""
    asked: list[tuple[str, int, str, int]] = field(default_factory=list)

    def check_program(self, case: Case, program: Candidate, number: int) -> Answer:
        self._live(case, program, "check", number)
        true = self.seconds(program)
        if isinstance(true, str) and not (true == "flaky" and number == 0):
            return Answer("incorrect" if true == "flaky" else true, 0.01, why="as recorded")
        return Answer("ok", 0.01)

    def time_program(self, case: Case, program: Candidate, number: int, expected: float) -> Answer:
        self._live(case, program, "sample", number)
        true = self.seconds(program)
        if isinstance(true, str):
            true = 1e-6  # a flaky program is quick
        name = f"{case.digest} {program.hash} {number}".encode()
        off = random.Random(hashlib.sha256(name).digest()).uniform(-1, 1) * self.noise
        factor = self.first_factors.get(program.index, 1.0) if number == 0 else 1.0
        return Answer("ok", 0.001 + true, true * (1 + off) * factor)

    def close(self) -> None:
        """Do nothing: no process runs."""

    def _live(self, case: Case, program: Candidate, what: str, number: int) -> None:
        if self.lives is not None and len(self.asked) >= self.lives:
            raise Killed
        self.asked.append((case.digest, program.index, what, number))


class RecordedSource(ProgramSource):
    """Programs that have no library. Those in `broken` cannot be built. With `ahead` programs are
    built as they are asked for: `built` has their numbers, in order."""

    def __init__(self, ahead: int = 0, broken: Container[int] = (), built: Sequence[int] = ()):
        self.ahead = ahead
        self.broken = broken
        self.built = list(built)

    def build_ahead(
        self, programs: Iterable[Candidate], limit: float, on_build: Callable[[list[str]], None]
    ) -> None:
        unbuilt = [p for p in programs if self.ahead and p.index not in self.built]
        if missing := unbuilt[: max(0, int(limit))]:
            on_build([program.hash for program in missing])
            self.built += [program.index for program in missing]

    def take_program(self, program: Candidate) -> tuple[Candidate | None, str]:
        assert not self.ahead or program.index in self.built
        return (None, "does not compile") if program.index in self.broken else (program, "")


def make_work(**parameters: Sequence[CallScalar]) -> Work:
    """Every combination of the parameters' values, the first slowest."""
    names = list(parameters)
    programs = tuple(
        Candidate(
            index,
            hashlib.sha256(repr(values).encode()).hexdigest(),
            f"/none/{index}.so",
            dict(zip(names, values, strict=True)),
        )
        for index, values in enumerate(itertools.product(*parameters.values()))
    )
    groups = tuple((name,) for name in names)
    return Work(None, groups, programs)


def make_case(name: str = "case", **sizes: int) -> Case:
    return Case(name, sizes, (), cold=True)
