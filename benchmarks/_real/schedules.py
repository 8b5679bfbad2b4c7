"""Compares the schedules and the sources of a port with those of the project itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from _bench import WorkNotDoneError, process

from _real import world
from _real.project import tilusbuild
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


def hold_equal(
    own_instances: Collection[object], peer_instances: Collection[object], of_what: str
) -> None:
    """Compare two sets of instances. Raises `WorkNotDoneError` where they differ."""
    mine, other = set(own_instances), set(peer_instances)
    if mine != other or not mine:
        raise WorkNotDoneError(
            f"{of_what}: {len(mine - other)} of ours and {len(other - mine)} of theirs are in one "
            f"of {len(mine)} and {len(other)} only: {sorted(map(str, mine ^ other))[:2]}"
        )


def hold_sources(tree: Path, script: str, peer_files: Iterable[Path], of_what: str) -> None:
    """Compare what the port renders with the files of the project's generator, word by word."""
    rendered = process(tilusbuild("render", script), tree, world.environment()).out
    own_texts = re.split(rf"(?m)^// {script}\[.*\n", rendered)[1:]
    texts = [path.read_text() for path in peer_files]
    hold_equal([_words(text) for text in own_texts], [_words(text) for text in texts], of_what)


def _words(source: str) -> str:
    return " ".join(re.sub(r"(?m)^//.*", "", source).split())
