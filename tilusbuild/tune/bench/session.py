"""Answers, from the log as far as it goes and then from a bench, under a budget.

The questions of a case follow from its answers and from the cases that were decided before it, and
from nothing else: neither from the clock, nor from whether an answer was measured or read. The note
of a case in the log says which cases were under way on other devices. So a tuning that was
interrupted and goes on asks the same questions of each case, and ends where an uninterrupted one
would. The budget, too, counts what the log says an answer cost.

The log has one JSON object a line, appended as it is measured. A line is an answer, known by its
case, its program, what was asked and the how-many-eth time:

    {"case": …, "program": …, "what": "sample", "number": 3, "status": "ok", "seconds": 1.2e-05, …}

Other lines say which device and which sizes that was, for people and for `--import`. A line that is
cut short, as a kill or a full disk may leave the last one, counts for nothing and harms no other.

A program is built when a search wants it, or ahead of that. A line with the hashes of the programs
comes before they are built, so that a resumed tuning, which has them in the cache, counts the same
compiles. The answer of a compile costs the time for which the device waited.
A log may come from another machine: `tune/importing.py` checks every value.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tilusbuild.errors import input_error
from tilusbuild.runtime.durations import parse_duration
from tilusbuild.runtime.regular import append_bytes, read_bytes
from tilusbuild.tune.bench.bench import (
    CRASH,
    INCORRECT,
    LAUNCH_ERROR,
    NOT_BUILT,
    OK,
    TIMEOUT,
    Answer,
    Bench,
)
from tilusbuild.tune.bench.work import CallScalar, Candidate, Case, ProgramSource, Work

if TYPE_CHECKING:
    from tilusbuild.runtime.script import Script


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on time or on runs (compiles, checks and samples) of a tuning; None is without
    limit."""

    seconds: float | None = None
    runs: float | None = None

    @classmethod
    def parse_budget(cls, text: str) -> Budget:
        """Return the budget of `90s`, `1h30m` or a number of runs. Raises `InputError`."""
        if text.isascii() and text.isdigit():
            return cls(runs=int(text))
        try:
            return cls(seconds=parse_duration(text))
        except ValueError:
            right = "write 90s, 5m, 1h30m, or a number of runs"
            raise input_error(f'--budget "{text}" is not a budget: {right}') from None

    def divide_rest(self, spent: Sequence[Quota], cases: int, devices: int) -> Budget:
        """Return the share of one of the cases that are not decided, of which there are `cases`.
        `spent` is that of the decided ones; `devices` measure at the same time."""
        # A share is of the budget that remains: what an easy case leaves goes to the later ones.
        seconds, runs = self.seconds, self.runs
        if seconds is not None:
            seconds = max(0.0, devices * seconds - sum(quota.seconds for quota in spent)) / cases
        if runs is not None:
            runs = max(0.0, runs - sum(quota.runs for quota in spent)) / cases
        return Budget(seconds, runs)


@dataclass(slots=True)
class Quota:
    """The share of a budget that one case may use, and the seconds and runs that it has used."""

    share: Budget
    seconds: float = 0.0
    runs: int = 0

    @property
    def is_limited(self) -> bool:
        """Return whether there is a limit at all."""
        return self.share != Budget()

    @property
    def used_share(self) -> float:
        """Return the used part of the share: 0 at first, 1 or more when it is used up."""
        pairs = ((self.seconds, self.share.seconds), (self.runs, self.share.runs))
        # The share is 0 if earlier cases overran the budget: then it is used up.
        used_shares = (used / share if share else 1.0 for used, share in pairs if share is not None)
        return max(used_shares, default=0.0)


@dataclass(slots=True)
class ProgramRecord:
    """The samples and the result of a program in one case."""

    program: Candidate
    samples: list[float] = field(default_factory=list)
    failure: Answer | None = None
    """The answer that put it out."""
    error: float = 0.0
    """The largest absolute error that a check found."""


ROUNDS = 32
"""Samples of each program that is nearly the best, unless a setting says another number."""


