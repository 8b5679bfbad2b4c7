"""Write the no-op record of a build, from which the next one sees that there is nothing to do.

A record has everything that decides the build's answer: the manifest and the files that it names,
templates, headers and the directories that were searched for them, the toolchain, the directories
of PATH, tilusbuild's own code, and a part of the cache tree (docs/cache.md has the list). The bytes
are those that `tilusbuild.noop` reads.

Each input has the stamp that was seen before it was read. There is no record when one could have
changed after that without another stamp, so no clock is asked what happened during the build.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
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
from tilusbuild.state.clock import FileTime
from tilusbuild.state.files import sweep_temporary_files, write_atomic
from tilusbuild.state.stamp import ABSENT, DeviceStamp, Stamp, read_device_stamp, read_stamp
from tilusbuild.status import RECORDED, Status

MAX_CHECKED_DIRECTORIES = 2_000
"""Programs of a build up to which one with nothing to do looks at their directories too, in which a
deleted file shows: 2 ms. Of more, where that would be a quarter of its time, it looks at the
products only, which shows that a product, `module` or the whole program was deleted."""
# Of a program: each directory shows that a file in it was removed, added or replaced.
_DIRECTORIES = (noop.DIRECTORY, noop.DIRECTORY + "/module")
# Names of a group, which a check makes at once. Groups are also what its forks share.
_GROUP_SIZE = 1000
_MAX_RECORDS = 256

Entries: TypeAlias = dict[tuple[str, str], list[str]]
"""By a prefix and an ending the words between: each path of prefix, word and ending exists."""

_Group: TypeAlias = tuple[tuple[str, str], list[str], list[Stamp]]
"""The beginning and the end of the names, the words between, the stamps."""


class Invocation(Struct, frozen=True):
    """The command that is being answered."""

    key: bytes
    """By `noop.make_key`, in the directory where the command was given."""
    started: int
    """When it began to read, by `time.monotonic_ns`."""


class PlanRead(Struct, frozen=True):
    """The inputs that the plan of a command read, before anything was compiled."""

    key: bytes
    """As in `Invocation`."""
    started: FileTime
    """When the command began to read, by the clock that stamps files."""
    inputs: Mapping[str, DeviceStamp]
    """Each as it was before it was read; a directory that was only searched, as it was when the
    plan was made."""
    variables: bytes
    """What it asked of the environment, as `noop.format_variables` has it."""

    @classmethod
    def collect_inputs(cls, project: Project, planned: Plan, invocation: Invocation) -> PlanRead:
        """Return the inputs of a plan, with the stamps that were seen before they were read; those
        that were only searched get their stamps now. Call this just after the plan was made."""
        elapsed = time.monotonic_ns() - invocation.started
        started = project.clock.read_time().subtract(elapsed)
        inputs = _collect_read_inputs(project, planned)
        all_paths = list_input_paths(project, planned) | _list_own_files()
        for path in all_paths - inputs.keys():
            inputs[path] = read_device_stamp(path)
        names = (n for n in project.environment.asked if not n.startswith(noop.REMOTE_PREFIX))
        variables = noop.format_variables(sorted(names), project.environment)
        return cls(invocation.key, started, inputs, variables)


def write_record(
    project: Project, planned: Plan, result: Result, jobs: int, read: PlanRead
) -> None:
    """Write the record for a command, if the same command would now have nothing to do. Remove the
    oldest records beyond `_MAX_RECORDS`.

    `jobs` is the number of compiles at once, for the answer's JSON. An error of the disk is
    ignored: a build without a record only runs in full again.
    """
    if any(status not in RECORDED for status in result.statuses.values()):
        return
    path = noop.find_record_path(read.key, project.environment)
    if path is None:
        return
    with suppress(OSError):
        programs_prefix = _make_programs_prefix(project.cache)
        entries = _list_program_entries(project.cache, planned, result.statuses)
        entries |= _list_entries_besides_programs(project.cache, planned)
        answer = _format_answer(result.summary, BuildStarted(jobs, __version__))
        # Compiling may have read more than the plan. Of what both have read, the plan's stamps
        # count, which are older: a change in between shows.
        inputs = {**_collect_read_inputs(project, planned), **read.inputs}
        for output in outputs.list_outputs(project, planned):
            inputs[output.path] = read_device_stamp(output.path)

        def is_whole(prefix: str, word: str) -> bool:
            return prefix != programs_prefix or lookup_entry(project.cache, word) is not None

        record = make_record(
            read.key, answer, inputs, entries, read.started, is_whole, read.variables
        )
        records_directory = os.path.dirname(path)
        # The directory around the records is swept, as the memos of manifests are in it, too.
        sweep_temporary_files(os.path.dirname(records_directory), deep=True)
        if record is not None:
            os.makedirs(records_directory, exist_ok=True)
            write_atomic(path, record)
            _remove_oldest(records_directory)


def _make_programs_prefix(cache: Tree) -> str:
    """Return the directory of the programs' entries, with a slash at the end."""
    return os.path.join(cache.program_path(""), "")


