"""Manifest and toolchains → plan: which programs there are, what each is called, and their jobs.

Planning only reads. Every instance of every script is planned, for each of its targets, in the
manifest's order, so that all mistakes are reported in one run. A plan keeps hashes and no sources;
a `ProgramJob` renders its program again when it is compiled, and the engine compares the texts with
the hash, so that what is compiled is always what the hash names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic, InputError, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan import identity, library
from tilusbuild.plan.instance import (
    InstanceSpec,
    PlannedInstance,
    ScriptReader,
    choose_pipeline,
    make_instance_spec,
    read_style,
)
from tilusbuild.plan.measured import read_committed_rows
from tilusbuild.plan.memo import PlanMemo
from tilusbuild.plan.model import PlanSelection, Target, list_instances, select_script_targets
from tilusbuild.plan.rendering import (
    ReadsCollector,
    RenderedProgram,
    render_program,
    render_programs,
)
from tilusbuild.plan.roots import find_roots
from tilusbuild.plan.spaces import (
    ChosenSchedules,
    choose_schedules,
    collect_default_values,
    find_unmet_rules,
    format_question,
    locate_space_error,
    make_space_spec,
)
from tilusbuild.render.closure import Outside, Root
from tilusbuild.render.headers import Headers
from tilusbuild.render.renderer import Renderer
from tilusbuild.runtime.naming import NamePattern, format_program_name, matches_value
from tilusbuild.space.model import Schedule, Schedules, SpaceError
from tilusbuild.space.space import SAMPLE_BUDGET, Space
from tilusbuild.state.files import sha256_text
from tilusbuild.toolchain import DigestMemory, Toolchain

StartAhead: TypeAlias = "Callable[[ProgramJob], None]"
"""Called with each new program of a generator while others are generated."""


class Plan(Struct, frozen=True):
    """Every program of a build, in order, and what renders it again."""

    project: str
    root: str
    instances: tuple[PlannedInstance, ...]
    selected_numbers: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Of an instance that is asked for in part: the numbers of the programs that are, by its
    hash."""

    @property
    def size(self) -> int:
        """Return the number of distinct programs."""
        return len({job.hash for job in iterate_jobs(self)})

    @property
    def inputs(self) -> set[str]:
        """Return the paths that the plan depends on besides the manifest and the toolchains."""
        return {path for instance in self.instances for path in instance.inputs.paths}


