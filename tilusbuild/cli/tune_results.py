"""What `tilusbuild tune` found: a table of the choices for people, JSON lines for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli.options import CountsLine, emit, say
from tilusbuild.report.jsonl import JsonLine, Scalar

if TYPE_CHECKING:
    from tilusbuild.runtime.script import Script
    from tilusbuild.tune.bench.race import Decision
    from tilusbuild.tune.tune import TunedInstance


class TunedLine(JsonLine, frozen=True):
    """The choice for some sizes; null where no program is usable."""

    event: ClassVar[str] = "tuned"
    instance: str
    sizes: Mapping[str, Scalar]
    program: int | None
    schedule: Mapping[str, Scalar] | None
    seconds: float | None
    seen: int
    unseen: int
    """Programs that the budget did not suffice for."""
    refused: Mapping[str, str]
    """What a program came to, and why, by its number."""


def tuned_line(label: str, decision: Decision) -> TunedLine:
    """Return the line of a decision for the sizes of a case."""
    winner = decision.winner
    return TunedLine(
        instance=label,
        sizes=decision.case.sizes,
        program=winner.program.index if winner else None,
        schedule=winner.program.schedule if winner else None,
        seconds=winner.seconds if winner else None,
        seen=len(decision.outcomes),
        unseen=decision.unseen,
        refused={
            str(outcome.program.index): f"{outcome.status}: {outcome.why}"
            for outcome in decision.outcomes
            if outcome.seconds is None
        },
    )


def show(tuned: Sequence[TunedInstance], *, json: bool, replayed: bool) -> int:
    """Print what was found; returns the exit status. With `json` its lines were printed as they
    came, unless they are `replayed` from a log."""
    decisions = [decision for each in tuned for decision in each.decisions]
    without = sum(decision.winner is None for decision in decisions)
    if json:
        if replayed:
            for each in tuned:
                for decision in each.decisions:
                    emit(tuned_line(each.script.label, decision))
        emit(CountsLine({"tuned": len(decisions), "without": without}))
    else:
        for each in tuned:
            _print(each)
    complaints = [text for each in tuned for text in _complaints(each.script, each.refused)]
    for text in complaints:
        say(f"error: {text}\n")
    return 1 if without or complaints else 0


def _complaints(script: Script, refused: Mapping[int, str]) -> Iterator[str]:
    """Yield each word of a person for a program that is chosen nowhere: calls that come to it are
    refused."""
    from tilusbuild.runtime.tables import read_dispatch

    said = [(f"the dispatch rule {rule.source!r}", rule.program) for rule in script.rules]
    rows = (row for table in read_dispatch(script).tables for row in table.entries)
    said += [(f"the row for {list(r.key)}", r.program) for r in rows if r.source == "table"]
    if script.default is not None:
        said.insert(0, ("the default schedule", script.default))
    for what, program in dict.fromkeys(said):
        if program in refused:
            values = ", ".join(f"{n}={v}" for n, v in script.schedule(program).items())
            yield (
                f"{script.label}: {what} chooses program {program} ({values}), which was"
                f" {refused[program]}; calls that come to it are refused: choose another"
            )


def _print(tuned: TunedInstance) -> None:
    from statistics import geometric_mean

    from tilusbuild.table import table, times

    cold = any(decision.case.cold for decision in tuned.decisions)
    print(f"{tuned.script.label} on {tuned.device}, {'cold' if cold else 'warm'} caches")
    names = list(tuned.decisions[0].case.sizes) if tuned.decisions else []
    parameters = list(tuned.script.schedules)
    rows = []
    unit, shown = times([each.winner.seconds if each.winner else None for each in tuned.decisions])
    declared = tuned.script.default
    usual = f"the default schedule, program {declared}" if declared is not None else "program 0"
    gains = [_gain(each, declared or 0) for each in tuned.decisions]
    for decision, time, gain in zip(tuned.decisions, shown, gains, strict=True):
        winner = decision.winner
        schedule = winner.program.schedule if winner else {}
        tried = f"{len(decision.outcomes)}" + ("" if not decision.unseen else " (budget)")
        out = sum(outcome.seconds is None for outcome in decision.outcomes)
        rows.append(
            (
                *(decision.case.sizes.get(name) for name in names),
                winner.program.index if winner else None,
                *(schedule.get(name) for name in parameters),
                time,
                gain and f"{gain:.2f}x",
                tried,
                out,
            )
        )
    heads = (*names, "choice", *parameters, f"latency ({unit})", "speed-up", "tried", "refused")
    print(table(heads, rows), end="")
    for line in _refused(tuned):
        print(line)
    if tuned.refused:
        listed = ", ".join(map(str, sorted(tuned.refused)))
        print(f"not chosen for any size until rebuilt: {listed}")
    for decides, gives_way in tuned.shared:
        print(f"{gives_way} and {decides} share a bucket: the latter decides")
    print(f"table: {tuned.script.path}/dispatch_table.txt")
    if known := [gain for gain in gains if gain is not None]:
        where = "all sizes" if len(known) == len(gains) else f"{len(known)} of {len(gains)} sizes"
        over = f"{geometric_mean(known):.2f}x over {where} (geometric mean)"
        print(f"speed-up over {usual}: {over}")


def _gain(decision: Decision, default: int) -> float | None:
    """Return how many times as fast as the default schedule the choice is; None where one of the
    two has no time."""
    seconds = {outcome.program.index: outcome.seconds for outcome in decision.outcomes}
    before = seconds.get(default)
    after = decision.winner and decision.winner.seconds
    return before / after if before and after else None


def _refused(tuned: TunedInstance) -> Iterator[str]:
    """Yield each program that is not usable, once."""
    reported: set[int] = set()
    for decision in tuned.decisions:
        for outcome in decision.outcomes:
            program = outcome.program
            if outcome.seconds is None and program.index not in reported:
                reported.add(program.index)
                schedule = ", ".join(f"{n}={v}" for n, v in program.schedule.items())
                yield f"program {program.index} ({schedule}): {outcome.status}: {outcome.why}"
