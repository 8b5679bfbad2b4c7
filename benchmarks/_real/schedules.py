"""The schedules that a port declares, as values: to be held to those of the project itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from _bench import WorkNotDoneError

from tilusbuild.expr import Value
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.plan.model import list_instances, make_targets
from tilusbuild.plan.spaces import make_space_spec
from tilusbuild.space.space import Space


def schedules(manifest: Path, script: str, target: str) -> Iterator[dict[str, Value]]:
    """Yield what each program of a script is made of: constants, parameters, derived values."""
    declared = load_manifest(str(manifest))
    for params in list_instances(declared, script, target):
        for schedule in Space(
            make_space_spec(declared, script, make_targets(declared)[target], params)
        ):
            yield {**params, **schedule.values}


def hold_equal(ours: Collection[object], theirs: Collection[object], of_what: str) -> None:
    """Compare two sets of instances. Raises `WorkNotDoneError` where they differ."""
    mine, other = set(ours), set(theirs)
    if mine != other or not mine:
        raise WorkNotDoneError(
            f"{of_what}: {len(mine - other)} of ours and {len(other - mine)} of theirs are in one "
            f"of {len(mine)} and {len(other)} only: {sorted(map(str, mine ^ other))[:2]}"
        )
