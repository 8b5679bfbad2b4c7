"""The plan as values, and which part of a project is planned.

A plan is pure: the same manifest, templates, headers and toolchain give the same plan, and making
it writes nothing. It holds no rendered source; a program is a hash and a place in its instance's
space, so that memory stays small with a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilusbuild.arch import Arch, parse_arch
from tilusbuild.errors import Diagnostic, InputError, did_you_mean
from tilusbuild.expr import Value
from tilusbuild.manifest import Manifest
from tilusbuild.runtime.script import instance_label


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for, as the manifest names it."""

    name: str
    archs: tuple[Arch, ...]
    ptx: bool
    facts: Mapping[str, Value]

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return "cpu" if self.archs[0].name == "cpu" else "cuda"

    @property
    def arch(self) -> str:
        """The architectures as one word: "sm_90a", or "sm_80+sm_90a", with "+ptx" when embedded."""
        return "+".join([*(arch.name for arch in self.archs), *(["ptx"] if self.ptx else [])])


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A script with its constants fixed, for one target: what one script directory describes."""

    script: str
    directory: str
    """The script's name in snake case, as its directory is called."""
    target: Target
    params: Mapping[str, Value]
    points: int
    """Valid points of the space, planned or not."""
    cartesian: int
    parameters: tuple[str, ...]
    schedules: tuple[int, ...]
    """Indices into the space's valid points, in plan order."""
    default: int | None
    """The position in `schedules` of the default schedule, when there is one."""
    programs: tuple[str, ...]
    """Program hashes, one a schedule."""
    script_txt: str
    hash: str
    """sha256 of `script_txt`."""

    @property
    def label(self) -> str:
        """What a person calls it: `matmul[dtype=f16] h100`."""
        return instance_label(self.script, self.params, self.target.name)


@dataclass(frozen=True, slots=True)
class PlanSelection:
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


def targets_named(manifest: Manifest, word: str) -> tuple[str, ...]:
    """Return the targets that a word means: the one of that name, else those of that architecture;
    the word itself where there is none."""
    if word in manifest.targets:
        return (word,)
    of_arch = (name for name, each in manifest.targets.items() if word in each.arch)
    return tuple(of_arch) or (word,)


def chosen_pairs(manifest: Manifest, selection: PlanSelection) -> Iterator[tuple[str, Target]]:
    """Yield each selected script with each of its selected targets, in the manifest's order.

    A target is selected by its name or by its architecture. Raises `InputError` when a selected
    name does not exist, or when nothing is left.
    """
    chosen = [name for word in selection.targets for name in targets_named(manifest, word)]
    problems = [
        Diagnostic(f'no {kind} "{name}" in {manifest.path}', hint=did_you_mean(name, known))
        for kind, names, known in (
            ("script", selection.scripts, manifest.scripts),
            ("target", chosen, manifest.targets),
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
        and (not chosen or target in chosen)
    ]
    if chosen and not pairs:
        raise InputError(
            Diagnostic(
                f"none of the selected scripts is built for {', '.join(selection.targets)}",
                hint="`targets` of [script.NAME] says what each is built for",
            )
        )
    yield from pairs
