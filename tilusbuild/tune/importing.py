"""`tune --import`: decide from a log that was written elsewhere, and write the tables.

The log may come from another machine, so it is data: it is read up to `MAX_LOG` bytes, each value
is checked, and a row counts only for a program that a script of this cache has. The decisions are
those of a tuning here (`bench/race.py`) that had got the same answers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, field

from tilusbuild.builder.project import Project
from tilusbuild.dispatch.measurements import find_committed_rows
from tilusbuild.errors import input_error
from tilusbuild.report.text import format_count
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.naming import to_snake_case
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, find_fastest
from tilusbuild.tune.bench.bench import OK, Answer
from tilusbuild.tune.bench.race import (
    Decision,
    Outcome,
    collect_logged_refusals,
    make_outcome,
    make_refused_outcome,
)
from tilusbuild.tune.bench.session import (
    CASE,
    COMPILE,
    RUN,
    ProgramRecord,
    parse_answer,
    parse_line,
)
from tilusbuild.tune.bench.work import CallScalar, Candidate, Case, CaseArgument, Work, make_work
from tilusbuild.tune.tune import TunedInstance, TuningPublisher

MAX_LOG = 1 << 28
"""Bytes of a log."""
# Characters of a text from a log.
_MAX_TEXT = 1000
# Sizes of a call are below: dispatchers hold them in 64 bits.
_MAX_SIZE = 1 << 63


class DeviceNote(Struct, frozen=True):
    """The device that a log is of."""

    kind: str
    name: str
    arch: str
    driver: int


class RunNote(Struct, frozen=True):
    """The line of a log that begins a tuning."""

    script: str
    script_hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    programs: tuple[int, ...]
    device: DeviceNote
    cases: int
    """How many sizes the tuning was asked for."""
    judge: str = ""

    def __post_init__(self) -> None:
        # They reach tables and messages, which people read on a terminal.
        for text in (self.script, self.device.name, self.device.arch, self.judge):
            if len(text) > _MAX_TEXT or not text.isprintable():
                raise ValueError("malformed: a text")


class CaseNote(Struct, frozen=True):
    """The line of a log that begins a case."""

    case: str
    sizes: dict[str, CallScalar]
    integers: dict[str, int]


CaseAnswers = dict[tuple[str, int], Answer]
"""Of one program in one case, by "check" or "sample" and its number."""
# A race ends with a second check of its winner. Numbers count from 0.
_SECOND_CHECK = ("check", 1)


class ScriptLog(Struct):
    """The rows of a log about one script on one device."""

    script: Script
    run: RunNote
    """The last one."""
    cases: dict[str, CaseNote] = field(default_factory=dict)
    """By their sizes: the last case of equal sizes counts."""
    begun: int = 0
    """How many cases the last run has begun."""
    answers: dict[tuple[str, str], CaseAnswers] = field(default_factory=dict)
    """By case and program."""
    rows: list[dict[str, Any]] = field(default_factory=list)


def import_log(project: Project, path: str) -> tuple[list[TunedInstance], list[str]]:
    """Write the tables that follow from a log. Return the tuned instances, and a text for each
    thing that is not finished or not taken over. Raises `InputError` for a log without a usable
    row."""
    skipped: Counter[str] = Counter()
    logs = _read_log(project, path, skipped)
    problems = [f"skipped {format_count(n, 'row')}: {reason}" for reason, n in skipped.items()]
    if not any(log.cases for log in logs):
        raise input_error(
            f"{path} is not a log of `tilusbuild tune`, or nothing was measured",
            hint="\n".join(problems) or None,
        )
    # A program that was wrong on one device is refused on all.
    refusals = collect_logged_refusals(row for log in logs for row in log.rows)
    tuned = [_publish_log(project, log, refusals, problems) for log in logs]
    return tuned, problems


def _read_log(project: Project, path: str, skipped: Counter[str]) -> list[ScriptLog]:
    """Return the usable rows by script and device; count the others by reason in `skipped`. Raise
    `InputError` without the file, and `LoadError` for a damaged script."""
    if not os.path.isfile(path):
        raise input_error(f"no log {path}")
    logs: dict[tuple[object, ...], ScriptLog] = {}
    current: ScriptLog | None = None
    # Rows have no script of their own: they belong to the last row that names one.
    reason = "no row before them names a script"
    for line in filter(None, read_bytes(path, MAX_LOG).split(b"\n")):
        try:
            row = parse_line(line)
            if row.get("what") == RUN:
                current, reason = None, "the row that names their script is malformed"
                run = convert(row, RunNote)
                reason = f"{run.script} {run.script_hash[:12]} is not in this cache"
                script = _find_script(project, run)
                if script is not None:
                    current = logs.setdefault((script.hash, run.device), ScriptLog(script, run))
                    # The same tuning may have been resumed: only its last run says how many sizes
                    # there are.
                    current.run, current.begun = run, 0
                    current.rows.append(row)
                    continue
            if current is None:
                skipped[reason] += 1
            elif row.get("what") == COMPILE:
                continue  # the cost of a compile decides nothing
            elif row.get("what") == CASE:
                _add_case(current, row)
            elif not _add_answer(current, row):
                skipped[f"{current.script.label} does not have the program"] += 1
        except (ValueError, ValidationError):
            skipped["malformed"] += 1
    return list(logs.values())


def _find_script(project: Project, run: RunNote) -> Script | None:
    """Return the script of a run, None where the cache does not have it. Raises `ValueError` for a
    run that cannot be one of it, and `LoadError`."""
    directory = project.cache.script_path(to_snake_case(run.script), run.script_hash)
    if run.script not in project.manifest.scripts or not os.path.isdir(directory):
        return None
    script = read_script(directory)
    if run.device.kind != script.kind or not {*run.programs} <= {*script.programs}:
        raise ValueError("malformed: the script has another kind or other programs")
    return script


def _add_case(log: ScriptLog, row: dict[str, Any]) -> None:
    """Add a case to the log, in place of an earlier case of equal sizes. Raises `ValueError` and
    `ValidationError` for a case that cannot be the script's."""
    note = convert(row, CaseNote)
    if not all(0 <= note.integers.get(key, -1) < _MAX_SIZE for key in log.script.keys):
        raise ValueError("malformed: a size is missing, or is not one")
    label = _to_case(note).label
    # Removed before it is set, so that the case moves to the end of the dictionary.
    log.cases.pop(label, None)
    log.cases[label] = note
    log.begun += 1
    log.rows.append(row)


