"""Manifest and toolchains → plan: which programs there are, what each is called, and their jobs.

Planning only reads. Every instance of every script is planned, for each of its targets, in the
manifest's order, so that all mistakes are reported in one run. A plan keeps hashes and no sources;
a `ProgramJob` renders its program again when it is compiled, and the engine compares the texts with
the hash, so that what is compiled is always what the hash names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import TYPE_CHECKING

from tilusbuild.compile import pipeline_for
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.manifest import snake_case
from tilusbuild.plan import identity
from tilusbuild.plan.library import LinkInstance, class_of, object_names
from tilusbuild.plan.memo import PlanMemo
from tilusbuild.plan.model import PlannedInstance, PlanSelection, Target, chosen_pairs, instances_of
from tilusbuild.plan.roots import roots_of
from tilusbuild.plan.rules import unmet_rules
from tilusbuild.plan.script_instance import HeadersOf, RenderedProgram, ScriptInstance
from tilusbuild.plan.spaces import Chosen, Counting, chosen, question, space_of, spec_of
from tilusbuild.render.closure import Root
from tilusbuild.render.headers import Headers, Scans
from tilusbuild.render.outside import Outside
from tilusbuild.render.renderer import Renderer
from tilusbuild.runtime.naming import instance_name, program_name
from tilusbuild.space import SAMPLE_BUDGET, Schedule, Schedules
from tilusbuild.state.files import sha256_text
from tilusbuild.toolchain import DigestMemory, Toolchain

if TYPE_CHECKING:
    from tilusbuild.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Plan:
    """Every program of a build, in order, and what renders it again."""

    project: str
    root: str
    instances: tuple[PlannedInstance, ...]
    script_instances: tuple[ScriptInstance, ...] = field(compare=False, repr=False)
    """One for each of `instances`."""
    wanted: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Of an instance that is asked for in part: the programs that are, by its hash."""

    @property
    def size(self) -> int:
        """How many distinct programs there are."""
        return len({digest for instance in self.instances for digest in instance.programs})

    @property
    def inputs(self) -> set[str]:
        """What the plan depends on besides the manifest and the toolchains, by path."""
        return {
            path for script_instance in self.script_instances for path in script_instance.inputs
        }


