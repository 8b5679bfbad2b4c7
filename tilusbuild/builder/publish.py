"""What a build writes beside programs: directories of scripts, the index, outputs of libraries.

Which of these a build writes is the `Publication` of its request: `ProjectPublication`,
`ShardPublication`, `ScriptPublication` for another root than the project, or `NoPublication`. A
script's directory lists every schedule with its program, and the facts that a deployment needs. A
file that is right already is not written again.

The directories below `include/` are named by a program's `compile.sh`. What an instance's programs
name is remembered by its hash, in the file `needed` of the cache's state; one that is not whole is
laid out again, and no program is compiled for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from tilusbuild.builder import outputs
from tilusbuild.builder.project import Project
from tilusbuild.builder.shards import Shard, list_shard_jobs
from tilusbuild.cache.disk import CacheReadOnlyError, InputChangedError
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.includes import is_include_whole
from tilusbuild.cache.index import record_build
from tilusbuild.cache.layout import is_hash
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.errors import InputError
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.plan.rendering import RenderedProgram
from tilusbuild.runtime.table_file import read_measured_keys
from tilusbuild.state.clock import FileClock, FileTime
from tilusbuild.state.envelope import StateFile
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp, are_settled, read_device_stamp

if TYPE_CHECKING:
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.runtime.table_file import Refusal


class Publication(Struct, frozen=True):
    """The programs that a build compiles, and the files that it publishes of them."""

    restores_includes: ClassVar[bool] = False
    """Whether what is missing of what its programs were compiled with is laid out again."""

    def list_jobs(self, plan: Plan, reporter: Reporter, /) -> Iterable[ProgramJob]:
        """Return the programs to have; asked for when the build has begun."""
        return iterate_jobs(plan)

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        """Return warnings of measurements that publishing would drop. Raises `InputError`, before
        anything is compiled, for a plan that cannot be published."""
        return ()

    def publish_results(
        self, project: Project, plan: Plan, selection: PlanSelection, result: Result, /
    ) -> None:
        """Publish, after a build that was not stopped. Raises `CacheError`, `InputError`."""


class NoPublication(Publication, frozen=True):
    """Some programs of a plan."""

    programs: tuple[ProgramJob, ...]

    def list_jobs(self, plan: Plan, reporter: Reporter, /) -> Iterable[ProgramJob]:
        return self.programs


class ShardPublication(Publication, frozen=True):
    """A shard: `cache merge` writes dispatchers and measurements when the shards are joined."""

    shard: Shard

    def list_jobs(self, plan: Plan, reporter: Reporter, /) -> Iterable[ProgramJob]:
        return list_shard_jobs(plan, self.shard, reporter)

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        outputs.check_outputs(project, plan)
        return ()

    def publish_results(
        self, project: Project, plan: Plan, selection: PlanSelection, result: Result, /
    ) -> None:
        publish_plan(project, plan, selection, dispatchers=False)


class ProjectPublication(Publication, frozen=True):
    """What a project has: scripts, dispatchers, outputs of libraries, its place in the index."""

    restores_includes = True
    root: str | None = None
    """Who keeps the scripts, where that is not the project."""

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        outputs.check_outputs(project, plan)
        return list_dropped_measurements(project, plan)

    def publish_results(
        self, project: Project, plan: Plan, selection: PlanSelection, result: Result, /
    ) -> None:
        """Publish the scripts that are not known to be current, and record those that are current
        now."""
        published = PublishedScripts(
            project.cache, project.manifest, project.memo.code, project.clock
        )
        known = {
            each.hash for each in plan.instances if published.is_current(each, result.statuses)
        }
        unknown = [instance for instance in plan.instances if instance.hash not in known]
        before = [published.look_at_directory(instance) for instance in unknown]
        publish_plan(project, plan, selection, known=known, root=self.root)
        if self.root is None:
            for instance, look in zip(unknown, before, strict=True):
                published.note_current(instance, result.statuses, look)
            published.save_rows()


class ScriptPublication(ProjectPublication, frozen=True):
    """The scripts alone: `root` keeps them in the index, and they get no dispatcher."""

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        return ()


_PARTS = ("", "script.txt", "script.json", "schedule.txt", "programs", "failed")


def publish_plan(
    project: Project,
    plan: Plan,
    selection: PlanSelection,
    *,
    known: Container[str] = (),
    dispatchers: bool = True,
    root: str | None = None,
) -> None:
    """Publish the scripts' directories, the index and the libraries' outputs, unless they are
    right.

    Instances whose hash is in `known` are skipped. With `dispatchers`, dispatchers are made too: a
    shard has only a part of the programs, so its build makes none. `root` is the index's key in
    place of the manifest. Raises `CacheError` and `InputError`.
    """
    dispatch = _DispatchRefresher(project) if dispatchers and root is None else None
    unknown = [instance for instance in plan.instances if instance.hash not in known]

    def restore_directories() -> None:
        # Where all were known, no lock was held until now: a collection may have taken a directory
        # that no index named.
        for instance in plan.instances:
            if not os.path.isdir(_locate_script(project, instance)):
                _publish_script(project, instance, None)

    if root is None:
        outputs.write_outputs(project, plan)
    try:
        # Nothing that is looked up below is removed meanwhile. A build that finds everything takes
        # no lock, as it must not wait for a collection.
        with project.cache.hold_use() if unknown else nullcontext():
            for instance in unknown:
                _publish_script(project, instance, dispatch)
            record_build(
                project.cache,
                project.manifest.path if root is None else root,
                plan.project,
                [(instance.directory, instance.hash) for instance in plan.instances],
                replace=root is not None or selection.is_whole,
                before_write=restore_directories,
            )
    except CacheReadOnlyError:
        # Everything that a reader needs is there: a cache that cannot be written only misses the
        # names under which this project finds its programs again.
        return


class _DispatchRefresher:
    """What keeps dispatch current in the directories that a build publishes."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._refused: dict[str, Mapping[str, Refusal]] = {}

    def refresh_directory(self, path: str, instance: PlannedInstance) -> None:
        """Raises as `refresh_script`."""
        # Imported only here: after most edits no directory changes, and the start should be quick.
        from tilusbuild.dispatch import latency
        from tilusbuild.dispatch.refresh import refresh_script

        siblings = os.path.dirname(path)
        if siblings not in self._refused:
            self._refused[siblings] = latency.collect_refusals(siblings)
        project = self._project
        refresh_script(
            project.cache,
            path,
            project.manifest,
            instance,
            project.runner,
            self._refused[siblings],
        )