def _add_answer(log: ScriptLog, row: dict[str, Any]) -> bool:
    """Add an answer to the log, unless the script does not have its program. Return whether it has.
    Raises `ValueError` for a malformed row."""
    (case, program, question, number), answer = parse_answer(row)
    # The log has hashes of programs, which are those of the very code that was measured.
    if program not in log.script.programs.values():
        return False
    # The text reaches tables, too: control characters become blanks.
    why = "".join(c if c.isprintable() else " " for c in answer.why[:_MAX_TEXT])
    # Of two answers to a question the first counts: later questions followed from it.
    answers = log.answers.setdefault((case, program), {})
    answers.setdefault((question, number), replace(answer, why=why))
    log.rows.append({**row, "why": why})
    return True


def _to_case(note: CaseNote) -> Case:
    # Of the arguments a log has the integers only: those that a choice by sizes depends on.
    integers = note.integers.items()
    arguments = tuple(CaseArgument(name, "i64", None, value) for name, value in integers)
    return Case(note.case, note.sizes, arguments, cold=True)


def _publish_log(
    project: Project, log: ScriptLog, refusals: Mapping[str, Refusal], problems: list[str]
) -> TunedInstance:
    """Decide every case of a log, and write the tables. Return the results. Append a message to
    `problems` for each case that is not decided."""
    script, run = log.script, log.run
    device = Device(script.kind, 0, run.device.name, run.device.arch, run.device.driver)
    committed = find_committed_rows(project.manifest, script.name)
    publisher = TuningPublisher(project.cache, script, device, run.judge, committed)
    work = make_work(script, run.programs, ())
    decisions = []
    for note in log.cases.values():
        decision, undecided = _decide_case(log, note, work, refusals)
        if undecided:
            problems.append(f"not finished: {decision.case.label}: {undecided}")
            publisher.add_rejections(note.integers, decision)
        else:
            publisher.add_decision(note.integers, decision)
            decisions.append(decision)
    if log.begun < run.cases:
        problems.append(f"not finished: {run.cases - log.begun} sizes were not begun")
    return publisher.finish_tuning(project, decisions)


def _decide_case(
    log: ScriptLog, note: CaseNote, work: Work, refusals: Mapping[str, Refusal]
) -> tuple[Decision, str]:
    """Return the decision for a case by its logged answers, and the reason why it is not final; ""
    for a final one.

    A decision is final if its winner, that of `find_fastest`, was checked twice, or if all
    programs have an outcome and none is usable.
    """
    programs = work.select_serving(note.integers).programs
    answers = {p.hash: log.answers.get((note.case, p.hash), {}) for p in programs}
    outcomes: list[Outcome] = []
    for program in programs:
        program_answers = [*answers[program.hash].values()]
        outcome = _find_outcome(program, program_answers, refusals.get(program.hash))
        if outcome is not None:
            outcomes.append(outcome)
    seconds_by_number = {
        outcome.program.index: outcome.seconds
        for outcome in outcomes
        if outcome.seconds is not None
    }
    best_number = find_fastest(seconds_by_number)
    winner = next((outcome for outcome in outcomes if outcome.program.index == best_number), None)
    unseen_count = len(programs) - len(outcomes)
    undecided = ""
    if winner is None and unseen_count:
        undecided = f"{format_count(unseen_count, 'program')} not measured, and no other is usable"
    elif winner is not None and _SECOND_CHECK not in answers[winner.program.hash]:
        undecided = f"program {best_number} was not checked again"
    unserved_count = len(work.programs) - len(programs)
    decision = Decision(_to_case(note), winner, tuple(outcomes), unseen_count, unserved_count)
    return decision, undecided


def _find_outcome(
    program: Candidate, answers: list[Answer], refusal: Refusal | None
) -> Outcome | None:
    """Return a program's outcome by its answers; None without a sample, a failure or a refusal."""
    samples = [answer.seconds for answer in answers if answer.seconds is not None]
    failure = next((answer for answer in answers if answer.status != OK), None)
    if failure is None and refusal is not None:
        return make_refused_outcome(program, refusal)
    record = ProgramRecord(program, samples, failure)
    return make_outcome(record, program) if samples or failure else None
