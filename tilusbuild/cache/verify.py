"""Verification of a cache: every wrong name, size, digest and link, as a problem.

All files of entries are read. An entry that is published or removed meanwhile is not reported. No
result depends on `staging` and `state`, so they are not checked. Files of other programs beside the
entries are not problems: `list_unknown_names` returns them.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.checks import Content, FileFacts, Origin, check_entry
from tilusbuild.cache.disk import BY_HAND, wrap_oserror
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.garbage import hold_exclusive_use, list_entries, list_script_entries
from tilusbuild.cache.includes import Problem, check_include
from tilusbuild.cache.index import read_index
from tilusbuild.cache.scripts import read_link, read_script_txt
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime import script as scripts
from tilusbuild.runtime.cuda_driver import find_library_files
from tilusbuild.runtime.errors import LoadError, MissingLibraryError, NoExecError
from tilusbuild.runtime.reader_lock import LOCKS
from tilusbuild.runtime.regular import read_bytes, try_read_bytes
from tilusbuild.runtime.sealed import CorruptFileError, unseal_json
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.state.files import sha256_file
from tilusbuild.state.stamp import read_stamp
from tilusbuild.status import Status

REBUILD = "delete it: the next build makes it again"
# Times that an entry is checked, if a build replaces it during each check but the last.
_MAX_CHECKS = 3


class CacheProblem(Struct, frozen=True):
    """A defect of a cache, with a remedy. Names are relative to the cache."""

    name: str
    message: str
    advice: str
    entry: str | None = None
    """The entry that a repair removes; None for a file that tilusbuild did not write."""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}\n  {self.advice}"


def verify_cache(tree: Tree) -> list[CacheProblem]:
    """Return every problem, sorted by name. Raises `InputError` for a directory that is not a
    cache."""
    if not tree.exists():
        return []
    problems = [*_check_top(tree), *_check_scripts(tree)]
    for kind, check in ((layout.PROGRAMS, check_program), (layout.INCLUDE, check_include)):
        for digest in list_entries(tree, kind):
            path = tree.path(kind, digest)
            problems += _check_until_stable(f"{kind}/{digest}", path, partial(check, path, digest))
    return sorted(problems, key=lambda problem: problem.name)


_IS_KNOWN_NAME = {
    "": layout.TOP.__contains__,
    LOCKS: layout.is_lock,
    layout.STAGING: layout.is_staging,
    layout.SCRIPTS: layout.is_script_directory,
    **dict.fromkeys((layout.PROGRAMS, layout.INCLUDE), layout.is_hash),
}


def list_unknown_names(tree: Tree) -> list[str]:
    """Return the names in the tree that tilusbuild does not use, sorted. Nothing changes them."""
    return sorted(
        os.path.join(directory, name)
        for directory, is_known in _IS_KNOWN_NAME.items()
        for name in (tree.list_names(directory) if directory else tree.list_names())
        if not is_known(name)
    )


def repair_cache(tree: Tree, problems: Iterable[CacheProblem]) -> list[str]:
    """Remove the entries with problems, so that the next build makes them, and all links with
    problems in scripts. Return the removed names: entries first.

    Raises `TilusbuildError` while a build uses the cache, and `CacheError`.
    """
    names = sorted({problem.entry for problem in problems if problem.entry is not None})
    if not names:
        return []
    with hold_exclusive_use(tree), wrap_oserror(tree.root):
        # Entries go as a whole: a program without one of its files is not a program.
        for name in names:
            tree.remove_entry(tree.path(name))
        # Scripts are checked again: links to the removed programs lead nowhere now.
        problem_names = {problem.name for problem in _check_scripts(tree)}
        links = sorted(name for name in problem_names if os.path.islink(tree.path(name)))
        for name in links:
            tree.remove_entry(tree.path(name))
    return names + links


def _check_top(tree: Tree) -> Iterator[CacheProblem]:
    """Yield the problems of the mark, of `.gitignore`, of the lock files and of the index."""
    # Both may be missing: the next build writes them.
    for name, text in ((layout.TAG, layout.TAG_TEXT), (layout.IGNORE, layout.IGNORE_TEXT)):
        if _read_or_empty(tree.path(name)) not in (text, None):
            yield CacheProblem(name, "was modified", REBUILD, name)
    for name in tree.list_names(LOCKS):
        path = tree.path(LOCKS, name)
        is_entry = layout.is_lock(name) and os.path.lexists(path)
        if is_entry and (os.path.islink(path) or not os.path.isfile(path)):
            yield CacheProblem(f"{LOCKS}/{name}", "is unknown", BY_HAND)
    try:
        read_index(tree)
    except CorruptFileError as error:
        advice = "delete it: the next build makes a new one, with every script in the cache"
        yield CacheProblem(layout.INDEX, str(error), advice, layout.INDEX)


def _check_until_stable(
    entry: str, path: str, check: Callable[[], Iterable[Problem]], *, in_parts: bool = False
) -> Iterator[CacheProblem]:
    """Run `check` until the entry at `path` does not change meanwhile, at most 3 times; yield the
    problems of the last run. Another process may remove or replace the entry at any time.

    With `in_parts`, a repair removes only the file that has a problem, and not the entry.
    """
    problems: list[Problem] = []
    for _ in range(_MAX_CHECKS):
        stamp_before = read_stamp(path)
        try:
            problems = list(check())
        except FileNotFoundError:
            # A `clear` or a build has removed files during the check.
            problems = []
        except (CorruptFileError, OSError) as error:
            problems = [Problem("", str(error))]
        if read_stamp(path) == stamp_before:
            break
    for name, message in problems:
        file = os.path.join(entry, name).rstrip("/")
        yield CacheProblem(file, message, REBUILD, file if in_parts else entry)


def check_program(path: str, program: str) -> list[Problem]:
    """Return the problems of the entry in the directory `path`. Raises `OSError`."""
    files, problems = read_entry(path, lambda name: name in (layout.META, *layout.TEXTS))
    return problems or check_entry(program, files, origin=Origin.CACHE)


def read_entry(
    path: str, is_kept: Callable[[str], bool]
) -> tuple[dict[str, Content], list[Problem]]:
    """Return the files of the entry in the directory `path` by name, and a problem for each name
    that is not a regular file. Dumps are left out.

    A file is returned as bytes if `is_kept` is true of its name; else it is hashed, and returned as
    `FileFacts`. Raises `OSError`.
    """
    files: dict[str, Content] = {}
    problems = []
    for name in layout.list_files_below(path):
        file = os.path.join(path, name)
        if name.startswith(layout.DUMPS):
            continue  # for people: not in the list of meta.json
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode):
            problems.append(Problem(name, "is not a regular file"))
        elif is_kept(name):
            # The file may have been replaced since `lstat`; `read_bytes` checks the kind again, of
            # the file that it opens.
            files[name] = read_bytes(file)
        else:
            files[name] = FileFacts(status.st_size, sha256_file(file))
    return files, problems


def _check_scripts(tree: Tree) -> Iterator[CacheProblem]:
    for directory, digest in list_script_entries(tree):
        entry = f"{layout.SCRIPTS}/{directory}/{digest}"
        path = tree.path(entry)
        check = partial(_check_script, tree, path, digest)
        yield from _check_until_stable(entry, path, check, in_parts=True)


def _check_script(tree: Tree, path: str, digest: str) -> Iterator[Problem]:
    """Yield the problems of the script's directory `path`: of script.json, of the dispatch table
    and of the links. Raises `CorruptFileError` for a wrong script.txt, and `OSError`."""
    # Without a right script.txt nothing else in the directory can be judged: this raises.
    programs = read_script_txt(path, digest).numbered
    script_json = os.path.join(path, layout.SCRIPT_JSON)
    try:
        unseal_json(_read_or_empty(script_json) or b"")
    except CorruptFileError as error:
        if os.path.lexists(script_json):  # a script of an earlier version has none
            yield Problem(layout.SCRIPT_JSON, str(error))
    if problem := _find_table_problem(path):
        yield Problem(layout.TABLE_JSON, problem)
    for part in (layout.PROGRAMS, layout.FAILED):
        if os.path.islink(os.path.join(path, part)):
            yield Problem(part, "is a link")
            continue
        for name in sorted(os.listdir(os.path.join(path, part))):
            link = os.path.join(path, part, name)
            message = _find_link_problem(tree, link, part, name, programs)
            if message is not None:
                yield Problem(f"{part}/{name}", message)


def _find_table_problem(path: str) -> str | None:
    """Return why the dispatch table in a script's directory cannot be used.

    Return None if it can, and also if script.json is damaged: without that, the table cannot be
    read, and script.json has a problem of its own.
    """
    try:
        script = scripts.read_script(path)
    except LoadError:
        return None
    try:
        read_dispatch_table(script)
    except LoadError as error:
        return str(error).removeprefix(f"{script.path}/").partition("\n")[0]
    return None


def _find_link_problem(
    tree: Tree, path: str, part: str, name: str, programs: Mapping[int, str]
) -> str | None:
    """Return why the link at `path` to a program is wrong; None if it is right, or was replaced.

    `part` is the link's directory in that of the script: "programs" for built programs, or
    "failed". `name` is the link's name. `programs` has the hashes of the script's programs by
    number.
    """
    target = read_link(path)
    if target is None:
        # A path without a file is one that a build replaces.
        return "is not a link" if os.path.lexists(path) else None
    if not layout.is_program_number(name) or int(name) not in programs:
        return "is not the number of a schedule"
    program = programs[int(name)]
    expected_target = layout.format_program_link(program)
    if target != expected_target:
        return f"points to {target} instead of {expected_target}"
    # By sizes only: `check_program` compares the contents.
    entry = lookup_entry(tree, program)
    if entry is None:
        return "points to a program that is missing or incomplete"
    if (entry.status == Status.BUILT) != (part == layout.PROGRAMS):
        return f"points to a program that is {entry.status}"
    return None


def list_loading_problems(root: str, directory: str | None = None) -> Iterator[str]:
    """Yield the reasons for which this machine cannot load the libraries of `root`, a tree or a
    package: no code may run from its file system; or the loader misses a library that the first
    built program of a script needs.

    `directory` has the files of a package that is unpacked elsewhere. No library is opened, and
    none is examined without `ldd`. The driver and torch are not reported: the caller loads them.
    """
    if os.path.isdir(root) and os.statvfs(root).f_flag & os.ST_NOEXEC:
        yield str(NoExecError(f"no code may run from the file system of {root}"))
    libraries = []
    for path in glob.glob(f"{glob.escape(directory or root)}/{layout.SCRIPTS}/*/*"):
        with suppress(LoadError, StopIteration):
            script = scripts.read_script(path)
            paths = map(script.get_library_path, script.programs)
            libraries.append(next(filter(os.path.isfile, paths)))
    ldd = shutil.which("ldd")
    if ldd is None or not libraries:
        return
    ended = subprocess.run([ldd, *libraries], capture_output=True, text=True, check=False)
    for name in sorted(set(re.findall(r"^\s+(\S+) => not found", ended.stdout, re.MULTILINE))):
        is_loaded_by_caller = name.startswith(("libcuda.so", "libtorch", "libc10"))
        if not is_loaded_by_caller and next(find_library_files(name), None) is None:
            yield str(MissingLibraryError(f"{name} is not on this machine"))


def _read_or_empty(path: str) -> bytes | None:
    """Return the content of a file; None if it is missing, b"" if it cannot be read."""
    data = try_read_bytes(path)
    return b"" if data is None and os.path.lexists(path) else data