def _publish_script(
    project: Project,
    instance: PlannedInstance,
    dispatch: _DispatchRefresher | None,
) -> None:
    """Publish a script's directory and its tables; with `dispatch` its dispatcher, too."""
    metas = read_metas(project, instance)
    record = make_script_record(project, instance, metas, inherits=dispatch is not None)
    statuses = {p: meta["status"] for p, meta in metas.items() if meta is not None}
    path = publish_script(project.cache, record, statuses)
    if dispatch is None:
        from tilusbuild.dispatch.refresh import refresh_tables

        refresh_tables(path)
    else:
        dispatch.refresh_directory(path, instance)


def read_metas(project: Project, instance: PlannedInstance) -> dict[str, Mapping[str, Any] | None]:
    """Return the meta.json of each program of an instance; None for a program without an entry."""
    entries = ((program, lookup_entry(project.cache, program)) for program in instance.programs)
    return {program: entry.meta if entry else None for program, entry in entries}


def make_script_record(
    project: Project,
    instance: PlannedInstance,
    known: Mapping[str, Mapping[str, Any] | None],
    *,
    inherits: bool = False,
) -> ScriptRecord:
    """Return the content of a script's directory: every schedule and the resources of its program,
    as `read_metas` returns them. With `inherits`, a new directory starts with the measurements of
    the same programs in earlier ones."""
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.dispatch.carry_over import make_initial_files
    from tilusbuild.dispatch.describe import make_script_json
    from tilusbuild.dispatch.tables import list_schedule_columns, make_schedule_rows

    metas = [known[program] for program in instance.programs]
    schedules = (
        schedule.values for schedule in instance.spec.space.take_points(instance.schedules)
    )
    described = make_script_json(project.manifest, instance, metas)
    return ScriptRecord(
        instance.directory,
        instance.script_txt,
        list_schedule_columns(instance.parameters),
        make_schedule_rows(instance.parameters, schedules, instance.programs_by_number, metas),
        described,
        partial(make_initial_files, _locate_script(project, instance), described, carry=inherits),
    )


