"""A whole tuning of one instance: its cases in turn, from the questions to the decisions.

Before anything is measured the log says what is about to be asked (device, programs, budget, seed),
and before each case which sizes it has. With that, whoever holds the log and the same programs can
make the same decisions again: that is what `--import` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilusbuild.tune.bench.race import Decision, Race
from tilusbuild.tune.bench.session import ROUNDS, Budget, Session
from tilusbuild.tune.bench.work import Case, Scalar, Work

RUN, CASE = "run", "case"
"""What the two kinds of notes in a log are about."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a log says of a tuning that began."""

    script: str
    script_hash: str
    programs: tuple[int, ...]
    groups: tuple[tuple[str, ...], ...]
    device: Mapping[str, Any]
    """`kind`, `name`, `arch`, `id` and `driver`."""
    budget: Budget
    seed: int
    cases: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Noted:
    """What a log says of a case that began."""

    case: str
    sizes: Mapping[str, Scalar]
    integers: Mapping[str, int]


def read_run(line: Mapping[str, Any]) -> Run:
    """A line that `run_note` made. Raises `ValueError` for any other."""
    try:
        device = {name: _of(str, line["device"][name]) for name in ("kind", "name", "arch", "id")}
        return Run(
            script=_of(str, line["script"]),
            script_hash=_of(str, line["script_hash"]),
            programs=tuple(_of(int, index) for index in line["programs"]),
            groups=tuple(tuple(_of(str, name) for name in group) for group in line["groups"]),
            device={**device, "driver": _of(int, line["device"]["driver"])},
            budget=Budget(
                _of((int, float, type(None)), line["seconds"]),
                _of((int, type(None)), line["runs"]),
            ),
            seed=_of(int, line["seed"]),
            cases=_of(int, line["cases"]),
            rounds=_of(int, line.get("rounds", ROUNDS)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"malformed: {error}") from None


def read_case_note(line: Mapping[str, Any]) -> Noted:
    """A line about a case. Raises `ValueError` for any other."""
    try:
        integers = {name: _of(int, value) for name, value in line["integers"].items()}
        sizes = {name: _of((int, float, str), value) for name, value in line["sizes"].items()}
        return Noted(_of(str, line["case"]), sizes, integers)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"malformed: {error}") from None


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.60} is of another type")
    return value


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
        "rounds": session.rounds,
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
