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
from tilusbuild.plan.memo import PlanMemo
from tilusbuild.plan.model import PlannedInstance, Target
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.plan.selection import Selection, chosen_pairs
from tilusbuild.plan.space_cache import Chosen
from tilusbuild.plan.spaces import chosen, instances_of, question, space_of, spec_of
from tilusbuild.render.closure import Headers, Root, Scans
from tilusbuild.render.renderer import Renderer
from tilusbuild.space import Schedule
from tilusbuild.state.hashing import sha256_text
from tilusbuild.toolchain import DigestMemory, Toolchain


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a build would make, in order, and what renders its programs again."""

    project: str
    root: str
    instances: tuple[PlannedInstance, ...]
    script_instances: tuple[ScriptInstance, ...] = field(compare=False, repr=False)
    """One for each of `instances`."""

    @property
    def size(self) -> int:
        """How many distinct programs there are."""
        return len({digest for instance in self.instances for digest in instance.programs})

    @property
    def inputs(self) -> set[str]:
        """What the plan depends on besides the manifest and the toolchain, by path."""
        return {
            path for script_instance in self.script_instances for path in script_instance.inputs
        }


@dataclass(slots=True)
class Planner:
    """Plans one project. Keeps closures and compiled templates from one plan to the next."""

    manifest: Manifest
    toolchain: Toolchain
    renderer: Renderer
    memory: DigestMemory
    memo: PlanMemo | None = None
    """What earlier plans came to; without it everything is made again."""
    scans: Scans = field(default_factory=dict)
    """Includes of headers by content; may be shared with the next planner."""
    _headers: dict[tuple[Root, ...], Headers] = field(default_factory=dict)
    """Scripts that look in the same directories share what was found there."""

    def plan(self, selection: Selection) -> Plan:
        """Plan the selected part. Raises `InputError` with everything that is wrong."""
        problems: list[Diagnostic] = []
        instances: list[PlannedInstance] = []
        script_instances: list[ScriptInstance] = []
        for script, target in chosen_pairs(self.manifest, selection):
            try:
                for script_instance in self.script_instances(script, target):
                    instances.append(self._instance(script_instance, selection.level))
                    script_instances.append(script_instance)
            except InputError as error:
                problems.extend(d for d in error.diagnostics if d not in problems)
        if problems:
            raise InputError(*problems)
        manifest = self.manifest
        return Plan(manifest.project.name, manifest.root, tuple(instances), tuple(script_instances))

    def script_instances(self, script: str, target: Target) -> Iterator[ScriptInstance]:
        """Yield one `ScriptInstance` for each instance of a script. Raises `InputError`."""
        for params in instances_of(self.manifest, script, target.name):
            spec = spec_of(self.manifest, script, target, params)
            size = None if self.memo is None else self.memo.spaces.size(script, spec)
            space = space_of(self.manifest, script, target.name, spec, size)
            yield ScriptInstance(
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
        """Return the headers that a script's programs can reach. Raises `InputError`."""
        roots = roots_of(self.manifest, script)
        if roots not in self._headers:
            self._headers[roots] = Headers(roots, digests=self.memory, scans=self.scans)
        return self._headers[roots]

    def _instance(self, script_instance: ScriptInstance, level: int) -> PlannedInstance:
        schedules, default = self._chosen(script_instance, level)
        numbers = tuple(schedule.index for schedule in schedules)
        if self.memo is None:
            programs = tuple(script_instance.render(schedule).hash for schedule in schedules)
        else:
            programs = self.memo.programs(script_instance, schedules)
        return planned_instance(script_instance, numbers, position(numbers, default), programs)

    def _chosen(self, script_instance: ScriptInstance, level: int) -> Chosen:
        manifest, script, target, space = (
            self.manifest,
            script_instance.script,
            script_instance.target,
            script_instance.space,
        )
        if self.memo is None:
            return chosen(manifest, script, target, space, level)
        return self.memo.spaces.chosen(
            script,
            space.spec,
            question(manifest, script, target, level),
            lambda: (space.count, space.cartesian),
            lambda: chosen(manifest, script, target, space, level),
        )


def planned_instance(
    script_instance: ScriptInstance,
    schedules: tuple[int, ...],
    default: int | None,
    programs: tuple[str, ...],
) -> PlannedInstance:
    """Return an instance as planned: `schedules` are places in its space, `default` one in
    `schedules`, `programs` their hashes."""
    script_txt = identity.script_text(
        script=script_instance.script,
        params=script_instance.params,
        target=script_instance.target.name,
        arch=script_instance.target.arch,
        signature=script_instance.signature.text().splitlines(),
        programs=programs,
    )
    return PlannedInstance(
        script=script_instance.script,
        directory=snake_case(script_instance.script),
        target=script_instance.target,
        params=script_instance.params,
        points=script_instance.space.count,
        cartesian=script_instance.space.cartesian,
        parameters=script_instance.parameters,
        schedules=schedules,
        default=default,
        programs=programs,
        script_txt=script_txt,
        hash=sha256_text(script_txt),
    )


def position(schedules: Sequence[int], wanted: Schedule | None) -> int | None:
    """Return where a schedule stands among those planned; None when it does not."""
    if wanted is None or wanted.index not in schedules:
        return None
    return schedules.index(wanted.index)
