"""Manifest and toolchain → plan: which programs there are, and what each one's hash is.

Pure but for reading. Every instance of every script is planned, for each of its targets, in the
manifest's order, so that whatever is wrong anywhere is told in one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.manifest import Manifest, snake_case
from tilusbuild.plan import identity
from tilusbuild.plan.headers import roots_of
from tilusbuild.plan.maker import Maker
from tilusbuild.plan.memo import PlanMemo
from tilusbuild.plan.model import Instance, Plan, Target
from tilusbuild.plan.points import Chosen
from tilusbuild.plan.selection import Selection, chosen_pairs
from tilusbuild.plan.spaces import chosen, instances_of, question, space_of, spec_of
from tilusbuild.render.closure import Headers, Root, Scans
from tilusbuild.render.renderer import Renderer
from tilusbuild.space import Schedule
from tilusbuild.state.hashing import sha256_text
from tilusbuild.toolchain import DigestMemory, Toolchain


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what makes its programs again, instance by instance."""

    plan: Plan
    makers: tuple[Maker, ...]

    @property
    def inputs(self) -> set[str]:
        """What the plan depends on besides the manifest and the toolchain, by path."""
        return {path for maker in self.makers for path in maker.inputs}


@dataclass(slots=True)
class Planner:
    """Plans one project. Keeps closures and compiled templates from one plan to the next."""

    manifest: Manifest
    toolchain: Toolchain
    renderer: Renderer
    memory: DigestMemory
    memo: PlanMemo | None = None
    """What earlier plans came to; without it everything is made anew."""
    scans: Scans = field(default_factory=dict)
    """Includes of headers by content; may be shared with the next planner."""
    _headers: dict[tuple[Root, ...], Headers] = field(default_factory=dict)
    """Scripts that look in the same folders share what was found there."""

    def plan(self, selection: Selection) -> Planned:
        """Plan the selected part. Raises `InputError` with everything that is wrong."""
        problems: list[Diagnostic] = []
        instances: list[Instance] = []
        makers: list[Maker] = []
        for script, target in chosen_pairs(self.manifest, selection):
            try:
                for maker in self.makers(script, target):
                    instances.append(self._instance(maker, selection.level))
                    makers.append(maker)
            except InputError as error:
                problems.extend(d for d in error.diagnostics if d not in problems)
        if problems:
            raise InputError(*problems)
        plan = Plan(self.manifest.project.name, self.manifest.root, tuple(instances))
        return Planned(plan, tuple(makers))

    def makers(self, script: str, target: Target) -> Iterator[Maker]:
        """One maker for each instance of a script. Raises `InputError`."""
        for params in instances_of(self.manifest, script, target.name):
            spec = spec_of(self.manifest, script, target, params)
            size = None if self.memo is None else self.memo.points.size(script, spec)
            space = space_of(self.manifest, script, target.name, spec, size)
            yield Maker(
                self.manifest,
                script,
                target,
                params,
                spec,
                space,
                self.renderer,
                self.headers(script),
                self.toolchain,
                self.memory,
            )

    def headers(self, script: str) -> Headers:
        """The headers that a script's programs can reach. Raises `InputError`."""
        roots = roots_of(self.manifest, script)
        if roots not in self._headers:
            self._headers[roots] = Headers(roots, digests=self.memory, scans=self.scans)
        return self._headers[roots]

    def _instance(self, maker: Maker, level: int) -> Instance:
        schedules, default = self._chosen(maker, level)
        numbers = tuple(schedule.index for schedule in schedules)
        if self.memo is None:
            programs = tuple(maker.make(schedule).hash for schedule in schedules)
        else:
            programs = self.memo.programs(maker, schedules)
        return planned_instance(maker, numbers, position(numbers, default), programs)

    def _chosen(self, maker: Maker, level: int) -> Chosen:
        manifest, script, target, space = self.manifest, maker.script, maker.target, maker.space
        if self.memo is None:
            return chosen(manifest, script, target, space, level)
        return self.memo.points.chosen(
            script,
            space.spec,
            question(manifest, script, target, level),
            lambda: (space.count, space.cartesian),
            lambda: chosen(manifest, script, target, space, level),
        )


def planned_instance(
    maker: Maker, schedules: tuple[int, ...], default: int | None, programs: tuple[str, ...]
) -> Instance:
    """The instance of a maker: `schedules` are places in its space, `default` one in `schedules`,
    `programs` their hashes."""
    script_txt = identity.script_text(
        script=maker.script,
        params=maker.params,
        target=maker.target.name,
        arch=maker.target.arch,
        signature=maker.signature.text().splitlines(),
        programs=programs,
    )
    return Instance(
        script=maker.script,
        folder=snake_case(maker.script),
        target=maker.target,
        params=maker.params,
        points=maker.space.count,
        cartesian=maker.space.cartesian,
        parameters=maker.parameters,
        schedules=schedules,
        default=default,
        programs=programs,
        script_txt=script_txt,
        hash=sha256_text(script_txt),
    )


def position(schedules: Sequence[int], wanted: Schedule | None) -> int | None:
    """Where a schedule stands among those planned; None when it does not."""
    if wanted is None or wanted.index not in schedules:
        return None
    return schedules.index(wanted.index)
