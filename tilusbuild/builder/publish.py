"""Publish the results of a build: directories of scripts, the index, outputs of libraries.

The `Publication` of a request decides which: `ProjectPublication`, `ShardPublication`,
`ScriptPublication` for another root than the project, or `NoPublication`. A script's directory
lists every schedule with its program, and the facts that a deployment needs. A file that is right
already is not written again.

The directories below `include/` are named by a program's `compile.sh`. What an instance's programs
name is remembered by its hash, in the file `needed` of the cache's state; one that is not whole is
laid out again, and no program is compiled for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from msgspec import Struct

from tilusbuild.builder import outputs
from tilusbuild.builder.project import Project
from tilusbuild.builder.shards import Shard, list_shard_jobs
from tilusbuild.cache.disk import CacheReadOnlyError, InputChangedError
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.includes import is_include_whole
from tilusbuild.cache.index import record_build
from tilusbuild.cache.layout import find_header_digests, is_hash
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.events import Reporter, Result
from tilusbuild.errors import InputError
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.plan.rendering import RenderedProgram
from tilusbuild.runtime.search_roots import describe_origin
from tilusbuild.state.clock import FileTime
from tilusbuild.state.envelope import StateFile
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import DeviceStamp, are_settled, read_device_stamp

if TYPE_CHECKING:
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.plan.measured import MeasuredRow

    Rows: TypeAlias = dict[str, Sequence[MeasuredRow]]


class Publication(Struct, frozen=True):
    """The programs that a build compiles, and the files that it publishes of them."""

    restores_includes: ClassVar[bool] = False
    """Whether missing include directories of its programs are laid out again."""

    def list_jobs(self, plan: Plan, reporter: Reporter, /) -> Iterable[ProgramJob]:
        """Return the programs to build. The engine iterates them when the build has begun."""
        return iterate_jobs(plan)

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        """Return warnings of measurements and sizes that no program serves. Raises `InputError`,
        before anything is compiled, for a plan that cannot be published."""
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
    """The key of the index that keeps the scripts; None: the project's manifest."""

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        outputs.check_outputs(project, plan)
        return list_dispatch_notices(project, plan)

    def publish_results(
        self, project: Project, plan: Plan, selection: PlanSelection, result: Result, /
    ) -> None:
        """Publish the scripts that are not known to be current, the index and the outputs. Remember
        the scripts that are current now. Raises `CacheError`, `InputError`."""
        published = PublishedScripts(project, result.statuses)
        outdated = [instance for instance in plan.instances if not published.is_current(instance)]
        looks_before = [published.look_at_directory(instance) for instance in outdated]
        outdated_hashes = {instance.hash for instance in outdated}
        current_hashes = {instance.hash for instance in plan.instances} - outdated_hashes
        publish_plan(project, plan, selection, known=current_hashes, root=self.root)
        # A script that is published for another root has no dispatcher, which this project needs.
        # So its directory is not remembered as right.
        if self.root is None:
            for instance, look in zip(outdated, looks_before, strict=True):
                published.note_current(instance, look)
            published.save_rows()


class ScriptPublication(ProjectPublication, frozen=True):
    """The scripts alone: `root` keeps them in the index, and they get no dispatcher."""

    def list_notices(self, project: Project, plan: Plan, /) -> tuple[str, ...]:
        return ()


# Of a script's directory: itself, its files and its two directories of links, whose stamps change
# with any link.
_SCRIPT_PARTS = ("", "script.txt", "script.json", "schedule.txt", "programs", "failed")


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
    rows: Rows = {}
    dispatchers = dispatchers and root is None
    unknown = [instance for instance in plan.instances if instance.hash not in known]

    def restore_directories() -> None:
        # If all instances were known, no lock was held until now. A collection may have removed the
        # directory of one that no index named.
        for instance in plan.instances:
            if not os.path.isdir(_locate_script(project, instance)):
                _publish_script(project, instance, rows, dispatcher=False)

    if root is None:
        outputs.write_outputs(project, plan)
    inputs = {project.manifest.path, *plan.inputs}
    try:
        # Under this lock no collection removes what is looked up below. A build that finds
        # everything takes no lock, as it must not wait for a collection.
        with project.cache.hold_use() if unknown else nullcontext():
            for instance in unknown:
                _publish_script(project, instance, rows, dispatcher=dispatchers)
            # The index is written last: a collection refuses to run while the index names a
            # directory that is missing.
            record_build(
                project.cache,
                project.manifest.path if root is None else root,
                plan.project,
                [(instance.directory, instance.hash) for instance in plan.instances],
                replace=root is not None or selection.is_whole,
                keeps_larger=selection.level < 2,
                origin={} if root else describe_origin(project.manifest.root, inputs),
                before_write=restore_directories,
            )
    except CacheReadOnlyError:
        # Everything that a reader needs is in the cache already. It only misses the names under
        # which this project finds its programs again.
        return


