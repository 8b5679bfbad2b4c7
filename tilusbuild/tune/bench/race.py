"""A whole tuning of one instance: its cases, each on the first device that is idle, and the choice
for each. Each program is checked and timed once; the fast ones are then timed further, in turns.

    look        correctness, then one sample
    2 rounds    a second sample of each, so that no single one ejects a program
    4 rounds    of those whose shortest sample is within 1.25x of the best program's median
    32 rounds, or as many as are asked for, of those within 1.05x; `scores.py` has the score

The median of the best is the measure of how much the machine is disturbed: on a busy one more
programs go on. The default is sampled to the end, since users compare with it. Programs whose
libraries are the same bytes are measured once.

A program is built when it is looked at, or ahead of that: a search names the programs that it wants
next if nothing better turns up. One that cannot be built takes no part.

All programs are looked at where the budget suffices, else those of a search (`search.py`).

Rounds go through the programs there and back, so that a device which slows down or speeds up
treats all alike. Within 1 % of the best score the earliest program wins; it is checked once more,
because a race between threads may show only now.

Before anything is measured the log gets a note of the device, the programs and the judge (the
digest of the reference and the tolerances), and before each case a note of its sizes. With these
and the samples, `--import` makes the same decisions again (`tune/importing.py`) where the same
programs are in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from statistics import median
from typing import Any

from tilusbuild.runtime.table_file import Refusal, find_fastest, is_overruled
from tilusbuild.tune.bench.bench import OK, Bench
from tilusbuild.tune.bench.pool import BenchPool, OpenCase
from tilusbuild.tune.bench.scores import score_samples
from tilusbuild.tune.bench.search import Winner, find_nearest_winners, search_programs
from tilusbuild.tune.bench.session import (
    CASE,
    COMPILE,
    RUN,
    Budget,
    CaseSession,
    ProgramRecord,
    Quota,
    TuningSession,
    collect_answers,
    format_case_note,
    list_integers,
)
from tilusbuild.tune.bench.work import CallScalar, Candidate, Case, Work

# The samples that each program of a stage has at its end, and the multiple of the best program's
# median up to which a program takes part. The session has the number of the last stage. A search
# under a budget has looked at many slow programs: its first stage leaves out those of twice the
# time.
_FIRST_STAGE = (2, math.inf)
_SEARCH_STAGE = (2, 2.0)
_SECOND_STAGE = (4, 1.25)
_LAST_FACTOR = 1.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a program in one case."""

    program: Candidate
    status: str
    why: str = ""
    seconds: float | None = None
    """The time by its samples (`scores.py`); None for a program that is out."""
    samples: tuple[float, ...] = ()
    is_refusal: bool = False
    """Whether it came to something here for which it is chosen nowhere."""
    error: float = 0.0
    """The largest absolute error that a check found."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for one case. `outcomes` are in the order of the programs: those that were
    measured, and those that were refused before."""

    case: Case
    winner: Outcome | None
    outcomes: tuple[Outcome, ...]
    unseen: int
    """Programs that the budget did not suffice to look at."""
    unserved: int = 0
    """Programs that do not serve these sizes, by the rules of the script's `serves`."""