@dataclass(slots=True)
class TuningSession:
    """The benches of a tuning, one for each device, with one log and one budget."""

    log: SampleLog
    benches: Sequence[Bench]
    budget: Budget
    source: ProgramSource = field(default_factory=ProgramSource)
    on_answer: Callable[[Answer, bool], None] = lambda *_: None
    """Called with each answer, and whether the log had it; by one thread at a time."""
    on_lost: Callable[[str], None] = lambda _: None
    """Called with the reason when a device can no longer be used, and others go on."""
    rounds: int = ROUNDS
    """Samples of the programs that are nearly the best."""
    compile_credit: int = 0
    """How many runs were spent more than compiles began."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note_compiles(self, hashes: Sequence[str]) -> None:
        """Log that these programs are about to be compiled. The caller has the lock."""
        self.compile_credit -= len(hashes)
        self.log.append_line({"what": COMPILE, "programs": list(hashes)})
        self.log.compiles.update(hashes)


_Measure: TypeAlias = Callable[[Case, Candidate, int], Answer]


class CaseSession:
    """Answers the questions of a case from the log, or else from a bench, and counts their cost in
    its quota, a share of the budget."""

    def __init__(self, tuning: TuningSession, bench: Bench, case: Case, share: Budget) -> None:
        self.case = case
        self.rounds = tuning.rounds
        self.source = tuning.source
        self.quota = Quota(share)
        self._tuning = tuning
        self._bench = bench
        self._question_counts: dict[tuple[str, str], int] = {}

    def build_ahead(self, programs: Iterable[Candidate]) -> None:
        """Have the programs built that a search wants next, in this order, as far as the tuning's
        `compile_credit` allows."""
        tuning = self._tuning
        with tuning.lock:
            limit = tuning.compile_credit + 2 * self.source.ahead
            self.source.build_ahead(programs, limit, tuning.note_compiles)

    def take_program(self, program: Candidate) -> Candidate | None:
        """Return a program when it is built; None if it cannot be built. A compile for this tuning
        is a run of the first case that takes the program."""
        tuning, log = self._tuning, self._tuning.log
        with tuning.lock:
            # Whatever the credit is: its answer is one more run.
            self.source.build_ahead([program], 1, tuning.note_compiles)
            is_first = program.hash in log.compiles
            log.compiles.discard(program.hash)
        start = time.monotonic()
        built, why = self.source.take_program(program)
        answer = Answer(OK if built else NOT_BUILT, time.monotonic() - start, why=why)
        if is_first or (self.case.digest, program.hash, COMPILE, 0) in log.answers:
            self._answer_question(program, COMPILE, lambda *_: answer)
        return built

    def check_program(self, record: ProgramRecord) -> bool:
        """Check a program, and return whether it is right. Set the error, and the failure of a
        wrong program, in its record."""
        check = partial(self._measure, self._bench.check_program)
        answer = self._answer_question(record.program, "check", check)
        record.error = max(record.error, answer.error)
        if answer.status != OK:
            record.failure = answer
        return answer.status == OK

    def time_program(self, record: ProgramRecord, expected: float) -> bool:
        """Take a sample of a program, and return whether that succeeded. Add the sample, or set the
        failure, in its record. `expected` is as for `DeviceBench.time_program`."""
        sample = partial(self._measure, partial(self._bench.time_program, expected=expected))
        answer = self._answer_question(record.program, "sample", sample)
        if answer.status != OK or answer.seconds is None:
            record.failure = answer
            return False
        record.samples.append(answer.seconds)
        return True

    def _measure(self, measure: _Measure, case: Case, program: Candidate, number: int) -> Answer:
        """Return the bench's answer, which no compiler disturbs."""
        with self.source.pause_builds():
            return measure(case, program, number)

    def _answer_question(self, program: Candidate, kind: str, measure: _Measure) -> Answer:
        """Return the logged answer to a question, else measure and log it. Count the question and
        its cost, and call `on_answer`."""
        number = self._question_counts.get((program.hash, kind), 0)
        self._question_counts[program.hash, kind] = number + 1
        # The third sample of a program is the third in the log, whenever it was taken.
        key: QuestionKey = (self.case.digest, program.hash, kind, number)
        tuning = self._tuning
        logged = tuning.log.answers.get(key)
        answer = measure(self.case, program, number) if logged is None else logged
        # The cost of a logged answer counts, too: a resumed tuning ends where an uninterrupted one
        # would.
        self.quota.seconds += answer.cost
        self.quota.runs += 1
        with tuning.lock:
            if logged is None:
                tuning.log.append_answer(key, answer)
                tuning.compile_credit += 1
            tuning.on_answer(answer, logged is not None)
        return answer


_STATUSES = {status: status for status in (OK, INCORRECT, CRASH, TIMEOUT, LAUNCH_ERROR, NOT_BUILT)}

