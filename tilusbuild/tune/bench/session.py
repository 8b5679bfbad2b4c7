"""Answers, from the log as far as it goes and then from the bench, under a budget.

What a tuning does next follows from the answers that it has got, and from nothing else: neither
from the clock, nor from whether an answer was measured or read. So a tuning that was interrupted
and goes on asks the same questions in the same order, and ends where an uninterrupted one would.
The budget, too, counts what the log says an answer cost.

The log has one JSON object a line, appended as it is measured. A line is an answer, known by its
case, its program, what was asked and the how-many-eth time:

    {"case": …, "program": …, "what": "sample", "number": 3, "status": "ok", "seconds": 1.2e-05, …}

Other lines say which device and which sizes that was, for people and for `--import`. A line that is
cut short, as a kill or a full disk may leave the last one, counts for nothing and harms no other.
A log may come from another machine (`tune/importing.py`): every value is checked as it is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilusbuild.runtime.durations import parse_duration
from tilusbuild.runtime.regular import open_regular, read_bytes
from tilusbuild.tune.bench.bench import (
    CRASH,
    INCORRECT,
    LAUNCH_ERROR,
    OK,
    TIMEOUT,
    Answer,
    Bench,
)
from tilusbuild.tune.bench.work import Candidate, Case, Scalar, Work


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent; None is without end. A run is one check or one sample."""

    seconds: float | None = None
    runs: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of a duration, as `90s` or `1h30m`, or of a number of runs. Raises
        `ValueError`."""
        if text.isascii() and text.isdigit():
            return cls(runs=int(text))
        try:
            return cls(seconds=parse_duration(text))
        except ValueError:
            right = "write 90s, 5m, 1h30m, or a number of runs"
            raise ValueError(f'"{text}" is not a budget: {right}') from None


@dataclass(slots=True)
class BudgetSpent:
    """What was spent."""

    seconds: float = 0.0
    runs: int = 0


class Quota:
    """The part of a budget that one case may use: an equal share of what is left."""

    def __init__(self, budget: Budget, spent: BudgetSpent, cases_left: int) -> None:
        self._spent = spent
        self._shares = {
            name: max(0.0, whole - getattr(spent, name)) / cases_left
            for name, whole in asdict(budget).items()
            if whole is not None
        }
        self.renew()

    def renew(self) -> None:
        """Have the same again, for a case that is decided again: most of it is answered."""
        self._from = replace(self._spent)

    @property
    def is_limited(self) -> bool:
        return bool(self._shares)

    @property
    def used(self) -> float:
        """Return the share that is spent: 0 at first, 1 and more when nothing is left."""
        shares = [0.0]
        for name, share in self._shares.items():
            part = getattr(self._spent, name) - getattr(self._from, name)
            shares.append(part / share if share > 0 else 1.0)
        return max(shares)


@dataclass(slots=True)
class ProgramRecord:
    """What is known of a program for a case."""

    samples: list[float] = field(default_factory=list)
    refused: tuple[str, str] | None = None
    """Status and reason, once it is out."""
    condemned: bool = False
    """Whether it is out at all sizes."""
    error: float = 0.0
    """The largest absolute error that a check found."""


ROUNDS = 32
"""How often those that are nearly the best are sampled."""


class TuningSession:
    """A tuning's questions. `listen` is called with each answer, and whether it was only read;
    `rounds` is how often those that are nearly the best are sampled."""

    def __init__(
        self,
        log: SampleLog,
        bench: Bench,
        budget: Budget,
        listen: Callable[[Answer, bool], None] = lambda *_: None,
        *,
        rounds: int = ROUNDS,
    ) -> None:
        self.log = log
        self.budget = budget
        self.rounds = rounds
        self.spent = BudgetSpent()
        self._bench = bench
        self._listen = listen
        self._asked: dict[tuple[str, str, str], int] = {}

    def quota(self, cases_left: int) -> Quota:
        """For the next case, when so many are left."""
        return Quota(self.budget, self.spent, cases_left)

    def begin(self) -> None:
        """Ask from the first question on: a case that is decided again has the same answers."""
        self._asked.clear()

    def check(self, case: Case, program: Candidate, record: ProgramRecord) -> bool:
        """Return whether the program computes right."""
        answer = self._answer(case, program, "check", lambda n: self._bench.check(case, program, n))
        record.error = max(record.error, answer.error)
        if answer.status != OK:
            record.refused, record.condemned = (answer.status, answer.why), answer.condemns
        return answer.status == OK

    def sample(
        self, case: Case, program: Candidate, record: ProgramRecord, expected: float
    ) -> bool:
        """Add a sample; False when there is none."""
        answer = self._answer(
            case, program, "sample", lambda n: self._bench.sample(case, program, n, expected)
        )
        if answer.status != OK or answer.seconds is None:
            record.refused, record.condemned = (answer.status, answer.why), answer.condemns
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
        self._listen(answer, replayed)
        return answer


_STATUSES = {status: status for status in (OK, INCORRECT, CRASH, TIMEOUT, LAUNCH_ERROR)}

Key = tuple[str, str, str, int]
"""Case, program, "check" or "sample", number."""


def lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield every whole object of a log; none without a file. Raises `OSError`."""
    with suppress(FileNotFoundError):
        for line in read_bytes(path).split(b"\n"):
            with suppress(ValueError):
                yield read_line(line)


