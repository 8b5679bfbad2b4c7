"""Write the no-op record of a build, from which the next one sees that there is nothing to do.

Collected here is everything that the build's answer rests on: the manifest, T1 files, templates,
headers and the directories that they were searched for in, every tool and header of the toolchain,
the directories of PATH, tilusbuild's own code, and of the cache tree what a load needs and what a
removed file shows in: docs/cache.md has the list. The bytes are those that `tilusbuild.noop` reads.

What a record proves is what the plan read: each input has the stamp that was seen before it was
read, and one that could have changed after that without another stamp makes that there is no
record. So no clock is asked what happened during the build.
"""

from __future__ import annotations

import json
import os
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild import noop
from tilusbuild._version import __version__
from tilusbuild.builder import outputs
from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import NeededDirectories
from tilusbuild.cache import layout
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import PRODUCT
from tilusbuild.engine.events import BuildStarted, Planned, Result, Summary
from tilusbuild.plan.planner import Plan
from tilusbuild.report.jsonl import event_to_json
from tilusbuild.report.summary import format_summary
from tilusbuild.state.clock import FileClock, FileTime
from tilusbuild.state.files import sweep_temporary_files, write_atomic
from tilusbuild.state.stamp import ABSENT, DeviceStamp, Stamp, read_device_stamp, read_stamp
from tilusbuild.status import RECORDED, Status

MAX_CHECKED_DIRECTORIES = 2_000
"""Programs of a build up to which one with nothing to do looks at their directories too, in which a
deleted file shows: 2 ms. Of more, where that would be a quarter of its time, it looks at what was
compiled, which shows that this, `module` or the whole program was deleted."""
_DIRECTORIES = ("", "/module")
"""Of a program: each of these shows that a file in it was removed, added or replaced. Each more of
what is looked at is a tenth of the time of a large build with nothing to do."""
_GROUP_SIZE = 1000
"""Entries: so many names are made at once."""
_MAX_RECORDS = 256
"""Records of other commands are removed, oldest first, when there are more."""

Endings: TypeAlias = tuple[str, ...]
_Entries: TypeAlias = dict[tuple[str, Endings], list[str]]
"""By a prefix and endings the words between: each path of prefix, word and ending is there."""

_Group: TypeAlias = tuple[tuple[str, str], list[str], list[Stamp]]
"""What the names begin and end with, the words between, the stamps."""


class Invocation(Struct, frozen=True):
    """The command that is being answered."""

    key: bytes
    """By `noop.make_key`, in the directory where the command was given."""
    started: int
    """When it began to read, by `time.monotonic_ns`."""

    def find_start_moment(self, clock: FileClock) -> FileTime:
        """Return when it began to read, for stamps."""
        return clock.read_time().subtract(time.monotonic_ns() - self.started)


class PlanRead(Struct, frozen=True):
    """What the plan of a command read. It is made when the plan is, before anything is compiled."""

    invocation: Invocation
    started: FileTime
    inputs: Mapping[str, DeviceStamp]
    """Each as it was before it was read; a directory that was only searched, as it was when the
    plan was made."""

    @classmethod
    def collect_inputs(cls, project: Project, planned: Plan, invocation: Invocation) -> PlanRead:
        """Return the inputs of a plan. Call this just after the plan was made."""
        return cls(
            invocation,
            invocation.find_start_moment(project.clock),
            _collect_inputs(project, planned),
        )


def write_record(
    project: Project, planned: Plan, result: Result, jobs: int, read: PlanRead
) -> None:
    """Write the record for a command, if the same command would now have nothing to do.

    Nothing is raised: a build that is not remembered only runs in full again.
    """
    if any(status not in RECORDED for status in result.statuses.values()):
        return
    path = noop.find_record_path(read.invocation.key, project.environment)
    if path is None:
        return
    with suppress(OSError):
        programs = _make_programs_prefix(project.cache)
        entries = _list_program_entries(project.cache, result.statuses, _find_products(planned))
        entries |= _list_directory_entries(project.cache, planned)
        answer = _format_answer(result.summary, BuildStarted(jobs, __version__))
        inputs = {**_collect_read_inputs(project, planned), **read.inputs}
        inputs |= {
            path: read_device_stamp(path) for path in outputs.list_output_paths(project, planned)
        }

        def is_whole(before: str, word: str) -> bool:
            return before != programs or lookup_entry(project.cache, word) is not None

        made = make_record(read.invocation.key, answer, inputs, entries, read.started, is_whole)
        # Not the records alone: beside them is what is remembered of manifests.
        sweep_temporary_files(os.path.dirname(os.path.dirname(path)), deep=True)
        if made is None:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, made)
        _remove_oldest(os.path.dirname(path))