def _list_program_entries(cache: Tree, planned: Plan, statuses: Mapping[str, str]) -> Entries:
    """Return the paths that are checked of each program: its directories and its product."""
    # Most programs have the product `PRODUCT`; these have another one.
    other_products: dict[str, str] = {}
    for instance in planned.instances:
        product = instance.spec.pipeline.product
        if product != PRODUCT:
            other_products.update(dict.fromkeys(instance.programs, product))
    prefix = _make_programs_prefix(cache)
    entries: Entries = {}
    for program, status in statuses.items():
        # A program that was not built has no product: only its directories show that it is there.
        if len(statuses) <= MAX_CHECKED_DIRECTORIES or status != Status.BUILT:
            for ending in _DIRECTORIES:
                entries.setdefault((prefix, ending), []).append(program)
        if status == Status.BUILT:
            ending = f"/module/{other_products.get(program, PRODUCT)}"
            entries.setdefault((prefix, ending), []).append(program)
    return entries


def _list_entries_besides_programs(cache: Tree, planned: Plan) -> Entries:
    """Return the paths that are checked besides the programs: the scripts' directories without
    their `latency`, the scripts' measurement files, the directories of headers that programs were
    compiled with, and the index."""
    needed = NeededDirectories(cache)
    instances = planned.instances
    scripts = [cache.script_path(instance.directory, instance.hash) for instance in instances]
    digests = {digest for instance in instances for digest in needed.find_digests(instance)}
    paths: list[str] = []
    for script in scripts:
        paths += _walk_directory(script)
    # The tables follow from them. Verbs that make the file write the tables, too.
    measurements = {cache.locate_measurements(instance.directory) for instance in instances}
    paths += filter(os.path.exists, measurements)
    for include in map(cache.include_path, sorted(digests)):
        if os.path.isdir(include):
            paths += _walk_directory(include, files=False)
    # Garbage collection goes by the index. A cache that is read-only need not have one.
    index = cache.path(layout.INDEX)
    if os.path.exists(index):
        paths.append(index)
    # The ending is empty: the word is the whole name.
    entries: Entries = {}
    for path in paths:
        directory, name = os.path.split(path)
        entries.setdefault((os.path.join(directory, ""), ""), []).append(name)
    return entries


def _walk_directory(top: str, *, files: bool = True) -> Iterator[str]:
    """Yield a directory and everything below it except links and `latency` directories; without
    `files` only the directories."""
    yield top
    # `scandir` knows without a `stat` which entries are links. A script's directory has a link for
    # each program, so this saves a `stat` for each.
    with suppress(OSError), os.scandir(top) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != layout.LATENCY:
                    yield from _walk_directory(entry.path, files=files)
            elif files and not entry.is_symlink():
                yield entry.path


def list_input_paths(project: Project, plan: Plan | None) -> set[str]:
    """Return the files and directories that a plan follows from: the manifest and the files that it
    names, templates, headers, the directories that were searched for one of these, and those of
    tools. Without a plan: those that an attempt to make one has read.

    Files that are missing are among them. The tools and their headers are not: digests have them.
    """
    manifest = project.manifest
    paths = {manifest.path, *manifest.searched_directories, *manifest.reading.first_stamps}
    paths.update(path for script in manifest.scripts for path in manifest.list_data_files(script))
    paths.update(project.renderer.first_stamps, list_tool_directories(project.environment))
    return paths if plan is None else paths | plan.inputs


def _collect_read_inputs(project: Project, planned: Plan) -> dict[str, DeviceStamp]:
    """Return the files and directories that were read or searched for the programs so far.
    Compiling may add more."""
    # A file that was read twice may have changed in between. Its earliest stamp is kept, with which
    # the change shows: so the stamps that were taken first come last here.
    inputs = {
        **project.renderer.first_stamps,
        **project.digests.list_inputs(),
        **project.first_stamps,
    }
    for path in planned.inputs - inputs.keys():
        inputs[path] = read_device_stamp(path)
    return inputs


def list_tool_directories(environment: Mapping[str, str]) -> set[str]:
    """Return the directories in which a new tool or Python package would be found before one in
    use."""
    directories = {"/usr/local", *environment.get("PATH", "").split(os.pathsep)}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        directories.add(os.path.join(environment.get(name) or "/usr/local/cuda", "bin"))
    for packages in filter(None, sys.path):
        directories |= {packages, os.path.join(packages, "nvidia")}
    return directories


