"""Hand rules of `dispatch` whose schedule exists nowhere: found when a project is planned.

A rule names some values of a schedule. It is a mistake when no schedule of any instance has them,
of any target and constants. One of a level that is not planned, or of an instance that is not
selected, is none: the rule holds there. The planned schedules are looked at first; other spaces
are asked with the rule's values as one more restriction, so that little is enumerated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilusbuild.errors import Diagnostic
from tilusbuild.expr import Expr, Value
from tilusbuild.expr.tree import Compare, Const, Name
from tilusbuild.manifest.spelling import toml_text
from tilusbuild.plan.model import instances_of, targets_of
from tilusbuild.plan.spaces import spec_of
from tilusbuild.space import SAMPLE_BUDGET, EmptySpaceError, Schedule, Space, SpaceError, SpaceSpec

if TYPE_CHECKING:
    from tilusbuild.manifest import Manifest


def unmet_rules(
    manifest: Manifest, planned: Mapping[str, Sequence[Sequence[Schedule]]]
) -> Iterator[Diagnostic]:
    """Yield each rule that no schedule can satisfy. `planned` are the schedules of each instance,
    by script."""
    for script, instances in planned.items():
        dispatch = manifest.scripts[script].dispatch
        for number, row in enumerate(dispatch.table if dispatch else ()):
            use = row.use.items()
            if any(
                all(schedule.values.get(name) == value for name, value in use)
                for schedules in instances
                for schedule in schedules
            ) or any(_has(spec, row.use) for spec in _specs(manifest, script)):
                continue
            values = ", ".join(f"{name} = {toml_text(value)}" for name, value in use)
            yield Diagnostic(
                f'the rule "{row.when}" of {script} can never be followed: no schedule has'
                f" {values}",
                manifest.place("script", script, "dispatch", "table", number),
                "give values that one schedule has, or relax what excludes it:"
                f" `tilusbuild plan {script} --space` shows what each rule of the space removes",
            )


def _specs(manifest: Manifest, script: str) -> Iterator[SpaceSpec]:
    targets = targets_of(manifest)
    for target in manifest.targets_of(script):
        for params in instances_of(manifest, script, target):
            yield spec_of(manifest, script, targets[target], params)


def _has(spec: SpaceSpec, use: Mapping[str, Value]) -> bool:
    """Return whether a space has a schedule with these values, as far as is known: a space that
    is wrong in itself is reported where it is planned."""
    names = {name for parameter in spec.parameters for name in parameter.names}
    if not use.keys() <= names | {name for name, _ in spec.derived}:
        return False
    wanted = tuple(
        (name, Expr(name, Compare(Name(name), (("==", Const(value)),))))
        for name, value in use.items()
    )
    try:
        Space(replace(spec, restrict=(*spec.restrict, *wanted)), budget=SAMPLE_BUDGET)
    except EmptySpaceError:
        return False
    except SpaceError:
        return True
    return True