def _make_programs_prefix(cache: Tree) -> str:
    return os.path.join(cache.program_path(""), "")


def _find_products(planned: Plan) -> dict[str, str]:
    """Return the product of each planned program that is not made into a library."""
    return {
        program: instance.spec.pipeline.product
        for instance in planned.instances
        if instance.spec.pipeline.product != PRODUCT
        for program in instance.programs
    }


def _list_program_entries(
    cache: Tree, statuses: Mapping[str, str], products: Mapping[str, str]
) -> _Entries:
    """Return what is looked at of each program, whose `products` are libraries but for these; one
    that was not built has none."""
    found: _Entries = {}
    for program, status in statuses.items():
        endings: Endings = _DIRECTORIES
        if status == Status.BUILT:
            whole = _DIRECTORIES if len(statuses) <= MAX_CHECKED_DIRECTORIES else ()
            endings = (*whole, f"/module/{products.get(program, PRODUCT)}")
        found.setdefault((_make_programs_prefix(cache), endings), []).append(program)
    return found


def _list_directory_entries(cache: Tree, planned: Plan) -> _Entries:
    """Return what is looked at besides: all of the scripts' directories but what was measured, the
    directories that programs were compiled with, and what garbage collection goes by."""
    needed = NeededDirectories(cache)
    scripts = [cache.script_path(each.directory, each.hash) for each in planned.instances]
    digests = {digest for each in planned.instances for digest in needed.find_digests(each)}
    tops = [cache.include_path(digest) for digest in sorted(digests)]
    paths = [
        *(path for script in scripts for path in _walk_directory(script)),
        *(path for top in tops if os.path.isdir(top) for path in _walk_directory(top, files=False)),
    ]
    index = cache.path(layout.INDEX)
    if os.path.exists(index):  # a cache that is read-only need not have one
        paths.append(index)
    found: _Entries = {}
    for path in paths:
        directory, name = os.path.split(path)
        found.setdefault((os.path.join(directory, ""), (_NO_ENDING,)), []).append(name)
    return found


_NO_ENDING = ""
_MEASURED = layout.LATENCY


def _walk_directory(top: str, *, files: bool = True) -> Iterator[str]:
    """Yield a directory and everything below it except links."""
    yield top
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:  # which says itself what is a link: a script has one for each program
            if entry.is_dir(follow_symlinks=False):
                if entry.name != _MEASURED:
                    yield from _walk_directory(entry.path, files=files)
            elif files and not entry.is_symlink():
                yield entry.path


def input_paths(project: Project, plan: Plan | None) -> set[str]:
    """Return the files and directories that a plan follows from: the manifest and the files that it
    names, templates, headers, the directories in which one of these was looked for, and those of
    tools. Without a plan: those that an attempt to make one has read.

    Files that are missing are among them. The tools and their headers are not: digests have them.
    """
    manifest = project.manifest
    paths = {manifest.path, *manifest.searched_directories, *manifest.reading.sightings}
    paths.update(path for script in manifest.scripts for path in manifest.data_of(script))
    paths.update(project.renderer.sightings, list_tool_directories(project.environment))
    return paths if plan is None else paths | plan.inputs


def _collect_inputs(project: Project, planned: Plan) -> dict[str, DeviceStamp]:
    """Return everything that the plan's answer rests on, as it was when it was read."""
    found = _collect_read_inputs(project, planned)
    others = input_paths(project, planned) | _list_own_files()
    return {**{path: read_device_stamp(path) for path in others - found.keys()}, **found}


def _collect_read_inputs(project: Project, planned: Plan) -> dict[str, DeviceStamp]:
    """Return the files and directories that were read or searched for the programs so far.
    Compiling may add more."""
    # What was read twice may have changed between: the first stamp shows that.
    found = {**project.renderer.sightings, **project.digests.list_inputs(), **project.sightings}
    return {**{path: read_device_stamp(path) for path in planned.inputs - found.keys()}, **found}


def list_tool_directories(environment: Mapping[str, str]) -> set[str]:
    """Return the directories in which a new tool would be found before a tool in use."""
    found = {"/usr/local", *environment.get("PATH", "").split(os.pathsep)}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        found.add(os.path.join(environment.get(name) or "/usr/local/cuda", "bin"))
    packages = sysconfig.get_path("purelib")
    return found | {packages, os.path.join(packages, "nvidia")}