def read_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises `ValueError`."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("malformed: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("malformed: it is not an object")
    return value


def answers(rows: Iterable[Mapping[str, Any]]) -> dict[Key, Answer]:
    """Return the answers among lines; of two to the same question the first, which was built on."""
    known: dict[Key, Answer] = {}
    for line in rows:
        with suppress(ValueError):
            key, answer = read_answer(line)
            known.setdefault(key, answer)
    return known


def read_answer(line: Mapping[str, Any]) -> tuple[Key, Answer]:
    """Return the question and the answer of a line. Raises `ValueError` for any other line."""
    try:
        key = (str(line["case"]), str(line["program"]), str(line["what"]), int(line["number"]))
        seconds = line["seconds"]
        return key, Answer(
            status=_STATUSES[line["status"]],
            cost=_time(line["cost"]),
            seconds=None if seconds is None else _time(seconds),
            why=str(line["why"]),
            error=float(line.get("error", 0.0)),
            note=str(line["note"]),
            faulted=line.get("faulted") is True,
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"malformed: {error}") from None


def _time(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} is not a time")
    return seconds


class SampleLog:
    """A log at `path`, made with its directory when the first line is written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.known = answers(lines(path))
        self._handle = -1

    def add(self, key: Key, answer: Answer) -> None:
        """Append an answer. Raises `OSError`."""
        case, program, what, number = key
        row = {"case": case, "program": program, "what": what, "number": number, **asdict(answer)}
        self.note(row)
        self.known[key] = answer

    def note(self, value: Mapping[str, Any]) -> None:
        """Append any line, by one write. Raises `OSError`."""
        if self._handle < 0:
            self._handle = self._open()
        os.write(self._handle, json.dumps(value, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> int:
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        handle = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")  # end what a kill cut short, so that the next line is whole
        return handle


RUN, CASE = "run", "case"
"""What the two kinds of notes in a log are about."""


@dataclass(frozen=True, slots=True)
class RunNote:
    """What a log says of a tuning that began."""

    script: str
    script_hash: str
    programs: tuple[int, ...]
    device: Mapping[str, Any]
    """`kind`, `name`, `arch`, `id` and `driver`."""
    cases: int
    """How many sizes the tuning was asked for."""
    judge: str


@dataclass(frozen=True, slots=True)
class CaseNote:
    """What a log says of a case that began."""

    case: str
    sizes: Mapping[str, Scalar]
    integers: Mapping[str, int]


def read_run(line: Mapping[str, Any]) -> RunNote:
    """Return a line that `run_note` made. Raises `ValueError` for any other."""
    try:
        device = {name: _of(str, line["device"][name]) for name in ("kind", "name", "arch", "id")}
        return RunNote(
            script=_of(str, line["script"]),
            script_hash=_of(str, line["script_hash"]),
            programs=tuple(_of(int, index) for index in line["programs"]),
            device={**device, "driver": _of(int, line["device"]["driver"])},
            cases=_of(int, line["cases"]),
            judge=_of(str, line.get("judge", "")),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"malformed: {error}") from None


def read_case_note(line: Mapping[str, Any]) -> CaseNote:
    """Return a line about a case. Raises `ValueError` for any other."""
    try:
        integers = {name: _of(int, value) for name, value in line["integers"].items()}
        sizes = {name: _of((int, float, str), value) for name, value in line["sizes"].items()}
        return CaseNote(_of(str, line["case"]), sizes, integers)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"malformed: {error}") from None


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.60} has another type")
    return value


def run_note(work: Work, device: Mapping[str, Any], cases: int) -> dict[str, Any]:
    """Return the log's line for a tuning that begins."""
    return {
        "what": RUN,
        "script": work.script,
        "script_hash": work.script_hash,
        "programs": [program.index for program in work.programs],
        "device": {name: device[name] for name in ("kind", "name", "arch", "id", "driver")},
        "cases": cases,
        "judge": work.judge,
    }


def integers(case: Case) -> dict[str, Scalar]:
    """Return the whole numbers of a call: what dispatch goes by."""
    return {a.name: a.value for a in case.arguments if isinstance(a.value, int)}


def case_note(case: Case) -> dict[str, Any]:
    """Return the log's line for a case that begins."""
    return {"what": CASE, "case": case.digest, "sizes": case.sizes, "integers": integers(case)}