class Planner(Struct):
    """Plans one project. Closures and compiled templates are reused by the next plan."""

    manifest: Manifest
    toolchains: Mapping[str, Toolchain]
    """By their names: what the selected scripts are compiled with."""
    renderer: Renderer
    memory: DigestMemory
    memo: PlanMemo | None = None
    """The hashes of earlier plans; without it every program is rendered."""
    start_ahead: StartAhead | None = None
    objects: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)
    """What was planned of scripts of objects, by script and target: each one's name and hash."""
    _headers: dict[tuple[tuple[Root, ...], Outside], Headers] = field(default_factory=dict)
    """By search path: scripts with the same one share what was found."""

    def make_plan(self, selection: PlanSelection) -> Plan:
        """Return the plan of the selected instances. Empties `objects` first. Raises `InputError`
        with all mistakes."""
        self.objects.clear()
        problems: list[Diagnostic] = []
        instances: list[PlannedInstance] = []
        schedules_by_script: dict[str, list[Sequence[Schedule]]] = {}
        selected_numbers: dict[str, Collection[int]] = {}
        for script, target in select_script_targets(self.manifest, selection):
            try:
                sources = self.make_reader(script, target)
                for spec in self.describe_instances(script, target, selection):
                    schedules, default = self._choose_schedules(spec, selection.level)
                    numbers = select_numbers(spec, schedules, selection)
                    schedules = add_numbers(spec.space, schedules, numbers)
                    instance = self._plan_instance(spec, sources, schedules, default, numbers)
                    instances.append(instance)
                    if numbers is not None:
                        selected_numbers[instance.hash] = numbers
                    # The manifest lists a library after its objects, so these are recorded before
                    # the library is planned.
                    if spec.is_part:
                        self.record_objects(instance, schedules)
                    schedules_by_script.setdefault(script, []).append(schedules)
            except InputError as error:
                # A template's mistake, or a rule's, is found for each target, and reported once.
                known = {(problem.location, problem.hint) for problem in problems}
                problems += [p for p in error.diagnostics if (p.location, p.hint) not in known]
        manifest = self.manifest
        # A wrong space makes every rule seem unmet, so rules are checked only without other
        # problems.
        if not problems:
            problems += find_unmet_rules(manifest, schedules_by_script)
        if problems:
            raise InputError(*problems)
        return Plan(manifest.project.name, manifest.root, tuple(instances), selected_numbers)

    def describe_instances(
        self, script: str, target: Target, selection: PlanSelection
    ) -> Iterator[InstanceSpec]:
        """Yield the spec of each selected instance of a script. Raises `InputError`."""
        tuned_rows = read_committed_rows(self.manifest, script)
        for params in list_instances(self.manifest, script, target.name):
            if not selection.has_instance(script, params, target.name):
                continue
            spec = make_space_spec(self.manifest, script, target, params)
            size = None if self.memo is None else self.memo.spaces.find_size(script, spec)
            needs_count = selection.level == 2
            # A plan of a sample may have remembered a size without the count of points. Level 2
            # needs the count, so the space is enumerated again.
            if needs_count and size is not None:
                point_count, _ = size
                size = None if point_count is None else size
            try:
                space = Space(spec, size, budget=None if needs_count else SAMPLE_BUDGET)
            except SpaceError as error:
                raise locate_space_error(
                    self.manifest, script, target.name, error, params
                ) from None
            toolchain = self.get_toolchain(script, target)
            objects = library.list_linked_objects(self.manifest, script, target.name, self.objects)
            tuned = tuple(row for row in tuned_rows if row.is_of_instance(target.name, params))
            yield make_instance_spec(
                self.manifest, script, target, params, space, toolchain, objects, tuned
            )

    def get_toolchain(self, script: str, target: Target) -> Toolchain:
        """Return the toolchain that compiles a script for a target."""
        return self.toolchains[self.manifest.find_toolchain_name(script, target.name)]

    def make_reader(self, script: str, target: Target) -> ScriptReader:
        """Return the reader of a script's templates and headers."""
        # Every program asks for its template's headers, so the answer is kept for each template.
        headers = cache(partial(self.find_headers, script, target))
        style = read_style(self.manifest.scripts[script])
        renderer = self.renderer.get_styled_renderer(style)
        # Generated headers are always templates, also where the source is a file as it is.
        generator = self.renderer.get_styled_renderer(replace(style, rendered=True, function=""))
        return ScriptReader(renderer, generator, headers, self.memory)

    def find_headers(self, script: str, target: Target, template: str) -> Headers:
        """Return the headers that sources of a template can reach; one object for each search
        path. Raises `InputError`."""
        toolchain = self.get_toolchain(script, target)
        pipeline = choose_pipeline(self.manifest, script, target, toolchain.device_compiler)
        outside = pipeline.list_outside_directories(toolchain)
        # A compiler ignores `-I` of a directory that is in its own search path.
        own_directories = {os.path.realpath(directory) for directory in outside.directories}
        roots = tuple(
            root
            for root in find_roots(self.manifest, script, template)
            if os.path.realpath(root.path) not in own_directories
        )
        search_path = roots, outside
        if search_path not in self._headers:
            scans = None if self.memo is None else self.memo.scans
            self._headers[search_path] = Headers(
                roots, outside=outside, digests=self.memory, scans=scans
            )
        return self._headers[search_path]

    def _plan_instance(
        self,
        spec: InstanceSpec,
        sources: ScriptReader,
        schedules: Schedules,
        default: Schedule | None,
        selected_numbers: Collection[int] | None,
    ) -> PlannedInstance:
        """Return an instance with the hashes of its programs, rendered or remembered. The selected
        ones of a generator are started ahead. Raises `InputError`."""
        numbers = tuple(schedules.indices)
        default_number = None if default is None else default.index
        draft = PlannedInstance(
            spec=spec,
            sources=sources,
            schedules=numbers,
            default=default_number if default_number in numbers else None,
        )

        def start_ahead(position: int, program: str) -> None:
            number = numbers[position]
            if self.start_ahead and (selected_numbers is None or number in selected_numbers):
                self.start_ahead(ProgramJob(program, number, draft))

        # A link also depends on libraries on the disk. The memo has no digests of them, so it could
        # not see that one has changed.
        if self.memo is not None and not (spec.is_link or spec.owner.links):
            programs, inputs = self.memo.find_program_hashes(
                spec, sources, schedules, start_ahead if sources.renderer.jobs > 1 else None
            )
        else:
            reads = ReadsCollector()
            programs = tuple(
                reads.add_program(program).hash
                for program in render_programs(spec, sources, schedules)
            )
            inputs = reads.collect_inputs(spec, sources)
        script_txt = identity.format_script_text(
            script=spec.script,
            params=spec.params,
            target=spec.target.name,
            arch=spec.target.arch,
            signature=spec.signature.format_text().splitlines(),
            programs=zip(numbers, programs, strict=True),
        )
        return replace(
            draft,
            programs=programs,
            inputs=inputs,
            script_txt=script_txt,
            hash=sha256_text(script_txt),
        )

    def record_objects(self, instance: PlannedInstance, schedules: Sequence[Schedule]) -> None:
        """Append an instance's programs to `objects`, for the library that links them."""
        key = instance.script, instance.target.name
        names = library.name_objects(instance, schedules)
        self.objects.setdefault(key, []).extend(zip(names, instance.programs, strict=True))

    def _choose_schedules(self, spec: InstanceSpec, level: int) -> ChosenSchedules:
        """Return the schedules of a level and the declared default; remembered ones if nothing
        changed."""
        manifest, script, target, space = self.manifest, spec.script, spec.target, spec.space
        if spec.is_part:
            level = 2  # a library links all of its objects
        choose = partial(choose_schedules, manifest, script, spec.params, target, space, level)
        if self.memo is None:
            return choose()
        question = format_question(manifest, script, target, level)
        return self.memo.spaces.find_schedules(script, space, question, choose)