def list_dropped_measurements(project: Project, plan: Plan) -> tuple[str, ...]:
    """Return, in words, the measurements that the plan's new script directories will not have.
    Raises `InputError`."""
    found = []
    for instance in plan.instances:
        path = _locate_script(project, instance)
        if os.path.isdir(path):
            found.append(_describe_other_keys(project, instance, path))
        elif os.path.isdir(os.path.dirname(path)):
            from tilusbuild.dispatch.carry_over import describe_lost_rows
            from tilusbuild.dispatch.describe import make_script_json

            metas = [None] * len(instance.programs)
            described = partial(make_script_json, project.manifest, instance, metas)
            found.append(describe_lost_rows(path, described))
        dispatch = project.manifest.scripts[instance.script].dispatch
        if dispatch is not None and dispatch.measured is not None:
            from tilusbuild.dispatch.committed import describe_unused_rows

            found.append(
                describe_unused_rows(project.cache, instance, dispatch.measured, dispatch.keys)
            )
    return tuple(filter(None, found))


def _describe_other_keys(project: Project, instance: PlannedInstance, path: str) -> str | None:
    """Return a text if the measurements in a script's directory are for other dispatch keys; else
    None."""
    measured = read_measured_keys(path)
    if measured is None:
        return None
    # Imported only here: most scripts were not tuned, and the start should be quick.
    from tilusbuild.dispatch.carry_over import format_other_keys
    from tilusbuild.dispatch.describe import find_dispatch_keys

    keys = find_dispatch_keys(project.manifest.scripts[instance.script].dispatch, instance)
    return None if measured == keys else format_other_keys(instance.label, measured, keys)


def _locate_script(project: Project, instance: PlannedInstance) -> str:
    return project.cache.script_path(instance.directory, instance.hash)