class Race:
    """The comparison of programs in one case. Programs in `refused`, by hash, are not called."""

    def __init__(
        self,
        session: CaseSession,
        work: Work,
        refused: Mapping[str, Refusal],
    ) -> None:
        self._session = session
        planned_count = len(work.programs)
        work = work.select_serving(list_integers(session.case))
        self._unserved = planned_count - len(work.programs)
        self._refusals = refused
        self._excluded = [p for p in work.programs if p.hash in refused]
        programs = [p for p in work.programs if p.hash not in refused]
        self._work = replace(work, programs=tuple(programs))
        # The first look: so it is measured, and its twins are not.
        self._baseline = self._work.baseline
        self._quota = session.quota
        self._records: dict[int, ProgramRecord] = {}
        self._twins: dict[str, list[Candidate]] = {}
        """The programs of the same bytes, by these; the first is measured."""
        self._look_count = 0
        self._is_cut = False

    def run_race(self, seed: int, starts: Sequence[int]) -> Decision:
        """Search the programs, sample the fast ones, check the winner again. Return the choice. A
        winner that fails this check is out, and the next best is checked."""
        self._look_at_programs(seed, starts)
        max_rounds = self._session.rounds
        # Rounds count from the first look: a stage of fewer than a program has adds none.
        first_stage = _SEARCH_STAGE if self._quota.is_limited else _FIRST_STAGE
        for rounds, factor in (first_stage, _SECOND_STAGE, (max_rounds, _LAST_FACTOR)):
            self._run_rounds(self._select_fast(factor), min(rounds, max_rounds))
        winner = find_fastest(self._score_programs())
        # A race between threads may show only in the second check, which calls a program many
        # times.
        while winner is not None and not self._session.check_program(self._records[winner]):
            winner = find_fastest(self._score_programs())
        measured = [
            make_outcome(self._records[twins[0].index], program)
            for twins in self._twins.values()
            for program in twins
        ]
        excluded = [make_refused_outcome(p, self._refusals[p.hash]) for p in self._excluded]
        outcomes = tuple(sorted([*measured, *excluded], key=lambda outcome: outcome.program.index))
        return Decision(
            self._session.case,
            next((o for o in outcomes if o.program.index == winner), None),
            outcomes,
            len(self._work.programs) - self._look_count,
            self._unserved,
        )

    def _look_at_programs(self, seed: int, starts: Sequence[int]) -> None:
        """Look at the programs that a search yields, and have those built that follow."""
        source = self._session.source
        if not self._quota.is_limited:
            programs = sorted(self._work.programs, key=lambda p: p.index != self._baseline)
            for program in chain(programs[:1], source.order_built(programs[1:])):
                self._look_at(program)
            return

        def look_at_first(wanted: Iterable[Candidate]) -> float | None:
            program, *others = islice(wanted, 1 + source.ahead)
            self._session.build_ahead((program, *others))
            return self._look_at(program)

        search_programs(self._work, self._quota, seed, look_at_first, starts)

    def _look_at(self, program: Candidate) -> float | None:
        """Check a program when it is built, and take its first sample, in a new record. A twin, a
        program whose library an earlier one has, is not called. Return the seconds of the sample, a
        twin's those of the earlier program; None for a program that failed or was not built."""
        self._look_count += 1
        built = self._session.take_program(program)
        if built is None:
            return None
        twins = self._twins.setdefault(built.content or built.hash, [])
        twins.append(built)
        if built is not twins[0]:
            first_record = self._records[twins[0].index]
            return None if first_record.failure else first_record.samples[0]
        record = self._records[built.index] = ProgramRecord(built)
        is_right = self._session.check_program(record)
        if is_right and self._session.time_program(record, 0.0):
            return record.samples[0]
        return None

    def _select_fast(self, factor: float) -> list[int]:
        """Return the programs whose shortest sample is at most `factor` times the median of the
        best program, and the baseline, sorted. Failed programs are left out."""
        scores = self._score_programs()
        if not scores:
            return []
        bound = factor * median(self._records[min(scores, key=scores.__getitem__)].samples)
        return sorted(
            index
            for index in scores
            if index == self._baseline or min(self._records[index].samples) <= bound
        )

    def _score_programs(self) -> dict[int, float]:
        """Return the time in seconds of each program that is not refused, by number."""
        return {
            index: score_samples(record.samples)
            for index, record in self._records.items()
            if record.failure is None and record.samples
        }

    def _run_rounds(self, indices: Sequence[int], rounds: int) -> None:
        """Sample the programs until each has this many samples, or the quota is used."""
        rounds_done = 1  # the first look
        while rounds_done < rounds and self._has_quota():
            # There and back: see at the top.
            for index in indices if rounds_done % 2 == 0 else reversed(indices):
                record = self._records[index]
                # A case that is decided again has more samples of some programs than of others.
                if record.failure is None and len(record.samples) <= rounds_done:
                    # The longest so far: a program may be slow now and then.
                    self._session.time_program(record, max(record.samples))
            rounds_done += 1

    def _has_quota(self) -> bool:
        """Return whether a part of the quota remains."""
        # Once used, it stays used: else a case that is decided again, whose answers are replayed,
        # would ask more than it had asked before.
        self._is_cut = self._is_cut or self._quota.used_share >= 1
        return not self._is_cut