QuestionKey = tuple[str, str, str, int]
"""Case, program, "check", "sample" or "compile", number."""

COMPILE = "compile"


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield the object in each line of a log; lines of another form are skipped. Yield nothing
    without a file. Raises `OSError`."""
    with suppress(FileNotFoundError):
        for line in read_bytes(path).split(b"\n"):
            with suppress(ValueError):
                yield parse_line(line)


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the object in a line. Raises `ValueError`."""
    # `json` recurses: a line of brackets alone would end the whole import.
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("malformed: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("malformed: it is not an object")
    return value


def collect_answers(rows: Iterable[Mapping[str, Any]]) -> dict[QuestionKey, Answer]:
    """Return the answers in these rows by question; of two to the same question the first. Other
    rows are skipped."""
    answers: dict[QuestionKey, Answer] = {}
    for row in rows:
        with suppress(ValueError):
            key, answer = parse_answer(row)
            # The first, as the later questions followed from it.
            answers.setdefault(key, answer)
    return answers


def parse_answer(line: Mapping[str, Any]) -> tuple[QuestionKey, Answer]:
    """Return the question and the answer in a line. Raises `ValueError` for any other line."""
    try:
        key = (str(line["case"]), str(line["program"]), str(line["what"]), int(line["number"]))
        seconds = line["seconds"]
        return key, Answer(
            status=_STATUSES[line["status"]],
            cost=_check_seconds(line["cost"]),
            seconds=None if seconds is None else _check_seconds(seconds),
            why=str(line["why"]),
            error=float(line.get("error", 0.0)),
            note=str(line["note"]),
            dropped=tuple(map(str, line.get("dropped", ()))),
            faulted=line.get("faulted") is True,
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"malformed: {error}") from None


def _check_seconds(value: object) -> float:
    """Return a time in seconds. Raises `ValueError` for a negative, infinite or other value."""
    seconds = float(value)  # type: ignore[arg-type]
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} is not a time")
    return seconds


class SampleLog:
    """A log at `path`. The file and its directory are made with the first line."""

    def __init__(self, path: str) -> None:
        self.path = path
        rows = list(read_lines(path))
        self.answers = collect_answers(rows)
        self.beside = {
            str(row.get("case")): list(map(str, beside))
            for row in rows
            if row.get("what") == CASE and isinstance(beside := row.get("beside", []), list)
        }
        """By the digest of a case: those that were under way on other devices when it began."""
        self.compiles = {
            str(digest)
            for row in rows
            if row.get("what") == COMPILE and isinstance(row.get("programs"), list)
            for digest in row["programs"]
        } - {program for _, program, kind, _ in self.answers if kind == COMPILE}
        """The hashes of the programs that were compiled for the tuning and not taken yet."""

    def append_answer(self, key: QuestionKey, answer: Answer) -> None:
        """Append an answer. Raises `OSError`."""
        case, program, kind, number = key
        row = {"case": case, "program": program, "what": kind, "number": number, **asdict(answer)}
        self.append_line(row)
        self.answers[key] = answer

    def append_line(self, value: Mapping[str, Any]) -> None:
        """Append an object as a line, by one write. Raises `OSError`."""
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        append_bytes(self.path, json.dumps(value, ensure_ascii=False).encode() + b"\n")


RUN, CASE = "run", "case"
"""What the two kinds of notes in a log are about."""


def format_run_note(
    script: Script, work: Work, device: Mapping[str, Any], cases: int, judge: str
) -> dict[str, Any]:
    """Return the line that begins a tuning of a script at this number of cases."""
    return {
        "what": RUN,
        "script": script.name,
        "script_hash": script.hash,
        "programs": [program.index for program in work.programs],
        "device": {name: device[name] for name in ("kind", "name", "arch", "id", "driver")},
        "cases": cases,
        "judge": judge,
    }


def list_integers(case: Case) -> dict[str, CallScalar]:
    """Return the integer arguments of a call, by name: dispatch depends on these."""
    return {
        argument.name: argument.value
        for argument in case.arguments
        if isinstance(argument.value, int)
    }


def format_case_note(case: Case, beside: Sequence[str]) -> dict[str, Any]:
    """Return the line that begins a case. `beside` has the digests of the cases that are under way
    on other devices."""
    integers = list_integers(case)
    note = {"what": CASE, "case": case.digest, "sizes": case.sizes, "integers": integers}
    return {**note, "beside": list(beside)} if beside else note
