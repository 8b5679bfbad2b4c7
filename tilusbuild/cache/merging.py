"""Copying of entries: from other caches, and the programs and scripts of packages.

Headers come first, then programs, the scripts' directories, and the index: at no instant something
points to what is not there, and a merge that was killed is completed by doing it again. An entry is
copied when `check_entry` finds no problem; what the cache has stays. A program's digest is of its
inputs, so the same name with other bytes means that a compile was not reproduced: it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from tilusbuild.cache import layout
from tilusbuild.cache.checks import Origin, check_entry
from tilusbuild.cache.disk import InputChangedError, wrap_oserror
from tilusbuild.cache.entries import (
    Entry,
    EntryBatch,
    list_meta_files,
    lookup_entry,
    parse_meta,
    read_published_entry,
)
from tilusbuild.cache.includes import Problem, check_include, is_include_whole, publish_include
from tilusbuild.cache.index import HOST, list_programs, read_index, record_build
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.scripts import collect_links, parse_script_txt, read_script_txt, write_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import read_entry
from tilusbuild.errors import input_error
from tilusbuild.runtime import script as script_json
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes, try_read_bytes
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.state.files import write_atomic


class MergeProblem(Struct, frozen=True):
    """An entry or a file that is not copied. `name` is relative to the cache `source`."""

    source: str
    name: str
    message: str

    def __str__(self) -> str:
        return f"{os.path.join(self.source, self.name)}: {self.message}"


class MergeResult(Struct):
    """The numbers of entries that a merge copied, and the problems of the others."""

    sources: int
    programs: int = 0
    """Programs that were copied."""
    known: int = 0
    """Programs that were in the cache already."""
    includes: int = 0
    scripts: int = 0
    refused: list[MergeProblem] = field(default_factory=list)
    measurements: list[MergeProblem] = field(default_factory=list)
    """Measurements that cannot be read."""
    script_paths: list[str] = field(default_factory=list)
    """The directories of the scripts, whose tables do not follow from all measurements yet."""


def open_sources(cache: Tree, paths: Iterable[str]) -> list[Tree]:
    """Return the caches at these paths, each once. Raises `InputError` for a path that is `cache`
    itself, or not a cache."""
    trees = [Tree(path) for path in dict.fromkeys(map(os.path.abspath, paths))]
    for tree in trees:
        if not tree.exists():
            state = "is empty" if os.path.isdir(tree.root) else "is not there"
            raise input_error(
                f"{tree.root} is not a cache of tilusbuild: it {state}",
                hint="name the directories of caches; their CACHEDIR.TAG belongs to them",
            )
        if os.path.isdir(cache.root) and os.path.samefile(tree.root, cache.root):
            raise input_error(f"{tree.root} is the cache to merge into")
    return trees


def merge_caches(
    cache: Tree, trees: Sequence[Tree], project: tuple[str, str] | None = None
) -> MergeResult:
    """Copy the programs of other caches into `cache`, with the scripts of their last builds.

    `project` is the path of the manifest, and the name, of the project that merges. Scripts of a
    project with this name are recorded in the index under this manifest, whatever their manifest
    was. Raises `CacheError`, `OSError`.
    """
    result = MergeResult(len(trees))
    with cache.hold_use():
        for tree in trees:
            merge = _Merge(cache, tree, result)
            merge.copy_programs()
            merge.copy_scripts(project)
            _append_tuning_logs(cache, tree, result)
    return result


class _Merge:
    """The copying of one cache into another, whose lock `use` the caller holds."""

    def __init__(self, cache: Tree, source: Tree, result: MergeResult) -> None:
        self._cache = cache
        self._source = source
        self._result = result
        self._headers: set[str] = set()
        """Header directories that are right in `cache`."""

    def copy_programs(self) -> None:
        """Copy the programs that `cache` misses, and add refused ones to the result. Raises
        `CacheError`."""
        for program in list_programs(self._source):
            # A compile takes this lock, too: no program is compiled and copied at the same time.
            with self._cache.lock_program(program):
                problem = self._copy_program(program)
            if problem is not None:
                name = os.path.join(layout.PROGRAMS, program, problem.name).rstrip("/")
                self._add_refusal(name, problem.message)

    def _copy_program(self, program: str) -> Problem | None:
        """Copy a program with its headers, and count it in the result. Return why that is not
        possible, or how the program that the cache has already differs; else None."""
        path = self._source.program_path(program)
        # Not followed: what a link leads to may change after the check.
        if os.path.islink(path):
            return Problem("", "is a link")
        try:
            files, problems = read_entry(path, lambda _: True)
        except FileNotFoundError:
            return Problem("", "was removed during the merge")
        except OSError as error:
            return Problem("", str(error))
        problems = problems or check_entry(program, files, origin=Origin.CACHE)
        if problems:
            return problems[0]
        contents = {name: data for name, data in files.items() if isinstance(data, bytes)}
        meta = contents.pop(layout.META)
        # After the check: a damaged entry of the source says nothing of the one that is here.
        if (existing := lookup_entry(self._cache, program)) is not None:
            self._result.known += 1
            return _find_difference(self._cache, existing, parse_meta(meta, program))
        for digest in layout.find_header_digests(contents.get(layout.COMPILE_SH, b"")):
            if (problem := self._copy_headers(digest)) is not None:
                return Problem("", f"{layout.INCLUDE}/{digest}: {problem}")
        with EntryBatch(self._cache) as arrivals:
            arrivals.add_program(program, contents, meta)
            arrivals.commit_programs()
        self._result.programs += 1
        return None

    def _copy_headers(self, digest: str) -> str | None:
        """Copy a header directory unless the cache has it, and count it in the result. Return why
        that is not possible; else None."""
        if digest in self._headers:
            return None
        if not is_include_whole(self._cache.include_path(digest), digest):
            path = self._source.include_path(digest)
            try:
                if problems := check_include(path, digest):
                    return str(problems[0])
                publish_include(self._cache, digest, list_include_files(path))
            except (FileNotFoundError, NotADirectoryError):
                return "is missing"
            except InputChangedError:
                return "changed during the merge"
            self._result.includes += 1
        self._headers.add(digest)
        return None

    def copy_scripts(self, project: tuple[str, str] | None) -> None:
        """Copy the scripts that the source's index names, and record them in the cache's index.
        Refused ones are added to the result. `project` is as for `merge_caches`. Raises
        `CacheError`."""
        try:
            index = read_index(self._source)
        except CorruptFileError as error:
            self._add_refusal(layout.INDEX, str(error))
            return
        project_manifest, project_name = project or ("", None)
        for manifest, built in index.items():
            scripts = [script for script in built.scripts if self._copy_script(*script)]
            recorded_manifest = project_manifest if built.name == project_name else manifest
            # `replace=False`: the scripts of builds in this cache stay. A later build of the
            # project replaces all.
            if scripts:
                host = HOST if recorded_manifest == project_manifest else built.host
                # The manifest of another machine is not the one at its path here.
                origin = {name: digest for name, digest in built.origin.items() if name}
                names = (recorded_manifest, built.name, scripts)
                record_build(self._cache, *names, replace=False, host=host, origin=origin)
            self._result.scripts += len(scripts)

    def _copy_script(self, directory: str, digest: str) -> bool:
        """Copy a script's directory; return whether the cache has it now.

        The files of a script that the cache has follow from the programs of this cache, and stay.
        Refused scripts are added to the result.
        """
        name = f"{layout.SCRIPTS}/{directory}/{digest}"
        source_path = self._source.script_path(directory, digest)
        cache_path = self._cache.script_path(directory, digest)
        try:
            text = read_script_txt(source_path, digest)
            # Read for the errors only: a damaged description or table must not be copied.
            if os.path.lexists(os.path.join(source_path, layout.SCRIPT_JSON)):
                read_dispatch_table(script_json.read_script(source_path))
            files = {}
            if not os.path.isdir(cache_path):
                files = _read_files(source_path, _is_copied)
        except (LoadError, CorruptFileError, OSError) as error:
            self._add_refusal(name, str(error))
            return False
        self._result.script_paths.append(cache_path)
        links = collect_links(self._cache, text.numbered)
        write_script(self._cache, directory, digest, files, links)
        return True

    def _add_refusal(self, name: str, message: str) -> None:
        self._result.refused.append(MergeProblem(self._source.root, name, message))


def _find_difference(cache: Tree, existing: Entry, meta: Mapping[str, Any]) -> Problem | None:
    """Return how an entry differs from the `existing` one of the same program. A file that only one
    of them has does not count."""
    if existing.status != meta["status"]:
        return Problem(layout.META, f"is {meta['status']}, and {existing.status} in {cache.root}")
    existing_digests = {name: digest for name, _, digest in list_meta_files(existing.meta)}
    for name, _, digest in list_meta_files(meta):
        existing_digest = existing_digests.get(name)
        if existing_digest is not None and existing_digest != digest:
            return Problem(
                name,
                "was not reproduced: the same inputs gave other bytes: sha256"
                f" {digest[:12]}…, and {existing_digest[:12]}… in {cache.root}",
            )
    return None


def _is_copied(name: str) -> bool:
    """Return whether a script's file is copied: its description, and what was measured."""
    files = (layout.SCRIPT_TXT, layout.SCRIPT_JSON, layout.SCHEDULE_TXT, *layout.TABLES)
    return name in files or name.startswith(f"{layout.LATENCY}/")