def make_outcome(record: ProgramRecord, program: Candidate) -> Outcome:
    """Return the outcome of a program whose library was measured as `record`: its time,
    or the failure."""
    samples, failure = tuple(record.samples), record.failure
    return Outcome(
        program,
        failure.status if failure else OK,
        failure.why if failure else "",
        seconds=score_samples(samples) if samples and failure is None else None,
        samples=samples,
        is_refusal=failure is not None and failure.is_refusal,
        error=record.error,
    )


def make_refused_outcome(program: Candidate, refusal: Refusal) -> Outcome:
    """Return the outcome of a program that was refused before and is not called."""
    why = refusal.text.removeprefix(f"{refusal.status} ")
    return Outcome(program, refusal.status, why)


def decide_cases(
    session: TuningSession,
    work: Work,
    open_case: OpenCase,
    sizes: Sequence[Mapping[str, Any]],
    seed: int,
    on_decision: Callable[[Decision], None],
    known_refusals: Mapping[str, Refusal],
    known_winners: Sequence[Winner] = (),
) -> list[Decision]:
    """Decide every case; `sizes` has the sizes of each. Call `on_decision` with each decision. A
    search begins with `known_winners` and the winners of the cases before, the nearest sizes first.

    A program that is refused at one case takes no part in cases that begin later. Other cases that
    timed the program are decided again without it, and `on_decision` is called again for them. A
    program in `known_refusals` takes no part from the start.

    Raises `WorkerUnusableError` when no device can be used, and `CancelledError`.
    """
    cases = _TunedCases(session, work, sizes, seed, known_refusals, known_winners)
    waiting: Sequence[int] = range(len(sizes))
    pool: BenchPool[Decision] = BenchPool(session.benches, session.on_lost)
    # Entered last: a thread that waits for a program goes on, before the pool waits for the thread.
    with closing(pool), session.source.cancel_on_error():
        while waiting:
            for number, decision in pool.run_cases(waiting, open_case, cases.begin_case):
                cases.add_decision(number, decision)
                on_decision(decision)
            waiting = cases.list_undone()
    return [cases.decisions[number] for number in sorted(cases.decisions)]