def _list_own_files() -> set[str]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {
        os.path.join(where, name)
        for where, _, names in os.walk(package)
        for name in (".", *names)
        if not where.endswith("__pycache__")
    }


def _format_answer(summary: Summary, start: BuildStarted) -> bytes:
    """Return the output of the same build with nothing to do: texts, and lines of JSON.

    The seconds are filled in when it is printed.
    """
    # What a remote did wrong is over: its programs were compiled here.
    blamed = summary.remote is not None and summary.remote.wrong
    bad = not all(verdict.ok for verdict in summary.scripts)
    again = replace(
        summary,
        exit_status=int(bad) if blamed else summary.exit_status,
        compiled=0,
        cached=summary.cached + summary.compiled,
        attempts=0,
        seconds=0.0,
        error=None,
        remote=None,
    )
    plan = Planned(
        programs=again.programs,
        cached=again.cached,
        failed=again.failed,
        pruned=again.pruned,
        to_compile=0,
        expected_seconds=None,
    )
    lines = [json.dumps(event_to_json(event)) for event in (start, plan, again)]
    texts = [format_summary(again), format_summary(again, quiet=True), "\n".join(lines) + "\n"]
    status = str(again.exit_status)
    return "\0".join([status, *texts]).encode("utf-8", "surrogateescape")


def make_record(
    name: bytes,
    summary: bytes,
    inputs: Mapping[str, DeviceStamp],
    entries: _Entries,
    started: FileTime,
    is_whole: Callable[[str, str], bool] = lambda before, word: True,
) -> bytes | None:
    """Return a record; None when an input was too young at `started`, when the build began to read,
    for its stamp to show whether it changed after that.

    `inputs` are as they were before they were read. `is_whole` is asked for each prefix and word of
    `entries` that changed after the start, when its stamps were taken: else a part that was removed
    meanwhile would be recorded as missing.
    """
    if not all(seen.is_settled(started) for seen in inputs.values()):
        return None
    files = sorted(inputs)
    groups = _group_by_directory(files, [inputs[file].stamp for file in files])
    for (before, endings), words in sorted(entries.items()):
        for start in range(0, len(words), _GROUP_SIZE):
            some = list(words[start : start + _GROUP_SIZE])
            seen = [
                read_device_stamp(before + word + ending) for word in some for ending in endings
            ]
            found = [each.stamp for each in seen]
            most = len(endings)
            young = {at // most for at, each in enumerate(seen) if not each.is_settled(started)}
            if ABSENT in found or not all(is_whole(before, some[at]) for at in young):
                return None
            groups.append(((before, noop.BETWEEN.decode().join(endings)), some, found))
    parts = [_pack_data(name), _pack_data(summary)]
    for around, middles, found in groups:
        names = "\0".join([*around, *middles]).encode("utf-8", "surrogateescape")
        parts += [
            _pack_data(names),
            _pack_data(b"".join(noop.STAMP.pack(*stamp) for stamp in found)),
        ]
    body = b"".join(parts)
    return noop.MAGIC + noop.HEAD.pack(zlib.crc32(body), len(body)) + body


def _group_by_directory(files: Sequence[str], stamps: Sequence[Stamp]) -> list[_Group]:
    """Return the inputs as groups, each of one directory: there, a name is found sooner than by its
    whole path. What is missing, or has no absolute path, comes first and by its whole name."""
    directories: dict[str, tuple[list[str], list[Stamp]]] = {"": ([], [])}
    for file, stamp in zip(files, stamps, strict=True):
        directory, name = os.path.split(file)
        whole = stamp == ABSENT or not name or not os.path.isabs(file)
        key = "" if whole else os.path.join(directory, "")
        names, found = directories.setdefault(key, ([], []))
        names.append(file if whole else name)
        found.append(stamp)
    return [((directory, ""), *group) for directory, group in directories.items()]


def _pack_data(data: bytes) -> bytes:
    return noop.COUNT.pack(len(data)) + data


def _remove_oldest(directory: str) -> None:
    names = os.listdir(directory)
    if len(names) > _MAX_RECORDS:
        paths = [os.path.join(directory, name) for name in names]
        oldest = sorted(paths, key=lambda path: read_stamp(path).mtime)
        for path in oldest[: len(names) - _MAX_RECORDS]:
            os.unlink(path)