def _read_files(path: str, is_included: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the contents of files below `path`, by relative name. Raises `OSError`."""
    names = filter(is_included, layout.list_files_below(path))
    return {name: read_bytes(os.path.join(path, name)) for name in names}


def _append_tuning_logs(cache: Tree, tree: Tree, result: MergeResult) -> None:
    """Append the measurements and tuning samples of `tree` to those of `cache`. Files that cannot
    be read are added to the result. Raises `CacheError`, `OSError`."""
    directory = os.path.join(tree.root, layout.STATE, layout.TUNED)
    for name in layout.list_files_below(directory) if os.path.isdir(directory) else ():
        target = os.path.join(cache.state_path, layout.TUNED, name)
        try:
            samples = _split_lines(read_bytes(f"{directory}/{name}"))
        except OSError as error:
            # Named, and not skipped in silence: samples took a GPU's time.
            file = f"{layout.STATE}/{layout.TUNED}/{name}"
            result.measurements.append(MergeProblem(tree.root, file, str(error)))
            continue
        lines = _split_lines(try_read_bytes(target) or b"")
        present_lines = set(lines)
        if new_lines := [line for line in samples if line not in present_lines]:
            with wrap_oserror(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                write_atomic(target, b"".join(line + b"\n" for line in (*lines, *new_lines)))


def _split_lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line]


def list_include_files(path: str) -> dict[str, bytes | str]:
    """Return the files of a header directory by name, as `publish_include` takes them: for MANIFEST
    its content, b"" if there is none, and for each header its path. Raises `OSError`."""
    files: dict[str, bytes | str] = {
        name: os.path.join(path, name) for name in layout.list_files_below(path)
    }
    files[layout.MANIFEST] = try_read_bytes(os.path.join(path, layout.MANIFEST)) or b""
    return files


_OPTIONAL = (layout.SCHEDULE_TXT, *layout.TABLES, layout.DISPATCH)


def install_program(cache: Tree, program: str, directory: str) -> Entry:
    """Publish the program whose checked files are in `directory`, on the cache's disk, by moving
    them; return its entry, or the entry that exists already. Raises `CacheError`."""
    with cache.lock_program(program):
        batch = EntryBatch(cache)
        batch.add_directory(program, directory)
        batch.commit_programs()
        return read_published_entry(cache, program)


def install_script(
    cache: Tree, directory: str, digest: str, files: Mapping[str, bytes], dispatcher: str | None
) -> str:
    """Write a script's directory with these files, and links to its published programs; return its
    path.

    `dispatcher` is a directory on the cache's disk that becomes the script's `dispatch`. Optional
    files that an older package had, and this one does not, are removed. Raises `CacheError`.
    """
    path = cache.script_path(directory, digest)
    text = files[layout.SCRIPT_TXT].decode("utf-8", "surrogateescape")
    links = collect_links(cache, parse_script_txt(text).numbered)
    write_script(cache, directory, digest, files, links)
    with (
        cache.hold_locks(LockName("use", shared=True), LockName("script", digest)),
        wrap_oserror(path),
    ):
        for name in _OPTIONAL:
            is_in_package = name in files or (name == layout.DISPATCH and dispatcher is not None)
            if not is_in_package and os.path.lexists(os.path.join(path, name)):
                cache.remove_entry(os.path.join(path, name))
        if dispatcher is not None:
            cache.move_into_place(dispatcher, os.path.join(path, layout.DISPATCH))
    return path