def _publish_script(
    project: Project, instance: PlannedInstance, rows: Rows, *, dispatcher: bool
) -> None:
    """Publish an instance's directory and its tables. With `dispatcher`, publish its C dispatcher,
    too. `rows` is filled here: with the measurements of each script, by its directory's name."""
    # Imported only here: after most edits no directory changes, and the start should be quick.
    from tilusbuild.dispatch.measurements import read_rows
    from tilusbuild.dispatch.refresh import refresh_script

    entries = {program: lookup_entry(project.cache, program) for program in instance.programs}
    metas = [entry.meta if entry else None for entry in entries.values()]
    if instance.directory not in rows:
        rows[instance.directory] = read_rows(project.cache, instance.directory)
    record = make_script_record(project, instance, metas, rows[instance.directory])
    statuses = {program: entry.status for program, entry in entries.items() if entry is not None}
    path = publish_script(project.cache, record, statuses)
    refresh_script(
        project.cache,
        path,
        project.manifest,
        instance,
        project.runner,
        rows[instance.directory],
        dispatcher=dispatcher,
    )


def make_script_record(
    project: Project,
    instance: PlannedInstance,
    metas: Sequence[Mapping[str, Any] | None],
    rows: Sequence[MeasuredRow] = (),
) -> ScriptRecord:
    """Return the content of a script's directory: every schedule and the resources of its program.

    `metas` has the meta.json of each program, None without an entry. A new directory starts with
    the tables that follow from `rows`, the measurements of the script.
    """
    from tilusbuild.cache.scripts import ScriptRecord
    from tilusbuild.dispatch.describe import make_script_json
    from tilusbuild.dispatch.measurements import find_committed_rows
    from tilusbuild.dispatch.tables import (
        list_schedule_columns,
        make_schedule_rows,
        make_table_files,
    )
    from tilusbuild.runtime.script import parse_description
    from tilusbuild.runtime.sealed import unseal_json

    schedules = (
        schedule.values for schedule in instance.spec.space.take_points(instance.schedules)
    )
    script_json = make_script_json(project.manifest, instance, metas)

    def make_initial_files() -> dict[str, bytes]:
        """Return the tables of a new directory."""
        script = parse_description(_locate_script(project, instance), unseal_json(script_json))
        return make_table_files(
            script, rows, find_committed_rows(project.manifest, instance.script, instance)
        )

    return ScriptRecord(
        instance.directory,
        instance.script_txt,
        list_schedule_columns(instance.parameters),
        make_schedule_rows(instance.parameters, schedules, instance.programs_by_number, metas),
        script_json,
        make_initial_files,
    )


def list_dispatch_notices(project: Project, plan: Plan) -> tuple[str, ...]:
    """Return, in words, the measurements that cannot be read, or do not serve the plan's new script
    directories as they were made, and the manifest's sizes that no program serves. Raises
    `InputError`."""
    # The imports below are made only where they are needed: most scripts were not tuned, and the
    # start should be quick.
    notices = []
    for directory in dict.fromkeys(instance.directory for instance in plan.instances):
        if os.path.exists(project.cache.locate_measurements(directory)):
            from tilusbuild.dispatch.measurements import describe_damage

            notices.append(describe_damage(project.cache, directory))
    for instance in plan.instances:
        path = _locate_script(project, instance)
        # The script has directories, but none for this instance: publishing makes a new one.
        if not os.path.isdir(path) and os.path.isdir(os.path.dirname(path)):
            from tilusbuild.dispatch.describe import describe_planned
            from tilusbuild.dispatch.measurements import describe_stale_sizes, read_rows

            if rows := read_rows(project.cache, instance.directory):
                script = describe_planned(project.manifest, instance, path)
                notices.append(describe_stale_sizes(script, rows))
        section = project.manifest.scripts[instance.script]
        if section.serves and section.tune is not None:
            from tilusbuild.dispatch.describe import describe_planned, describe_unserved

            planned = describe_planned(project.manifest, instance, path)
            notices += describe_unserved(planned, section.tune.sizes)
        dispatch = section.dispatch
        if dispatch is not None and dispatch.measured is not None:
            from tilusbuild.dispatch.committed import describe_unused_rows
            from tilusbuild.dispatch.describe import find_dispatch_keys

            keys = find_dispatch_keys(dispatch, instance)
            notices.append(describe_unused_rows(project.cache, instance, dispatch.measured, keys))
    return tuple(notice for notice in notices if notice)


def _locate_script(project: Project, instance: PlannedInstance) -> str:
    return project.cache.script_path(instance.directory, instance.hash)


class DirectoryLook(NamedTuple):
    """The stamps of a script's directory, and a time before they were read."""

    stamps: list[DeviceStamp]
    time: FileTime


