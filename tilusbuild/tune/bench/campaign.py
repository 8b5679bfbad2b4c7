"""A whole tuning of one instance: its cases in turn, from the questions to the decisions.

Before anything is measured the log says what is about to be asked (device, programs, budget, seed),
and before each case which sizes it has. With that, whoever holds the log and the same programs can
make the same decisions again: that is what `--import` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilusbuild.tune.bench.race import Decision, Race
from tilusbuild.tune.bench.session import Session
from tilusbuild.tune.bench.work import Case, Scalar, Work

RUN, CASE = "run", "case"
"""What the two kinds of notes in a log are about."""


def run_note(
    work: Work, device: Mapping[str, Any], session: Session, seed: int, cases: int
) -> dict[str, Any]:
    """The log's line for a tuning that begins."""
    return {
        "what": RUN,
        "script": work.script,
        "script_hash": work.script_hash,
        "programs": [program.index for program in work.programs],
        "groups": [list(group) for group in work.groups],
        "device": {name: device[name] for name in ("kind", "name", "arch", "id", "driver")},
        "seconds": session.budget.seconds,
        "runs": session.budget.runs,
        "seed": seed,
        "cases": cases,
    }


def integers(case: Case) -> dict[str, Scalar]:
    """The whole numbers of a call: what dispatch goes by."""
    return {a.name: a.value for a in case.arguments if isinstance(a.value, int)}


def campaign(
    session: Session,
    work: Work,
    cases: Iterable[Case],
    count: int,
    seed: int,
    done: Callable[[Decision], None],
) -> list[Decision]:
    """Decide every case; `done` hears of each decision as soon as it is made."""
    decisions = []
    for number, case in enumerate(cases):
        session.log.note(
            {"what": CASE, "case": case.digest, "sizes": case.sizes, "integers": integers(case)}
        )
        race = Race(session, work, case, session.quota(count - number))
        decisions.append(race.run(seed))
        done(decisions[-1])
    return decisions
