"""Planning again what changed, and only that.

The plan is kept part by part, a part being a script for a target. One whose files and tables are
what they were is kept as it is, with its compiled templates and header closures; one whose
templates or headers changed keeps its space and is rendered anew; only where its tables changed
its space is made again. The default schedule of every part comes before the rest, and a program is
handed on the moment that it is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.manifest import Manifest
from tilusbuild.plan.jobs import ProgramJob, jobs
from tilusbuild.plan.maker import Maker
from tilusbuild.plan.model import Instance, Plan, Target
from tilusbuild.plan.planner import Planned, Planner, planned_instance, position
from tilusbuild.plan.selection import Selection, chosen_pairs
from tilusbuild.plan.spaces import chosen
from tilusbuild.project.project import Project
from tilusbuild.render.includes import Scan
from tilusbuild.render.renderer import Renderer
from tilusbuild.toolchain import Toolchain
from tilusbuild.watch.inputs import needs_of_manifest, needs_of_part, needs_of_tools, references
from tilusbuild.watch.needs import MANIFEST, REFERENCES, TOOLS, Needs, Part

Found = Callable[[ProgramJob, str | None], None]
"""Told of each program that is new, with the hash of the one in whose place it stands."""


@dataclass(frozen=True, slots=True)
class Planning:
    """A part of the plan as it is now."""

    instances: tuple[Instance, ...]
    makers: tuple[Maker, ...]
    said: str
    """Everything that the manifest says about it."""
    needs: Needs

    @property
    def programs(self) -> set[str]:
        return {program for instance in self.instances for program in instance.programs}


@dataclass(frozen=True, slots=True)
class State:
    """A whole plan, and what it rests on."""

    project: Project
    toolchain: Toolchain
    parts: dict[Part, Planning]
    renders: int
    """How many renderings it took to come here from the plan before."""
    planned: Planned

    @property
    def needs(self) -> dict[Part, Needs]:
        """What each part, the manifest and the tools depend on."""
        manifest = self.project.manifest
        return {
            MANIFEST: needs_of_manifest(manifest),
            TOOLS: needs_of_tools(self.toolchain, self.project.environment),
            REFERENCES: references(manifest),
            **{part: planning.needs for part, planning in self.parts.items()},
        }

    @property
    def programs(self) -> set[str]:
        return {program for planning in self.parts.values() for program in planning.programs}

    def jobs(self) -> Iterator[ProgramJob]:
        """Every program of the plan."""
        return jobs(self.planned)


@dataclass(slots=True)
class _Draft:
    """An instance under way: its schedules are decided, and some programs made."""

    maker: Maker
    before: Instance
    """With the schedules of the new one; with its old programs, or none."""
    programs: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        return self.before.default or 0

    def finished(self) -> Instance:
        old = self.before
        programs = tuple(self.programs[index] for index in range(len(old.schedules)))
        return planned_instance(self.maker, old.schedules, old.default, programs)


@dataclass(slots=True)
class Replanner:
    """Plans the selected part of a project, again and again."""

    selection: Selection
    found: Found
    check: Callable[[], None]
    """Called between two renderings; what it raises ends the planning."""
    _scans: dict[str, Scan] = field(default_factory=dict)
    _renders: int = 0

    def first(self, project: Project) -> State:
        """The plan of a project that was just opened. Raises `InputError`."""
        return self._plan(project, None, ())

    def again(self, state: State, dirty: Collection[Part]) -> State:
        """The plan after changes to these parts. Raises `InputError`, with all that is wrong."""
        project = state.project
        if not {MANIFEST, TOOLS, REFERENCES}.isdisjoint(dirty):
            project = project.reread(tools=TOOLS in dirty)
        return self._plan(project, state, dirty)

    def _plan(self, project: Project, state: State | None, dirty: Collection[Part]) -> State:
        self._renders = 0
        # The manifest may say another one now.
        self.selection = replace(self.selection, level=project.settings.level.value)
        planner = project.planner(self.selection)
        planner.renderer = _renderer(project)
        planner.scans = self._scans
        if state is not None and state.toolchain != planner.toolchain:
            state = None
        parts: dict[Part, Planning] = {}
        drafts: dict[Part, list[_Draft]] = {}
        problems: list[Diagnostic] = []
        pairs = dict(self._pairs(project.manifest))
        for part, target in pairs.items():
            old = state.parts.get(part) if state is not None else None
            if (
                old is not None
                and part not in dirty
                and old.said == self._said(project.manifest, part)
            ):
                parts[part] = old
                continue
            with _collected(problems):
                drafts[part] = self._drafts(planner, part, target, old)
        for whole in (False, True):
            for started in drafts.values():
                with _collected(problems):
                    for draft in started:
                        self._make(draft, parts, whole=whole)
        if problems:
            raise InputError(*problems)
        for part, started in drafts.items():
            parts[part] = self._finished(planner, part, started)
        ordered = {part: parts[part] for part in pairs}
        return State(
            project, planner.toolchain, ordered, self._renders, _together(project, ordered)
        )

    def _pairs(self, manifest: Manifest) -> Iterator[tuple[Part, Target]]:
        for script, target in chosen_pairs(manifest, self.selection):
            yield (script, target.name), target

    def _drafts(
        self, planner: Planner, part: Part, target: Target, old: Planning | None
    ) -> list[_Draft]:
        script = part[0]
        if old is not None and old.said == self._said(planner.manifest, part):
            headers = planner.headers(script)
            return [
                _Draft(maker.renewed(planner.renderer, headers), instance)
                for maker, instance in zip(old.makers, old.instances, strict=True)
            ]
        drafts = []
        for maker in planner.makers(script, target):
            self.check()
            level = self.selection.level
            schedules, default = chosen(planner.manifest, script, target, maker.space, level)
            numbers = tuple(schedule.index for schedule in schedules)
            before = planned_instance(maker, numbers, position(numbers, default), ())
            drafts.append(_Draft(maker, before))
        return drafts

    def _make(self, draft: _Draft, kept: dict[Part, Planning], *, whole: bool) -> None:
        """Make the default program, or with `whole` all the others."""
        old = draft.before
        indices = range(len(old.schedules)) if whole else range(draft.first, draft.first + 1)
        for index in indices:
            if index in draft.programs or index >= len(old.schedules):
                continue
            self.check()
            self._renders += 1
            program = draft.maker.make(draft.maker.space[old.schedules[index]]).hash
            draft.programs[index] = program
            before = old.programs[index] if old.programs else None
            if program != before:
                self.found(ProgramJob(program, index, old, draft.maker), before)

    def _finished(self, planner: Planner, part: Part, drafts: list[_Draft]) -> Planning:
        manifest = planner.manifest
        makers = tuple(draft.maker for draft in drafts)
        needs = needs_of_part(manifest, part[0], makers, planner.headers(part[0]).roots)
        instances = tuple(draft.finished() for draft in drafts)
        return Planning(instances, makers, self._said(manifest, part), needs)

    def _said(self, manifest: Manifest, part: Part) -> str:
        """Everything that the manifest, and a T1 file that it names, say about a part."""
        name, target = part
        script = manifest.scripts[name]
        texts = [
            str(self.selection.level),
            script.model_dump_json(exclude={"tune", "description"}),
            manifest.targets[target].model_dump_json(),
            manifest.build.model_dump_json(exclude=_NOT_OF_THE_PLAN),
            manifest.toolchain.model_dump_json(),
        ]
        if script.space_file is not None:
            try:
                with open(os.path.join(manifest.root, script.space_file), "rb") as file:
                    texts.append(file.read().hex())
            except OSError as error:
                texts.append(str(error))
        return "\n".join(texts)


class _collected:  # noqa: N801 - used as a statement
    """Gathers what an `InputError` says, and goes on."""

    def __init__(self, problems: list[Diagnostic]) -> None:
        self._problems = problems

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, InputError):
            return False
        self._problems.extend(d for d in error.diagnostics if d not in self._problems)
        return True


def _renderer(project: Project) -> Renderer:
    folder = os.path.join(project.cache.state_path, "templates")
    return Renderer(project.manifest.root, bytecode_dir=folder)


def _together(project: Project, parts: dict[Part, Planning]) -> Planned:
    instances = tuple(i for planning in parts.values() for i in planning.instances)
    makers = tuple(m for planning in parts.values() for m in planning.makers)
    plan = Plan(project.manifest.project.name, project.manifest.root, instances)
    return Planned(plan, makers)


_NOT_OF_THE_PLAN = {"cache_dir", "jobs", "level", "timeout"}