def select_numbers(
    spec: InstanceSpec, schedules: Schedules, selection: PlanSelection
) -> set[int] | None:
    """Return the numbers of the programs that the selection's names select; None if no name is of
    this instance, or if a name selects the whole instance.

    A name selects by number (`gemm/3`) or by values (`gemm[bm=64]`): all matches among `schedules`,
    those of the level, or else the first match in the space. Raises `InputError`.
    """
    numbers: set[int] = set()
    for name in selection.names:
        if not name.matches_instance(spec.script, spec.params, spec.target.name):
            continue
        if name.program is None and not name.schedule:
            return None
        if name.schedule:
            matching_numbers = {
                point.index
                for point in schedules
                if name.matches_program(point.index, point.values)
            }
        else:
            # A number is compared without the values: making those of a large space is slow.
            matching_numbers = {
                number for number in schedules.indices if name.matches_program(number, {})
            }
        numbers |= matching_numbers or {_find_first_program(spec, name)}
    return numbers or None


def _find_first_program(spec: InstanceSpec, name: NamePattern) -> int:
    """Return the number of the first program in the whole space that matches a name. Raises
    `InputError` if there is none.

    Of a name with a number it is that number. Of a name with values it is the first point that is
    the default in the other parameters, or else the first point with these values.
    """
    space, number = spec.space, name.program
    if number is None:
        values = _find_named_values(space, name)
        if values.keys() >= {parameter for parameter, _ in name.schedule}:
            default_values = collect_default_values(spec.manifest, spec.script, spec.target)
            for partial_point in ({**default_values, **values}, values):
                with suppress(SpaceError):
                    return space.complete_point(partial_point).index
    elif space.has_point(number) and name.matches_program(number, space[number].values):
        return number
    point_count, _ = space.size
    hint = None if point_count is None else f"they go from 0 to {point_count - 1}"
    raise input_error(f"{spec.label} has no program {name}", hint=hint)