@dataclass(slots=True)
class Planner:
    """Plans one project. Keeps closures and compiled templates from one plan to the next."""

    manifest: Manifest
    toolchains: Mapping[str, Toolchain]
    """By their names: what the selected scripts are compiled with."""
    renderer: Renderer
    memory: DigestMemory
    memo: PlanMemo | None = None
    """The hashes of earlier plans; without it every program is rendered."""
    counting: Counting | None = None
    """Called with the progress of a long count."""
    scans: Scans = field(default_factory=dict)
    """Includes of headers by content; may be shared with the next planner."""
    objects: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)
    """What was planned of scripts of objects, by script and target: each one's name and hash."""
    _headers: dict[tuple[tuple[Root, ...], Outside], Headers] = field(default_factory=dict)
    """By search path: scripts with the same one share what was found."""

    def plan(self, selection: PlanSelection) -> Plan:
        """Plan the selected part. Raises `InputError` with everything that is wrong."""
        self.objects.clear()
        problems: list[Diagnostic] = []
        instances: list[PlannedInstance] = []
        script_instances: list[ScriptInstance] = []
        planned: dict[str, list[Sequence[Schedule]]] = {}
        for script, target in chosen_pairs(self.manifest, selection):
            try:
                for script_instance in self.script_instances(script, target, selection):
                    schedules, default = self._chosen(script_instance, selection.level)
                    instances.append(self._instance(script_instance, schedules, default))
                    if script_instance.is_part:
                        self.note_objects(instances[-1], schedules)
                    planned.setdefault(script, []).append(schedules)
                    script_instances.append(script_instance)
            except InputError as error:
                problems.extend(d for d in error.diagnostics if d not in problems)
        manifest = self.manifest
        if problems := problems or list(unmet_rules(manifest, planned)):
            raise InputError(*problems)
        wanted = {each.hash: selection.wants(each) for each in instances}
        return Plan(
            manifest.project.name,
            manifest.root,
            tuple(instances),
            tuple(script_instances),
            {
                each.hash: of
                for each in instances
                if len(of := wanted[each.hash]) < len(each.programs)
            },
        )

    def script_instances(
        self, script: str, target: Target, selection: PlanSelection
    ) -> Iterator[ScriptInstance]:
        """Yield one `ScriptInstance` for each selected instance of a script. Raises
        `InputError`."""
        for params in instances_of(self.manifest, script, target.name):
            if not selection.has(script, params, target.name):
                continue
            spec = spec_of(self.manifest, script, target, params)
            size = None if self.memo is None else self.memo.spaces.size(script, spec)
            counted = selection.level == 2
            if counted and size is not None and size[0] is None:
                size = None
            name = instance_name(script, params, target.name)
            space = space_of(
                self.manifest,
                script,
                target.name,
                spec,
                params,
                size,
                budget=None if counted else SAMPLE_BUDGET,
                watch=self.counting and self.counting(name),
            )
            made = class_of(self.manifest.scripts[script])(
                self.manifest,
                script,
                target,
                params,
                spec,
                space,
                self.renderer,
                self.headers_of(script, target),
                self.toolchain_of(script, target),
                self.memory,
            )
            if isinstance(made, LinkInstance):
                made.take(self.objects)
            yield made

    def toolchain_of(self, script: str, target: Target) -> Toolchain:
        """Return what a script is compiled with for a target."""
        return self.toolchains[self.manifest.toolchain_of(script, target.name)]

    def headers_of(self, script: str, target: Target) -> HeadersOf:
        """Return what finds the headers of a script's templates, and looks for the directories of
        each once: every program asks."""
        return cache(partial(self.headers, script, target))

    def headers(self, script: str, target: Target, template: str) -> Headers:
        """Return the headers that programs of a script's template can reach. Raises
        `InputError`."""
        owner = self.manifest.scripts[script]
        toolchain = self.toolchain_of(script, target)
        own = self.manifest.device_compiler_for(script, target.name)
        compiler = toolchain.device_compiler.of(own)
        pipeline = pipeline_for(target.kind, owner.form, compiler)
        search_path = roots_of(self.manifest, script, template), pipeline.outside(toolchain)
        if search_path not in self._headers:
            roots, outside = search_path
            known = None if self.memo is None else self.memo.closures.of(repr(search_path))
            self._headers[search_path] = Headers(
                roots, outside=outside, digests=self.memory, scans=self.scans, known=known
            )
        return self._headers[search_path]

    def _instance(
        self,
        script_instance: ScriptInstance,
        schedules: Schedules,
        default: Schedule | None,
    ) -> PlannedInstance:
        numbers = tuple(schedules.indices)
        if self.memo is None or isinstance(script_instance, LinkInstance):
            programs = tuple(each.hash for each in script_instance.render_all(schedules))
        else:
            programs = self.memo.programs(script_instance, schedules)
        return planned_instance(script_instance, numbers, position(numbers, default), programs)

    def instance(self, script_instance: ScriptInstance) -> PlannedInstance:
        """Return a whole instance as planned. Raises `InputError`."""
        return self._instance(script_instance, *self._chosen(script_instance, 2))

    def note_objects(self, instance: PlannedInstance, schedules: Sequence[Schedule]) -> None:
        """Keep what a library links of an instance with these schedules."""
        key = instance.script, instance.target.name
        every = zip(object_names(instance, schedules), instance.programs, strict=True)
        self.objects.setdefault(key, []).extend(every)

    def _chosen(self, script_instance: ScriptInstance, level: int) -> Chosen:
        manifest, script, target, space = (
            self.manifest,
            script_instance.script,
            script_instance.target,
            script_instance.space,
        )
        if script_instance.is_part:
            level = 2  # a library without some of its objects is none
        if self.memo is None:
            return chosen(manifest, script, target, space, level)
        return self.memo.spaces.chosen(
            script,
            space.spec,
            question(manifest, script, target, level),
            lambda: space.size,
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
        points=script_instance.space.size[0],
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


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One program of a plan."""

    hash: str
    index: int
    planned: PlannedInstance
    script_instance: ScriptInstance

    @property
    def label(self) -> str:
        planned = self.planned
        return program_name(planned.script, planned.params, self.index, planned.target.name)

    @property
    def script(self) -> str:
        return self.planned.script

    @property
    def instance(self) -> tuple[str, ...]:
        constants = (f"{name}={value}" for name, value in self.planned.params.items())
        return (self.script, *constants, self.planned.target.name)

    @property
    def instance_label(self) -> str:
        return self.planned.label

    @property
    def is_default(self) -> bool:
        return self.index == self.planned.default

    @property
    def is_part(self) -> bool:
        return self.script_instance.is_part

    @property
    def needs(self) -> tuple[str, ...]:
        return self.script_instance.needs

    @property
    def kept_here(self) -> str:
        return self.script_instance.kept_here

    @property
    def unit(self) -> str:
        instance = self.script_instance
        return "" if instance.grouping is None else instance.unit_of(self.schedule)

    @property
    def schedule(self) -> Schedule:
        """The point of the space that this program is for."""
        return self.script_instance.space[self.planned.schedules[self.index]]

    def render(self) -> RenderedProgram:
        """Render the program. Raises `InputError` when the template is no longer right."""
        return self.script_instance.render(self.schedule)

    def changed_input(self) -> str | None:
        """Return None: a compile sees its own copy of the source, and headers by their digest."""
        return None

    def readable(self, log: str) -> str:
        """Return a compiler's log with the template's places, and what helps when a header is
        missing."""
        from tilusbuild.render.messages import misses_header, missing_header_help

        schedule = self.schedule
        text = self.script_instance.readable(schedule, log)
        if not misses_header(log):
            return text
        try:
            notes = self.script_instance.render(schedule).closure.notes
        except InputError:
            notes = ()
        pipeline = self.script_instance.pipeline
        helping = missing_header_help(
            log,
            notes,
            nvrtc=not pipeline.host_code,
            directories=self.script_instance.header_directories,
        )
        return text.rstrip("\n") + "\n" + helping


def jobs(plan: Plan) -> Iterator[ProgramJob]:
    """Yield every program of every instance, in plan order; shared hashes come as often as they are
    planned, because each instance wants its own verdict."""
    for instance, script_instance in zip(plan.instances, plan.script_instances, strict=True):
        for index in sorted(plan.wanted.get(instance.hash, range(len(instance.programs)))):
            program = instance.programs[index]
            yield ProgramJob(program, index, instance, script_instance)