class PublishedScripts:
    """The script directories that are known to be right, so that they are not made again.

    A script directory follows from its instance, from what the manifest says of the script, from
    the statuses of its programs, and from `code`, the digest of our own. When all of these are what
    they were when it was last checked, and the directory, its files, its two directories of links
    and the script's measurements have their stamps, it is right.
    """

    def __init__(self, project: Project, statuses: Mapping[str, str]) -> None:
        """`statuses` are those of a build's programs."""
        self._project = project
        self._statuses = statuses
        self._file = StateFile(project.cache.state_path, "published")

    def is_current(self, instance: PlannedInstance) -> bool:
        """Return whether the directory of an instance is known to be right."""
        # A dispatcher follows from the results of tuning, too.
        if self._project.manifest.scripts[instance.script].dispatch is not None:
            return False
        row = self._file.get_value(instance.hash)
        if not row:
            return False
        return bool(row == self._make_row(instance, self.look_at_directory(instance).stamps))

    def look_at_directory(self, instance: PlannedInstance) -> DirectoryLook:
        """Return the stamps of an instance's directory, of its parts `_SCRIPT_PARTS`, and of the
        measurements that its tables follow from."""
        time = self._project.clock.read_time()
        directory = _locate_script(self._project, instance)
        paths = [os.path.join(directory, part) for part in _SCRIPT_PARTS]
        paths.append(self._project.cache.locate_measurements(instance.directory))
        return DirectoryLook([read_device_stamp(path) for path in paths], time)

    def note_current(self, instance: PlannedInstance, before: DirectoryLook) -> None:
        """Remember an instance's directory as right, if it is still as it was `before` it was
        published, and a later change would change a stamp."""
        # A directory that publishing has changed has stamps that are too young to show another
        # change. It is not remembered by this build, but by the next one.
        stamps = before.stamps
        if self.look_at_directory(instance).stamps == stamps and are_settled(stamps, before.time):
            self._file.put_value(instance.hash, self._make_row(instance, stamps))

    def save_rows(self) -> None:
        """Save the changed rows. An error of the disk is ignored: this is state."""
        tree = self._project.cache
        # The rows of directories that are gone are dropped.
        hashes: set[str] = set()
        for name in tree.list_names("scripts"):
            hashes.update(tree.list_names("scripts", name))
        self._file.save_records(keep=hashes.__contains__)

    def _make_row(self, instance: PlannedInstance, stamps: list[DeviceStamp]) -> list[object]:
        """Return a row of the file: the digest of what a directory follows from, and its stamps."""
        manifest = self._project.manifest
        parts = (
            self._project.memo.code,
            repr(manifest.scripts[instance.script]),
            repr(manifest.targets[instance.target.name]),
            *(self._statuses.get(program, "") for program in instance.programs),
        )
        digest = sha256_text("\n".join(parts))
        return [digest, [list(device_stamp.stamp) for device_stamp in stamps]]


class NeededDirectories:
    """The digests of the directories that each instance's programs were compiled with."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache
        self._file = StateFile(cache.state_path, "needed")

    def find_digests(self, instance: PlannedInstance) -> list[str]:
        """Return the sorted digests for an instance, from the file or else from its programs. They
        are kept for the file, once all the instance's programs are built."""
        stored = self._file.get_value(instance.hash)
        if isinstance(stored, list) and all(
            isinstance(item, str) and is_hash(item) for item in stored
        ):
            return stored
        from tilusbuild.cache.garbage import read_compile_script

        texts = [read_compile_script(self._cache.program_path(p)) for p in instance.programs]
        digests = sorted({name for text in texts for name in find_header_digests(text or b"")})
        # The directories of a program are known only when it is built: until then nothing is kept.
        if texts and None not in texts:
            self._file.put_value(instance.hash, digests)
        return digests

    def read_program_digests(self, program: str) -> list[str]:
        """Return the digests that a program's `compile.sh` names."""
        from tilusbuild.cache.garbage import read_header_digests

        return read_header_digests(self._cache.program_path(program))

    def save_digests(self) -> None:
        """Save the changed digests. An error of the disk is ignored: this is state."""
        self._file.save_records()


def restore_needed(cache: Tree, plan: Plan, lay_out: Callable[[RenderedProgram], None]) -> None:
    """Call `lay_out` with the first program that names each missing include directory of a plan. A
    program that cannot be rendered is passed over. Raises `CacheError` and `CancelledError`."""
    needed = NeededDirectories(cache)

    @functools.cache
    def is_whole(digest: str) -> bool:
        # Only the names are checked: contents are compared before a compile may use them.
        return is_include_whole(cache.include_path(digest), digest, deep=False)

    for instance in plan.instances:
        missing = {digest for digest in needed.find_digests(instance) if not is_whole(digest)}
        for number, program in instance.programs_by_number.items():
            if not missing:
                break
            named_digests = missing.intersection(needed.read_program_digests(program))
            if named_digests:
                # A program whose inputs have changed is not in the next build, which needs no
                # directory for it either.
                with suppress(InputError, InputChangedError, CacheReadOnlyError):
                    lay_out(ProgramJob(program, number, instance).render())
                missing -= named_digests
    needed.save_digests()