def _find_named_values(space: Space, name: NamePattern) -> dict[str, Value]:
    """Return the values that a name's texts stand for, by parameter: 64 for `gemm[bm=64]`. A text
    that no value is written as is left out."""
    values: dict[str, Value] = {}
    for parameter in space.spec.parameters:
        for row in (*parameter.values, parameter.otherwise or ()):
            # The names and the row differ in length only if the row is the `()` for no `otherwise`.
            for parameter_name, value in zip(parameter.names, row, strict=False):
                for key, text in name.schedule:
                    if key == parameter_name and matches_value(text, value):
                        values[parameter_name] = value
    return values


def add_numbers(space: Space, schedules: Schedules, numbers: set[int] | None) -> Schedules:
    """Return `schedules` and those with these numbers, in order; `schedules` for None."""
    if numbers is None or numbers <= {*schedules.indices}:
        return schedules
    return space.take_points(sorted({*schedules.indices, *numbers}))


class ProgramJob(Struct, frozen=True):
    """One program of a plan, as the engine gets it."""

    hash: str
    index: int
    """Its number: its place in the space, whatever of that is planned."""
    planned: PlannedInstance

    @property
    def label(self) -> str:
        planned = self.planned
        return format_program_name(planned.script, planned.params, self.index, planned.target.name)

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
        return self.planned.spec.is_part

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(program for _, program in self.planned.spec.objects)

    @property
    def kept_here(self) -> str:
        return library.explain_not_shared(self.planned.spec)

    @property
    def unit(self) -> str:
        """Return the name of its translation unit, unique in this build; "" without one."""
        spec = self.planned.spec
        if spec.grouping is None or not spec.pipeline.groups:
            return ""
        return f"{spec.label} {spec.grouping.find_unit_key(self.schedule.values)!r}"

    @property
    def schedule(self) -> Schedule:
        """Return the point of the space that this program is for."""
        return self.planned.spec.space[self.index]

    def render(self) -> RenderedProgram:
        """Render the program again. Raises `InputError` when the template is no longer right."""
        return render_program(self.planned.spec, self.planned.sources, self.schedule)

    def translate_log(self, log: str) -> str:
        """Return a compiler's log with the template's places, and help for a missing header."""
        # Imported only when a compiler says something: a build without messages starts sooner.
        from tilusbuild.plan import readable
        from tilusbuild.render.messages import explain_missing_header, misses_header

        spec, sources = self.planned.spec, self.planned.sources
        text = readable.make_log_readable(spec, sources, self.schedule, log)
        # A link has no headers; `make_log_readable` names its files.
        roots = () if spec.is_link else sources.headers(spec.owner.template).roots
        text = readable.restore_header_paths(text, roots, spec.manifest.root)
        text += readable.explain_missing_branch(spec, log)
        if not misses_header(log):
            return text
        try:
            # The notes are the closure's, and a plan keeps no closures: find the headers again.
            notes = self.render().closure.notes
        except InputError:
            # The template was edited since: the next build reports its mistake.
            notes = ()
        explanation = explain_missing_header(
            log,
            notes,
            nvrtc=not spec.pipeline.host_code,
            directories=[root.path for root in roots if not root.quoted_only],
            beside=[root.path for root in roots if root.quoted_only],
        )
        return text.rstrip("\n") + "\n" + explanation


def iterate_jobs(plan: Plan) -> Iterator[ProgramJob]:
    """Yield every program of every instance, in plan order. A hash that several instances share
    is yielded for each, because each instance publishes its own result."""
    for instance in plan.instances:
        selected_numbers = plan.selected_numbers.get(instance.hash)
        for number, program in instance.programs_by_number.items():
            if selected_numbers is None or number in selected_numbers:
                yield ProgramJob(program, number, instance)
