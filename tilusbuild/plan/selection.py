"""Which part of a project a command is about: scripts, targets, and how much of their spaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilusbuild.arch import parse_arch
from tilusbuild.errors import Diagnostic, InputError, did_you_mean
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import Target


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of a project to plan; empty means all."""

    scripts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    level: int = 2

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole project, its spaces whole or not."""
        return not self.scripts and not self.targets


def targets_of(manifest: Manifest) -> dict[str, Target]:
    """Return every declared target as a value."""
    return {
        name: Target(
            name=name,
            archs=tuple(parse_arch(arch) for arch in declared.arch),
            ptx=declared.ptx,
            facts=dict(declared.facts),
        )
        for name, declared in manifest.targets.items()
    }


def chosen_pairs(manifest: Manifest, selection: Selection) -> Iterator[tuple[str, Target]]:
    """Yield each selected script with each of its selected targets, in the manifest's order.

    Raises `InputError` when a selected name does not exist, or when nothing is left.
    """
    problems = [
        Diagnostic(f'no {kind} "{name}" in {manifest.path}', hint=did_you_mean(name, known))
        for kind, names, known in (
            ("script", selection.scripts, manifest.scripts),
            ("target", selection.targets, manifest.targets),
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError(*problems)
    targets = targets_of(manifest)
    pairs = [
        (script, targets[target])
        for script in manifest.scripts
        for target in manifest.targets_of(script)
        if (not selection.scripts or script in selection.scripts)
        and (not selection.targets or target in selection.targets)
    ]
    if selection.targets and not pairs:
        raise InputError(
            Diagnostic(
                f"none of the selected scripts is built for {', '.join(selection.targets)}",
                hint="`targets` of [script.NAME] says what each is built for",
            )
        )
    yield from pairs
