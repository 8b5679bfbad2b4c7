"""A whole tuning of one instance: its cases in turn, and the choice for each. Every program is
examined once, and the fast ones run on against each other.

look        correctness, then one sample                      keep what is within 1.25x
    4 rounds    a sample of each in every round                   keep what is within 1.05x
    32 rounds, or as many as are asked for                        the score is the median

All programs are looked at where the budget suffices. Else a random sample comes first, and after it
a local search: the next program is the nearest to the best one that differs from it in one
parameter (or in one group of linked ones), in the order of its values; once there is none, that of
the next best.

Rounds go through the programs there and back, so that a device which slows down or speeds up
treats all alike. Within 1 % of the best score the earliest program wins; it is checked once more,
because a race between threads may show only now.

Before anything is measured the log gets a note of the device, the programs and the judge, and
before each case a note of its sizes. With these and the samples, `--import` makes the same
decisions again (`tune/importing.py`) where the same programs are in a cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tilusbuild.runtime.table_file import Refusal
from tilusbuild.tune.bench.bench import INCORRECT
from tilusbuild.tune.bench.session import (
    CASE,
    RUN,
    ProgramRecord,
    Quota,
    TuningSession,
    answers,
    case_note,
    read_case_note,
    read_run,
)
from tilusbuild.tune.bench.work import Candidate, Case, Scalar, Work

_LOOK, _LAST = (4, 1.25), 1.05
"""Rounds of the first stage, and how much slower than the best may be who takes part in it; then
the same of the last stage, whose rounds are the session's."""
TIE = 0.01


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a program in the end."""

    program: Candidate
    seconds: float | None
    """None for a program that is out."""
    samples: tuple[float, ...]
    status: str
    why: str
    condemned: bool = False
    """Whether it came to something here for which it is chosen nowhere."""
    error: float = 0.0
    """The largest absolute error that a check found."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for one case. `outcomes` are in the order of the programs: those examined, and
    those that are out for what they came to elsewhere."""

    case: Case
    winner: Outcome | None
    outcomes: tuple[Outcome, ...]
    unseen: int
    """Programs that the budget did not suffice to look at."""


class Race:
    """The state of one case. Programs that are `refused`, by hash, take no part."""

    def __init__(
        self,
        session: TuningSession,
        work: Work,
        case: Case,
        quota: Quota,
        refused: Mapping[str, Refusal],
    ) -> None:
        self._session = session
        self._reasons = refused
        self._out = [p for p in work.programs if p.hash in refused]
        programs = tuple(p for p in work.programs if p.hash not in refused)
        self._work = work = replace(work, programs=programs)
        self._case = case
        self._quota = quota
        self._records: dict[int, ProgramRecord] = {}
        self._programs = {program.index: program for program in work.programs}
        self._cut = False

    def run(self, seed: int) -> Decision:
        """Look, race, decide."""
        self._session.begin()
        look_around(self._work, self._quota, self._look, seed)
        most = self._session.rounds
        for rounds, within in ((min(_LOOK[0], most), _LOOK[1]), (most, _LAST)):
            self._rounds(self._within(self._field(), within), rounds)
        winner = self._best()
        while winner is not None and not self._session.check(
            self._case, self._programs[winner], self._records[winner]
        ):
            winner = self._best()
        examined = [self._outcome(index) for index in self._records]
        out = [refused_outcome(p, self._reasons[p.hash]) for p in self._out]
        outcomes = tuple(sorted([*examined, *out], key=lambda each: each.program.index))
        return Decision(
            self._case,
            None if winner is None else self._outcome(winner),
            outcomes,
            len(self._work.programs) - len(self._records),
        )

    def _look(self, program: Candidate) -> float | None:
        record = self._records[program.index] = ProgramRecord()
        right = self._session.check(self._case, program, record)
        if right and self._session.sample(self._case, program, record, 0.0):
            return record.samples[0]
        return None

    def _field(self) -> dict[int, float]:
        """Return the score of everyone who is in, by program."""
        return {
            index: median(record.samples)
            for index, record in self._records.items()
            if record.refused is None and record.samples
        }

    def _within(self, scores: Mapping[int, float], factor: float) -> list[int]:
        bound = min(scores.values(), default=0.0) * factor
        return sorted(index for index, seconds in scores.items() if seconds <= bound)

    def _rounds(self, field: Sequence[int], rounds: int) -> None:
        """Sample everyone until each has so many samples."""
        done = 1
        while done < rounds and self._may_go_on():
            for index in _there_and_back(field, done):
                record = self._records[index]
                if record.refused is None and len(record.samples) <= done:
                    self._sample(index)
            done += 1

    def _best(self) -> int | None:
        return min(self._within(self._field(), 1 + TIE), default=None)

    def _sample(self, index: int) -> None:
        record = self._records[index]
        self._session.sample(self._case, self._programs[index], record, max(record.samples))

    def _may_go_on(self) -> bool:
        self._cut = self._cut or self._quota.used >= 1
        return not self._cut

    def _outcome(self, index: int) -> Outcome:
        record = self._records[index]
        status, why = record.refused or ("ok", "")
        seconds = median(record.samples) if status == "ok" and record.samples else None
        samples = tuple(record.samples)
        program, error = self._programs[index], record.error
        return Outcome(program, seconds, samples, status, why, record.condemned, error)


def refused_outcome(program: Candidate, refusal: Refusal) -> Outcome:
    """Return the outcome of a program that takes no part."""
    why = refusal.text.removeprefix(f"{refusal.status} ")
    return Outcome(program, None, (), refusal.status, why)


def _there_and_back(field: Sequence[int], turn: int) -> Iterable[int]:
    return field if turn % 2 == 0 else reversed(field)


Cases = Callable[[Sequence[int]], Iterable[Case]]
"""Cases by their numbers, each there for as long as it is measured."""


def campaign(
    session: TuningSession,
    work: Work,
    cases: Cases,
    sizes: Sequence[Mapping[str, Any]],
    seed: int,
    done: Callable[[Decision], None],
    known: Mapping[str, Refusal],
) -> list[Decision]:
    """Decide every case; `sizes` are theirs. `done` is called with each decision as soon as it is
    made.

    A program that is condemned at one case takes no part in those after it; a case before it in
    which it was timed is decided again without it, and `done` is called with that too. Who is
    `known` to be refused takes no part from the start; but if that was at some of these sizes, from
    that case on, so that a tuning that goes on asks what it asked before.
    """
    count = len(sizes)
    wanted = [dict(each) for each in sizes]
    out = {digest: r for digest, r in known.items() if dict(r.sizes) not in wanted}
    decisions: dict[int, Decision] = {}
    quotas: dict[int, Quota] = {}
    todo: Sequence[int] = range(count)
    while todo:
        # The cases first, so that they are asked for one more, and clean up after the last.
        for case, number in zip(cases(todo), todo, strict=True):
            if number in quotas:
                quotas[number].renew()
            else:
                quotas[number] = session.quota(count - number)
                session.log.note(case_note(case))
            race = Race(session, work, case, quotas[number], out)
            decisions[number] = decision = race.run(seed)
            out |= _refused_at(decision, known, work.judge)
            done(decision)
        todo = [number for number, decision in decisions.items() if _timed(decision, out)]
    return [decisions[number] for number in sorted(decisions)]


def _refused_at(decision: Decision, known: Mapping[str, Refusal], judge: str) -> dict[str, Refusal]:
    """Return who is refused for what it came to at these sizes, now or before; not who is
    cleared."""
    clear = cleared(decision, known, judge)
    sizes = dict(decision.case.sizes)
    before = {d: r for d, r in known.items() if dict(r.sizes) == sizes and d not in clear}
    return before | {each.program: each for each in condemned(decision, judge)}


def cleared(decision: Decision, known: Mapping[str, Refusal], judge: str) -> list[str]:
    """Return the programs, by hash, that another judge finds right at the very sizes at which they
    were found wrong. Nothing else makes up for a refusal: neither other inputs nor another try."""
    right = {each.program.hash for each in decision.outcomes if each.seconds is not None}
    found = [r for digest, r in known.items() if digest in right]
    return [r.program for r in found if _is_overruled(r, judge, decision.case.sizes)]


def condemned(decision: Decision, judge: str) -> list[Refusal]:
    """Return the programs that are chosen nowhere for what they came to in this case."""
    sizes = dict(decision.case.sizes)
    return [
        Refusal(each.program.hash, each.status, sizes, each.why, judge)
        for each in decision.outcomes
        if each.condemned
    ]


def _timed(decision: Decision, out: Container[str]) -> bool:
    """Return whether a program that is out has a part in a decision: its time, or the bounds that
    it set for others."""
    return any(each.samples and each.program.hash in out for each in decision.outcomes)


def condemned_before(lines: Iterable[Mapping[str, Any]]) -> dict[str, Refusal]:
    """Return who was condemned by what a log says, by hash: also at sizes that are not asked for
    any more. Whom another judge found right at the same sizes afterwards is not among them."""
    found: dict[str, Refusal] = {}
    sizes: dict[str, Mapping[str, Scalar]] = {}
    judge = ""
    for line in lines:
        with suppress(ValueError):
            if line.get("what") == RUN:
                judge = read_run(line).judge
            elif line.get("what") == CASE:
                noted = read_case_note(line)
                sizes[noted.case] = noted.sizes
        for (case, program, _, _), answer in answers([line]).items():
            where = sizes.get(case, {})
            known = found.get(program)
            if answer.condemns:
                found[program] = Refusal(program, answer.status, where, answer.why, judge)
            elif known is not None and _is_overruled(known, judge, where):
                del found[program]
    return found


def _is_overruled(refusal: Refusal, judge: str, sizes: Mapping[str, Any]) -> bool:
    """Return whether a right result at these sizes by this judge makes up for a refusal."""
    if refusal.status != INCORRECT or judge in ("", refusal.judge):
        return False
    return dict(refusal.sizes) == dict(sizes)


SAMPLE_SHARE, LOOK_SHARE = 0.4, 0.8
"""Of a case's quota: for the random sample, and for all first looks; the rest is for the race."""

