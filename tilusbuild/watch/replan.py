"""Planning again what changed, and only that.

The plan is kept part by part, a part being a script for a target. One whose files and tables are
what they were is kept as it is, with its compiled templates and header closures; one whose
templates or headers changed keeps its space and is rendered again; only where its tables changed
its space is made again. The default schedule of every part comes before the rest, and a program is
handed on the moment that it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.builder import outputs
from tilusbuild.builder.project import Project
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.table import Table
from tilusbuild.plan.instance import Inputs, PlannedInstance, is_link
from tilusbuild.plan.model import PlanSelection, Target, chosen_pairs
from tilusbuild.plan.planner import (
    Plan,
    Planner,
    ProgramJob,
    jobs,
    named,
    planned_instance,
    with_named,
)
from tilusbuild.plan.rendering import Reads
from tilusbuild.plan.roots import roots_of
from tilusbuild.plan.spaces import chosen
from tilusbuild.render.renderer import Renderer
from tilusbuild.render.scans import Scans
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.toolchain import Toolchain
from tilusbuild.watch.dependencies import (
    MANIFEST,
    REFERENCES,
    TOOLS,
    Dependencies,
    Part,
    dependencies_of_part,
    dependencies_of_tools,
    references,
)

Found = Callable[[ProgramJob, str | None], None]
"""Called with each program that is new, with the hash of the one in whose place it stands."""


class PlannedPart(Struct, frozen=True):
    """A part of the plan as it is now."""

    instances: tuple[PlannedInstance, ...]
    declared: str
    """Everything that the manifest says about it."""
    dependencies: Dependencies

    @property
    def programs(self) -> set[str]:
        return {program for instance in self.instances for program in instance.programs}


class PlanState(Struct, frozen=True):
    """A whole plan, and what it rests on."""

    project: Project
    toolchains: Mapping[str, Toolchain]
    """By their names."""
    parts: dict[Part, PlannedPart]
    renders: int
    """How many renderings it took to come here from the plan before."""
    plan: Plan
    problems: tuple[Diagnostic, ...]
    """What is wrong with some parts. They are here as they were when they were right, if ever."""
    wrong: frozenset[Part]
    """Which parts that are."""

    @property
    def dependencies(self) -> dict[Part, Dependencies]:
        """What each part, the manifest and the tools depend on."""
        manifest = self.project.manifest
        return {
            # Itself, and where the patterns of its libraries look.
            MANIFEST: Dependencies(frozenset({manifest.path, *manifest.searched})),
            TOOLS: dependencies_of_tools(self.toolchains.values(), self.project.environment),
            REFERENCES: references(manifest),
            **{part: planning.dependencies for part, planning in self.parts.items()},
        }

    @property
    def programs(self) -> set[str]:
        return {program for planning in self.parts.values() for program in planning.programs}

    @property
    def tools_changed(self) -> bool:
        """Whether some tool is not what it was when it was found."""
        return any(each.changed() is not None for each in self.toolchains.values())

    def jobs(self) -> Iterator[ProgramJob]:
        """Yield every program of the plan."""
        return jobs(self.plan)


class _Draft(Struct):
    """An instance under way: its schedules are decided, and some programs made."""

    before: PlannedInstance
    """With the schedules and the sources of the new one; with its old programs, or none."""
    programs: dict[int, str] = field(default_factory=dict)
    reads: Reads = field(default_factory=Reads)

    @property
    def first(self) -> int:
        return self.before.first

    def finished(self) -> PlannedInstance:
        old = self.before
        programs = tuple(self.programs[number] for number in old.schedules)
        inputs = self.reads.inputs(old.spec, old.sources)
        default = None if old.default is None else old.spec.space[old.default]
        return planned_instance(old.spec, old.sources, old.schedules, default, programs, inputs)


class Replanner(Struct):
    """Plans the selected part of a project, again and again."""

    selection: PlanSelection
    found: Found
    between_renders: Callable[[], None]
    """Called between two renderings; what it raises ends the planning."""
    _scans: Scans | None = None
    _renders: int = 0

    def first(self, project: Project) -> PlanState:
        """Return the plan of a project that was just opened. Raises `InputError` as `again`."""
        return self._plan(project, None, ())

    def again(self, state: PlanState, dirty: Collection[Part]) -> PlanState:
        """Return the plan after changes to these parts.

        Raises `InputError` when there can be none: the manifest is wrong, or a tool is missing, or
        an output is not to be written.
        """
        project = state.project
        # A toolkit has more parts than are watched.
        tools = TOOLS in dirty or state.tools_changed
        is_other = project.manifest.reading.again() is None
        if tools or is_other or not {MANIFEST, REFERENCES}.isdisjoint(dirty):
            project = project.reread(tools=tools)
        return self._plan(project, state, dirty)

    def _plan(
        self, project: Project, state: PlanState | None, dirty: Collection[Part]
    ) -> PlanState:
        self._renders = 0
        # The manifest may declare another level now.
        self.selection = replace(self.selection, level=project.settings.level.value)
        planner = project.planner(self.selection)
        planner.renderer = Renderer(project.manifest.root)
        self._scans = project.memo.scans = self._scans or project.memo.scans
        if state is not None and (state.toolchains != planner.toolchains or state.tools_changed):
            # Every hash has a toolchain in it: nothing of the old plan can be kept. Equal tools
            # that are other files count too, because a compile must not see them change.
            state = None
        parts: dict[Part, PlannedPart] = {}
        drafts: dict[Part, list[_Draft]] = {}
        problems = _Problems()
        pairs = dict(self._pairs(project.manifest))
        links = [part for part in pairs if is_link(project.manifest.scripts[part[0]])]
        old_parts = state.parts if state is not None else {}
        for part, target in pairs.items():
            old = old_parts.get(part)
            if part in links:
                continue
            if (
                old is not None
                and part not in dirty
                and old.declared == self._declared(project.manifest, part)
            ):
                parts[part] = old
                continue
            with problems.of(part):
                drafts[part] = self._drafts(planner, part, target, old)
        # The default schedules of all parts before the others of any: they are compiled meanwhile.
        for whole in (False, True):
            for part, started in drafts.items():
                with problems.of(part):
                    for draft in started if part not in problems.parts else ():
                        self._make(draft, whole=whole)
        for part in pairs:
            if part in problems.parts:
                # Wrong now: it stays as it was when it was last right, if it ever was.
                parts.update({part: old_parts[part]} if part in old_parts else {})
            elif part in drafts:
                parts[part] = self._finished(planner, part, drafts[part])
        for part in links:
            with problems.of(part):
                parts[part] = self._linked(planner, part, pairs[part], parts)
        ordered = {part: parts[part] for part in pairs if part in parts}
        instances = tuple(i for planning in ordered.values() for i in planning.instances)
        plan = Plan(project.manifest.project.name, project.manifest.root, instances)
        outputs.check(project, plan)
        return PlanState(
            project,
            planner.toolchains,
            ordered,
            self._renders,
            plan,
            tuple(problems.diagnostics),
            frozenset(problems.parts),
        )

    def _linked(
        self, planner: Planner, part: Part, target: Target, parts: Mapping[Part, PlannedPart]
    ) -> PlannedPart:
        """Return a library's part, planned again from its objects as they are."""
        script = part[0]
        planner.objects.clear()
        for name in planner.manifest.objects_of(script):
            planned = parts.get((name, target.name))
            for instance in planned.instances if planned else ():
                schedules = instance.spec.space.take_points(instance.schedules)
                planner.note_objects(instance, schedules)
        sources = planner.sources_of(script, target)
        specs = tuple(planner.specs(script, target, self.selection))
        instances = tuple(planner.instance(each, sources) for each in specs)
        return PlannedPart(
            instances,
            self._declared(planner.manifest, part),
            dependencies_of_part(planner.manifest, script, _inputs(instances), ()),
        )

    def _pairs(self, manifest: Manifest) -> Iterator[tuple[Part, Target]]:
        selection = self.selection.with_objects(manifest)
        for script, target in chosen_pairs(manifest, selection):
            yield (script, target.name), target

    def _drafts(
        self, planner: Planner, part: Part, target: Target, old: PlannedPart | None
    ) -> list[_Draft]:
        script = part[0]
        sources = planner.sources_of(script, target)
        if old is not None and old.declared == self._declared(planner.manifest, part):
            return [_Draft(replace(each, sources=sources)) for each in old.instances]
        drafts = []
        selection = self.selection.with_objects(planner.manifest)
        for spec in planner.specs(script, target, selection):
            self.between_renders()
            level = 2 if spec.is_part else self.selection.level
            schedules, default = chosen(planner.manifest, script, target, spec.space, level)
            wanted = named(spec, schedules, selection)
            numbers = tuple(with_named(spec.space, schedules, wanted).indices)
            before = planned_instance(spec, sources, numbers, default, (), Inputs())
            drafts.append(_Draft(before))
        return drafts

    def _make(self, draft: _Draft, *, whole: bool) -> None:
        """Make the default program, or with `whole` all the others."""
        old = draft.before
        known = old.numbered if old.programs else {}
        for index in old.schedules if whole else old.schedules and [draft.first]:
            if index in draft.programs:
                continue
            self.between_renders()
            self._renders += 1
            job = ProgramJob("", index, old)
            program = draft.reads.of(job.render()).hash
            draft.programs[index] = program
            before = known.get(index)
            if program != before:
                self.found(replace(job, hash=program), before)

    def _finished(self, planner: Planner, part: Part, drafts: list[_Draft]) -> PlannedPart:
        manifest = planner.manifest
        instances = tuple(draft.finished() for draft in drafts)
        roots = roots_of(manifest, part[0], manifest.scripts[part[0]].template)
        dependencies = dependencies_of_part(manifest, part[0], _inputs(instances), roots)
        return PlannedPart(instances, self._declared(manifest, part), dependencies)

    def _declared(self, manifest: Manifest, part: Part) -> str:
        """Return everything that the manifest, and the files of data that it names, say about a
        part."""
        name, target = part
        script = manifest.scripts[name]
        texts = [
            str(self.selection.level),
            _said(script, without={"tune", "description"}),
            _said(manifest.targets[target]),
            _said(manifest.build, without=_NOT_OF_THE_PLAN),
            _said(manifest.toolchain),
        ]
        for path in manifest.data_of(name):
            try:
                texts.append(read_bytes(path).hex())
            except OSError as error:
                texts.append(str(error))
        return "\n".join(texts)


def _said(table: Table, without: Container[str] = ()) -> str:
    """Return what a table says, to compare."""
    return repr([(name, value) for name, value in table if name not in without])


class _Problems:
    """Gathers what an `InputError` says about a part, and goes on."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.parts: set[Part] = set()

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self.parts.add(part)
            self.diagnostics += [d for d in error.diagnostics if d not in self.diagnostics]


def _inputs(instances: Iterable[PlannedInstance]) -> Inputs:
    found = Inputs()
    for instance in instances:
        found |= instance.inputs
    return found


_NOT_OF_THE_PLAN = {"cache_dir", "jobs", "load_average", "nice", "level", "timeout"}
