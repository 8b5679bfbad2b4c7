"""Answers, from the log as far as it goes and then from the bench, under a budget.

What a tuning does next follows from the answers that it has got, and from nothing else: neither
from the clock, nor from whether an answer was measured or read. So a tuning that was interrupted
and goes on asks the same questions in the same order, and ends where an uninterrupted one would.
The budget, too, counts what the log says an answer cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilusbuild.tune.bench.bench import OK, Answer, Bench
from tilusbuild.tune.bench.log import Key, SampleLog
from tilusbuild.tune.bench.work import Candidate, Case


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent; None is without end. A run is one check or one sample."""

    seconds: float | None = None
    runs: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`90s`, `5m`, `2h`, or a number of runs. Raises `ValueError`."""
        units = {"s": 1.0, "m": 60.0, "h": 3600.0}
        number, unit = (text[:-1], text[-1:]) if text[-1:] in units else (text, "")
        if not number.isascii() or not number.replace(".", "", 1).isdigit():
            raise ValueError(f'"{text}" is not a budget: write 90s, 5m, 2h, or a number of runs')
        if unit:
            return cls(seconds=float(number) * units[unit])
        if "." in number:
            raise ValueError(f'"{text}" is not a budget: a number of runs is whole')
        return cls(runs=int(number))


@dataclass(slots=True)
class BudgetSpent:
    """What was spent."""

    seconds: float = 0.0
    runs: int = 0


class Quota:
    """The part of a budget that one case may use: an equal share of what is left."""

    def __init__(self, budget: Budget, spent: BudgetSpent, cases_left: int) -> None:
        self._spent = spent
        self._from = BudgetSpent(spent.seconds, spent.runs)
        self._seconds = self._runs = None  # type: float | None
        if budget.seconds is not None:
            self._seconds = max(0.0, budget.seconds - spent.seconds) / cases_left
        if budget.runs is not None:
            self._runs = max(0, budget.runs - spent.runs) / cases_left

    @property
    def is_limited(self) -> bool:
        return self._seconds is not None or self._runs is not None

    @property
    def used(self) -> float:
        """Return the share that is spent: 0 at first, 1 and more when nothing is left."""
        shares = [0.0]
        if self._seconds is not None:
            shares.append(_share(self._spent.seconds - self._from.seconds, self._seconds))
        if self._runs is not None:
            shares.append(_share(self._spent.runs - self._from.runs, self._runs))
        return max(shares)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0


@dataclass(slots=True)
class ProgramRecord:
    """What is known of a program for a case."""

    samples: list[float] = field(default_factory=list)
    refused: tuple[str, str] | None = None
    """Status and reason, once it is out."""


ROUNDS = 32
"""How often those that are nearly the best are sampled."""


class TuningSession:
    """A tuning's questions. `tell` is told of each answer: case, program, what, answer, replayed;
    `rounds` is how often those that are nearly the best are sampled."""

    def __init__(
        self,
        log: SampleLog,
        bench: Bench,
        budget: Budget,
        tell: Callable[[Case, Candidate, str, Answer, bool], None] = lambda *_: None,
        *,
        rounds: int = ROUNDS,
    ) -> None:
        self.log = log
        self.budget = budget
        self.rounds = rounds
        self.spent = BudgetSpent()
        self._bench = bench
        self._tell = tell
        self._asked: dict[tuple[str, str, str], int] = {}

    def quota(self, cases_left: int) -> Quota:
        """For the next case, when so many are left."""
        return Quota(self.budget, self.spent, cases_left)

    def check(self, case: Case, program: Candidate, record: ProgramRecord) -> bool:
        """Return whether the program computes right."""
        answer = self._answer(case, program, "check", lambda n: self._bench.check(case, program, n))
        if answer.status != OK:
            record.refused = (answer.status, answer.why)
        return answer.status == OK

    def sample(
        self, case: Case, program: Candidate, record: ProgramRecord, expected: float
    ) -> bool:
        """Add a sample; False when there is none."""
        answer = self._answer(
            case, program, "sample", lambda n: self._bench.sample(case, program, n, expected)
        )
        if answer.status != OK or answer.seconds is None:
            record.refused = (answer.status, answer.why)
            return False
        record.samples.append(answer.seconds)
        return True

    def _answer(
        self, case: Case, program: Candidate, what: str, measure: Callable[[int], Answer]
    ) -> Answer:
        question = (case.digest, program.hash, what)
        number = self._asked.get(question, 0)
        self._asked[question] = number + 1
        key: Key = (*question, number)
        answer = self.log.known.get(key)
        replayed = answer is not None
        if answer is None:
            answer = measure(number)
            self.log.add(key, answer)
        self.spent.seconds += answer.cost
        self.spent.runs += 1
        self._tell(case, program, what, answer, replayed)
        return answer