Look = Callable[[Candidate], "float | None"]
"""The seconds of a first look, or None for a program that is out."""


def look_around(work: Work, quota: Quota, look: Look, seed: int) -> None:
    """Look at programs until all are known or the share of the quota is used."""
    default = [p for p in work.programs if p.index == work.default]
    rest = [p for p in work.programs if p.index != work.default]
    if not quota.is_limited:
        for program in work.programs:
            look(program)
        return
    random.Random(seed).shuffle(rest)  # noqa: S311 - nothing secret
    waiting = [*default, *rest]
    scores: dict[int, float | None] = {}
    while waiting and quota.used < LOOK_SHARE:
        all_fit = quota.used * (len(scores) + len(waiting)) <= LOOK_SHARE * len(scores)
        if quota.used >= SAMPLE_SHARE and not all_fit:
            break
        program = waiting.pop(0)
        scores[program.index] = look(program)
    if waiting:
        _climb(work, [*default, *rest], scores, quota, look)


def _climb(
    work: Work,
    order: Sequence[Candidate],
    scores: dict[int, float | None],
    quota: Quota,
    look: Look,
) -> None:
    """Look at the nearest stranger of the best program that has one; without one, at any."""
    places = places_of(work)
    programs = {program.index: program for program in order}
    around: dict[int, Iterator[int]] = {}
    while quota.used < LOOK_SHARE and len(scores) < len(programs):
        best = sorted((s, i) for i, s in scores.items() if s is not None)
        found = None
        for _, index in best:
            near = around.setdefault(index, nearest(places, index))
            if (found := next((each for each in near if each not in scores), None)) is not None:
                break
        if found is None:
            found = next(index for index in programs if index not in scores)
        scores[found] = look(programs[found])


def linked_groups(work: Work) -> tuple[tuple[str, ...], ...]:
    """Return the parameters of a work's programs; those that change together are one group."""
    columns: dict[tuple[int, ...], list[str]] = {}
    places = places_of(work).values()
    for number, group in enumerate(work.groups):
        columns.setdefault(tuple(place[number] for place in places), []).extend(group)
    return tuple(map(tuple, columns.values()))


def places_of(work: Work) -> dict[int, tuple[int, ...]]:
    """Return where each program is in each group: values count from 0 as they come."""
    seen: list[dict[object, int]] = [{} for _ in work.groups]
    return {
        program.index: tuple(
            known.setdefault(tuple(program.schedule[name] for name in group), len(known))
            for known, group in zip(seen, work.groups, strict=True)
        )
        for program in work.programs
    }


def nearest(places: Mapping[int, tuple[int, ...]], index: int) -> Iterator[int]:
    """Yield the programs that differ from one in one group, the nearest first."""
    found = []
    for other, place in places.items():
        steps = [abs(a - b) for a, b in zip(place, places[index], strict=True) if a != b]
        if len(steps) == 1:
            found.append((steps[0], other))
    yield from (other for _, other in sorted(found))