def _list_own_files() -> set[str]:
    """Return tilusbuild's own files and directories: after an update no record holds."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths: set[str] = set()
    for directory, _, names in os.walk(package):
        if not directory.endswith("__pycache__"):
            # "." is the directory itself, in which a new file shows.
            paths.update(os.path.join(directory, name) for name in (".", *names))
    return paths


def _format_answer(summary: Summary, start: BuildStarted) -> bytes:
    """Return what the same build prints with nothing to do: exit status, summary, quiet summary and
    lines of JSON, with a NUL between each two.

    `noop.answer_build` fills the seconds in when it prints.
    """
    # A remote with a wrong program fails this build only: the programs were compiled here, and the
    # next build finds them in the cache.
    is_remote_wrong = summary.remote is not None and summary.remote.wrong
    has_failed_script = not all(verdict.ok for verdict in summary.scripts)
    repeated = replace(
        summary,
        exit_status=int(has_failed_script) if is_remote_wrong else summary.exit_status,
        compiled=0,
        cached=summary.cached + summary.compiled,
        attempts=0,
        seconds=0.0,
        error=None,
        remote=None,
    )
    plan = Planned(
        programs=repeated.programs,
        cached=repeated.cached,
        failed=repeated.failed,
        pruned=repeated.pruned,
        to_compile=0,
        expected_seconds=None,
    )
    lines = [json.dumps(event_to_json(event)) for event in (start, plan, repeated)]
    parts = [
        str(repeated.exit_status),
        format_summary(repeated),
        format_summary(repeated, quiet=True),
        "\n".join(lines) + "\n",
    ]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def make_record(
    name: bytes,
    summary: bytes,
    inputs: Mapping[str, DeviceStamp],
    entries: Entries,
    started: FileTime,
    is_whole: Callable[[str, str], bool] = lambda prefix, word: True,
    variables: bytes = b"",
) -> bytes | None:
    """Return the bytes of a record; None when a build cannot be answered from it.

    That is so when an input changed so shortly before `started`, when the build began to read, that
    a later change may have left its stamp; or when an entry is missing. `name` is the command's
    key, `summary` the answer, `variables` the plan's questions to the environment. `inputs` are as
    they were before they were read. `is_whole` is asked for each prefix and word of `entries` that
    changed after the start: a part of it that was removed since would be recorded as missing.
    """
    stamps_that_count = (stamp for path, stamp in inputs.items() if not path.endswith(os.sep))
    if not all(stamp.is_settled(started) for stamp in stamps_that_count):
        return None
    groups = _group_by_directory(inputs)
    unsettled: set[tuple[str, str]] = set()
    for (prefix, ending), all_words in sorted(entries.items()):
        # The ending of a group of directories begins with the mark `noop.DIRECTORY`, which is not a
        # part of the paths.
        path_ending = ending.removeprefix(noop.DIRECTORY)
        for start in range(0, len(all_words), _GROUP_SIZE):
            words = all_words[start : start + _GROUP_SIZE]
            stamps = []
            for word in words:
                device_stamp = read_device_stamp(prefix + word + path_ending)
                stamps.append(device_stamp.stamp)
                if not device_stamp.is_settled(started):
                    unsettled.add((prefix, word))
            if ABSENT in stamps:
                return None
            groups.append(((prefix, ending), words, stamps))
    if not all(is_whole(prefix, word) for prefix, word in unsettled):
        return None
    pieces = [name, summary, variables]
    for prefix_and_ending, words, stamps in groups:
        pieces += [
            "\0".join([*prefix_and_ending, *words]).encode("utf-8", "surrogateescape"),
            b"".join(noop.STAMP.pack(*stamp) for stamp in stamps),
        ]
    body = b"".join(noop.COUNT.pack(len(piece)) + piece for piece in pieces)
    return noop.MAGIC + noop.HEAD.pack(zlib.crc32(body), len(body)) + body


def _group_by_directory(inputs: Mapping[str, DeviceStamp]) -> list[_Group]:
    """Return the inputs as groups, each of one directory. Of an input with a slash at its end it
    counts only that it is a directory, which a check of its group changes to."""
    # A check changes to the directory of a group, as the system finds a name in the working
    # directory sooner than a whole path. The first group, "", has whole paths and no directory: of
    # missing files, whose directory may be missing, too, and of relative paths.
    directories: dict[str, tuple[list[str], list[Stamp]]] = {"": ([], [])}
    for path, (stamp, _) in sorted(inputs.items()):
        if path.endswith(os.sep):
            directories.setdefault(path, ([], []))
            continue
        directory, name = os.path.split(path)
        stays_whole = stamp == ABSENT or not name or not os.path.isabs(path)
        prefix = "" if stays_whole else os.path.join(directory, "")
        names, stamps = directories.setdefault(prefix, ([], []))
        names.append(path if stays_whole else name)
        stamps.append(stamp)
    return [((prefix, ""), names, stamps) for prefix, (names, stamps) in directories.items()]


def _remove_oldest(directory: str) -> None:
    """Remove the oldest records, those of other commands, if there are more than `_MAX_RECORDS`."""
    paths = [os.path.join(directory, name) for name in os.listdir(directory)]
    paths.sort(key=lambda path: read_stamp(path).mtime)
    for path in paths[:-_MAX_RECORDS]:
        os.unlink(path)