class PublishedScripts:
    """The script directories that are known to be right, so that they are not made again.

    A script directory follows from its instance, from what the manifest says of the script, from
    the statuses of its programs, and from `code`, the digest of our own. When all of these are what
    they were when it was last checked, and the directory, its files and its two directories of
    links have their stamps, it is right. Whatever is not known is worked out.
    """

    def __init__(self, tree: Tree, manifest: Manifest, code: str, clock: FileClock) -> None:
        self._tree = tree
        self._manifest = manifest
        self._code = code
        self._clock = clock
        self._file = StateFile(tree.state_path, "published")

    def is_current(self, instance: PlannedInstance, statuses: Mapping[str, str]) -> bool:
        """Return whether the directory of an instance is known to be right."""
        if self._manifest.scripts[instance.script].dispatch is not None:
            return False  # its dispatcher follows from the results of tuning, too
        known = self._file.get_value(instance.hash)
        return bool(known) and known == self._make_row(
            instance, statuses, self.look_at_directory(instance)[0]
        )

    def look_at_directory(self, instance: PlannedInstance) -> tuple[list[DeviceStamp], FileTime]:
        """Return the directory's parts as they are, and a moment before they were looked at."""
        moment = self._clock.read_time()
        directory = self._tree.script_path(instance.directory, instance.hash)
        return [read_device_stamp(os.path.join(directory, part)) for part in _PARTS], moment

    def note_current(
        self,
        instance: PlannedInstance,
        statuses: Mapping[str, str],
        before: tuple[list[DeviceStamp], FileTime],
    ) -> None:
        """Remember that the directory was right as it was before it was published: if publishing
        changed it, the next build finds out."""
        seen, moment = before
        if self.look_at_directory(instance)[0] == seen and are_settled(seen, moment):
            self._file.put_value(instance.hash, self._make_row(instance, statuses, seen))

    def save_rows(self) -> None:
        """Save the changed rows. An error of the disk is ignored: this is state."""
        names = self._tree.list_names("scripts")
        there = {digest for name in names for digest in self._tree.list_names("scripts", name)}
        self._file.save_records(keep=there.__contains__)

    def _make_row(
        self, instance: PlannedInstance, statuses: Mapping[str, str], seen: list[DeviceStamp]
    ) -> list[object]:
        manifest = self._manifest
        parts = (
            self._code,
            repr(manifest.scripts[instance.script]),
            repr(manifest.targets[instance.target.name]),
            *(statuses.get(program, "") for program in instance.programs),
        )
        return [sha256_text("\n".join(parts)), [list(each.stamp) for each in seen]]


class NeededDirectories:
    """The digests of the directories that each instance's programs were compiled with."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache
        self._file = StateFile(cache.state_path, "needed")

    def find_digests(self, instance: PlannedInstance) -> list[str]:
        """Return the digests, sorted."""
        known = self._file.get_value(instance.hash)
        if isinstance(known, list) and all(isinstance(d, str) and is_hash(d) for d in known):
            return known
        found = self.read_digests(instance)
        if all(lookup_entry(self._cache, program) for program in instance.programs[:1]):
            self._file.put_value(instance.hash, found)
        return found

    def read_digests(self, instance: PlannedInstance) -> list[str]:
        """Return the digests as the programs name them now."""
        return sorted(
            {d for program in instance.programs for d in self._read_program_digests(program)}
        )

    def restore_directories(
        self,
        jobs: Iterable[ProgramJob],
        missing: set[str],
        lay_out: Callable[[RenderedProgram], None],
    ) -> None:
        """Lay out the missing directories, each by the first job that names it. Raises `CacheError`
        and `CancelledError`."""
        for job in jobs:
            if not missing:
                return
            if named := missing.intersection(self._read_program_digests(job.hash)):
                # What no longer renders so is not needed by the next build either.
                with suppress(InputError, InputChangedError, CacheReadOnlyError):
                    lay_out(job.render())
                missing -= named

    def save_digests(self) -> None:
        """Save the changed digests. An error of the disk is ignored: this is state."""
        self._file.save_records()

    def _read_program_digests(self, program: str) -> list[str]:
        from tilusbuild.cache.garbage import read_header_digests

        return read_header_digests(self._cache.program_path(program))


def restore_needed(cache: Tree, plan: Plan, lay_out: Callable[[RenderedProgram], None]) -> None:
    """Lay out the missing include directories of a plan's programs. Raises `CacheError` and
    `CancelledError`."""
    needed = NeededDirectories(cache)
    whole: dict[str, bool] = {}
    for instance in plan.instances:
        digests = needed.find_digests(instance)
        for digest in digests:
            if digest not in whole:
                # Contents are compared before a compile may use them.
                whole[digest] = is_include_whole(cache.include_path(digest), digest, deep=False)
        if missing := {digest for digest in digests if not whole[digest]}:
            every = (
                ProgramJob(each, i, instance) for i, each in instance.programs_by_number.items()
            )
            needed.restore_directories(
                every, missing.intersection(needed.read_digests(instance)), lay_out
            )
    needed.save_digests()