class _TunedCases:
    """The cases of a tuning by their numbers: what each begins with, and its decision."""

    def __init__(
        self,
        session: TuningSession,
        work: Work,
        sizes: Sequence[Mapping[str, Any]],
        seed: int,
        known_refusals: Mapping[str, Refusal],
        known_winners: Sequence[Winner],
    ) -> None:
        self.decisions: dict[int, Decision] = {}
        self._session = session
        self._work = work
        self._count = len(sizes)
        self._seed = seed
        self._known_refusals = known_refusals
        self._known_winners = known_winners
        self._starts: dict[int, list[int]] = {}
        # A program that was refused at one of these sizes takes part up to that case: a tuning
        # that is resumed asks the same questions as the one that was interrupted.
        self._first_refusals = {
            digest: refusal
            for digest, refusal in known_refusals.items()
            if not any(map(refusal.is_at, sizes))
        }
        self._refusals: dict[int, dict[str, Refusal]] = {}
        """Those that each decided case adds."""
        self._digests: dict[int, str] = {}
        self._earlier: dict[int, Sequence[int]] = {}
        """The cases whose decisions each case begins with."""
        self._shares: dict[int, Budget] = {}
        self._spent: dict[int, Quota] = {}

    def begin_case(
        self, number: int, case: Case, running: Sequence[Case]
    ) -> Callable[[Bench], Decision] | None:
        """Return the function that decides a case on a bench; None while a case that was decided
        before it in the log is still running. The first call logs a note of the case."""
        log, budget = self._session.log, self._session.budget
        if number not in self._earlier:
            beside = log.beside.get(case.digest, [other.digest for other in running])
            # Written once for each case: it says the sizes of the answers that follow.
            log.append_line(format_case_note(case, beside))
            self._digests[number] = case.digest
            self._earlier[number] = [n for n in range(number) if self._digests[n] not in beside]
        earlier = self._earlier[number]
        if not {*earlier} <= self.decisions.keys():
            return None
        if number not in self._shares:
            spent = [self._spent[n] for n in earlier]
            self._shares[number] = budget.divide_rest(
                spent, self._count - len(earlier), len(self._session.benches)
            )
        refusals = dict(self._first_refusals)
        for n in earlier:
            refusals |= self._refusals[n]

        if number not in self._starts:  # a case that is decided again begins as before
            decided = (self.decisions[n] for n in earlier)
            winners = [(d.case.sizes, d.winner.program.index) for d in decided if d.winner]
            winners += self._known_winners
            self._starts[number] = find_nearest_winners(winners, case.sizes)

        def decide_case(bench: Bench) -> Decision:
            session = CaseSession(self._session, bench, case, self._shares[number])
            race = Race(session, self._work, refusals)
            decision = race.run_race(self._seed, self._starts[number])
            self._spent[number] = session.quota
            return decision

        return decide_case

    def add_decision(self, number: int, decision: Decision) -> None:
        """Add the decision for a case, in place of an earlier one."""
        self.decisions[number] = decision
        # Those of an earlier decision hold on: the programs were not called this time.
        self._refusals.setdefault(number, {}).update(_list_refusals(decision, self._known_refusals))

    def list_undone(self) -> list[int]:
        """Return the cases that timed a program which is refused now: its time may have kept others
        out of the last rounds. Each begins again with all decisions, and its share."""
        refused = {*self._first_refusals}.union(*self._refusals.values())
        undone = [
            number
            for number, decision in self.decisions.items()
            if any(o.samples and o.program.hash in refused for o in decision.outcomes)
        ]
        self._earlier |= dict.fromkeys(undone, range(self._count))
        return sorted(undone)


def _list_refusals(decision: Decision, known_refusals: Mapping[str, Refusal]) -> dict[str, Refusal]:
    """Return the refusals that hold from this case on, by hash: new ones, and known ones at the
    same sizes that this case does not lift."""
    sizes, judge = dict(decision.case.sizes), decision.case.judge
    right_hashes = {o.program.hash for o in decision.outcomes if o.seconds is not None}
    refusals = {
        digest: refusal
        for digest, refusal in known_refusals.items()
        # A program that is right by another judge takes part in later cases.
        if refusal.is_at(sizes)
        and not (digest in right_hashes and is_overruled(refusal, judge, sizes))
    }
    for outcome in decision.outcomes:
        if outcome.is_refusal:
            digest = outcome.program.hash
            refusals[digest] = Refusal(digest, outcome.status, sizes, outcome.why, judge)
    return refusals


def collect_logged_refusals(lines: Iterable[Mapping[str, Any]]) -> dict[str, Refusal]:
    """Return the refusals that follow from the lines of a log, by program hash. A refusal that a
    later answer lifts is left out. A `RUN` line has the judge of the answers after it, and a `CASE`
    line the sizes of the answers that name its case."""
    refusals: dict[str, Refusal] = {}
    sizes: dict[str, Mapping[str, CallScalar]] = {}
    judge = ""
    for line in lines:
        if line.get("what") == RUN:
            judge = str(line.get("judge", ""))
        elif line.get("what") == CASE and isinstance(line.get("sizes"), dict):
            # A table file with a size of another type would be refused as damaged.
            scalars = {n: size for n, size in line["sizes"].items() if isinstance(size, CallScalar)}
            sizes[str(line.get("case"))] = scalars
        for (case, program, kind, _), answer in collect_answers([line]).items():
            if kind == COMPILE:
                continue
            case_sizes = sizes.get(case, {})
            refusal = refusals.get(program)
            if answer.is_refusal:
                refusals[program] = Refusal(program, answer.status, case_sizes, answer.why, judge)
            elif refusal is not None and is_overruled(refusal, judge, case_sizes):
                del refusals[program]
    return refusals
