"""Garbage collection, and clearing.

The roots are the scripts in `index.json`: those of each project's last build. They, their programs
and their header directories stay; other entries are removed, the oldest first. A project that this
machine built, and whose manifest it no longer has, is gone: its scripts are not roots. Scripts that
running programs requested, and those of projects of other machines that are not here, stay unless a
limit of age or size asks for them. A build that finds everything writes nothing, so the age of an
entry is that of its publication, or of the youngest script that uses it; a request renews the time
of its script.

Removing needs the exclusive lock `use`, which a running build shares. A script that a process has
loaded stays like a root until that process ends. Scripts are removed before their programs, and
these before their headers, so that at no instant an entry names a removed one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.index import HOST, drop_from_index, read_index
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.scripts import read_script_txt
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.regular import try_read_bytes
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.runtime.search_roots import JIT_ROOT_PREFIX
from tilusbuild.state.directories import is_real_directory
from tilusbuild.state.files import sweep_temporary_files


class GarbageItem(Struct, frozen=True):
    """An entry that no root needs. `name` is relative to the cache."""

    name: str
    size: int
    """Bytes of its files."""
    age: float
    """Seconds since the entry, or the youngest script that uses the entry, was published."""


class GarbageReport(Struct, frozen=True):
    """The entries that `gc` removed, or would remove."""

    removed: tuple[GarbageItem, ...]
    kept_size: int
    """Bytes of the remaining entries and of the state."""
    loaded_size: int = 0
    """Bytes of them that running processes have loaded, and that no project needs."""
    gone: tuple[str, ...] = ()
    """The manifests of the projects that are gone."""
    needing: tuple[str, ...] = ()
    """The keys in the index of the other projects, and of packages."""


def collect_garbage(
    tree: Tree,
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    forgotten: Sequence[str] = (),
    dry_run: bool = False,
) -> GarbageReport:
    """Remove the entries that no root needs; return which, the scripts first. The index forgets
    them, and the projects that are gone or whose keys are in `forgotten`.

    With `older_than`, only entries older than that many seconds go. With `max_size`, the oldest go,
    files of the state among them, until the cache has at most that many bytes. With both, an entry
    goes for either reason. `dry_run` takes no lock and writes nothing. Raises `TilusbuildError`
    while a build runs and for a missing or damaged root or index, and `CacheError`.
    """
    if not tree.exists():
        return GarbageReport((), 0)
    if dry_run:
        return _plan_collection(tree, older_than, max_size, forgotten)[0]
    with hold_exclusive_use(tree), wrap_oserror(tree.root):
        # Files that killed writers left: no writer runs, as the lock is exclusive.
        for directory in (layout.STATE, layout.SCRIPTS):
            sweep_temporary_files(tree.path(directory), deep=True)
        plan, entries = _plan_collection(tree, older_than, max_size, forgotten)
        # The index first, so that it never names a removed script.
        drop_from_index(tree, {*plan.gone, *forgotten}, {item.name for item in plan.removed})
        removed = []
        loaded_names: set[str] = set()
        for item in plan.removed:  # scripts come first
            if item.name in loaded_names:
                continue
            if _remove_entry(tree, item.name):
                removed.append(item)
            else:
                # A process has loaded the script since the plan was made: the programs that the
                # script needs, and their headers, stay, too.
                loaded_names = _add_needed(entries, loaded_names, [item.name])
        _remove_empty_directories(tree)
    planned_size = sum(item.size for item in plan.removed)
    removed_size = sum(item.size for item in removed)
    kept_size = plan.kept_size + planned_size - removed_size
    return replace(plan, removed=tuple(removed), kept_size=kept_size)


def _remove_empty_directories(tree: Tree) -> None:
    """Remove the directories in `scripts` that are empty."""
    for name in filter(layout.is_script_directory, tree.list_names(layout.SCRIPTS)):
        path = tree.path(layout.SCRIPTS, name)
        # A link or a file has no names either, and is the user's.
        if is_real_directory(path) and not tree.list_names(layout.SCRIPTS, name):
            tree.remove_entry(path)


def _plan_collection(
    tree: Tree, older_than: float | None, max_size: int | None, forgotten: Sequence[str]
) -> tuple[GarbageReport, _EntryGraph]:
    """Return what a collection is to remove, private directories of killed processes last, and the
    graph of all entries. Changes nothing. Raises as `collect_garbage`."""
    entries = _read_entry_graph(tree)
    needed, requested, gone = _find_roots(tree, entries, forgotten)
    has_limit = older_than is not None or max_size is not None
    root_scripts = [name for names in needed.values() for name in names]
    rooted_names = _add_needed(entries, set(), root_scripts + ([] if has_limit else requested))
    for name in _list_state(tree):
        _add_entry(tree, entries, name, [])
        # Samples of tunings are expensive, and nothing of the state is garbage by itself.
        if max_size is None or name == f"{layout.STATE}/{layout.TUNED}":
            rooted_names.add(name)
    loaded_scripts = []
    with wrap_oserror(tree.locks.path):
        for name in entries.sizes:
            # The lock of a root is not tried: a root stays anyway, and each costs a system call.
            if not name.startswith(f"{layout.SCRIPTS}/") or name in rooted_names:
                continue
            # A process that has loaded a script shares its lock `read`.
            digest = name.rpartition("/")[2]
            if not tree.locks.is_lock_free(LockName("read", digest)):
                loaded_scripts.append(name)
        abandoned_directories = list_abandoned(tree)
    kept_names = _add_needed(entries, rooted_names, loaded_scripts)
    selection = _select_garbage(entries, kept_names, older_than, max_size)
    abandoned_items = tuple(
        GarbageItem(name, layout.measure_files(tree.path(name))[0], 0.0)
        for name in abandoned_directories
    )
    report = replace(
        selection,
        removed=(*selection.removed, *abandoned_items),
        loaded_size=sum(entries.sizes[name] for name in kept_names - rooted_names),
        gone=tuple(gone),
        needing=tuple(needed),
    )
    return report, entries


def _list_state(tree: Tree) -> list[str]:
    """Return the names of what is in `state`, with each project of a `Source` by itself."""
    names = [name for name in tree.list_names(layout.STATE) if name != layout.SOURCES]
    sources = [f"{layout.SOURCES}/{name}" for name in tree.list_names(layout.STATE, layout.SOURCES)]
    return [f"{layout.STATE}/{name}" for name in names + sources]


def _remove_entry(tree: Tree, name: str) -> bool:
    """Remove an entry; return False for a script that a process has loaded meanwhile."""
    parent, _, digest = name.rpartition("/")
    if parent == layout.STAGING:
        # No reader looks into `staging`, so the directory need not be moved out of sight first.
        tree.disk.remove_tree(tree.path(name))
    elif parent.startswith(f"{layout.SCRIPTS}/"):
        return remove_unread(tree, parent.removeprefix(f"{layout.SCRIPTS}/"), digest)
    else:
        tree.remove_entry(tree.path(name))
    return True


def remove_unread(tree: Tree, directory: str, digest: str) -> bool:
    """Remove a script unless a process has loaded it; return whether it was removed.

    A process that loads it now waits, and then does not find it. Raises `CacheError`.
    """
    path = tree.script_path(directory, digest)
    with wrap_oserror(path):
        lock = tree.locks.take_locks(LockName("read", digest), wait=False)
        if lock is None:
            return False
        with lock:
            tree.remove_entry(path)
    return True


def clear_cache(tree: Tree) -> None:
    """Remove all entries, the index and the state, and no other file. Raises `TilusbuildError`
    while a build runs, and `CacheError`."""
    if not tree.exists():
        return
    with hold_exclusive_use(tree), wrap_oserror(tree.root):
        # The index first: one that names removed scripts would end the next collection.
        tree.remove_entry(tree.path(layout.INDEX))
        for directory, digest in list_script_entries(tree):
            tree.remove_entry(tree.script_path(directory, digest))
        _remove_empty_directories(tree)
        for kind in (layout.PROGRAMS, layout.INCLUDE):
            for name in list_entries(tree, kind):
                tree.remove_entry(tree.path(kind, name))
        tree.remove_entry(tree.path(layout.STATE))
        tree.sweep_staging(again=True)
    # The directories and the mark are made again, so that the path stays a cache.
    tree.ensure_complete()


@contextmanager
def hold_exclusive_use(tree: Tree, *, wait: bool = False) -> Iterator[None]:
    """Hold the exclusive lock `use` during a block: no build runs meanwhile. Raises
    `TilusbuildError` while one runs, unless `wait`, and `CacheError`."""
    # The lock's directory may have been deleted by hand.
    tree.ensure_complete()
    with wrap_oserror(tree.locks.path):
        lock = tree.locks.take_locks(LockName("use"), wait=wait)
    if lock is None:
        raise TilusbuildError(f"a build is using {tree.root}\n  try again when it is done")
    with lock:
        yield


class _EntryGraph(Struct):
    """All entries of a cache by name: their sizes, their times, and the entries that they need."""

    sizes: dict[str, int]
    times: dict[str, float]
    """Seconds since 1970: when the entry, or the youngest one that needs it, was published."""
    needs: dict[str, list[str]]


def _select_garbage(
    entries: _EntryGraph, rooted: Container[str], older_than: float | None, max_size: int | None
) -> GarbageReport:
    """Return the entries to remove, scripts first, and the size of the others. `rooted` has the
    names that stay; the other arguments are those of `collect_garbage`."""
    now = time.time()
    removal_rank = {layout.SCRIPTS: 0, layout.PROGRAMS: 1, layout.INCLUDE: 2, layout.STATE: 3}
    candidates = [
        # 0.0: after the clock was set back, an entry may have a time in the future.
        GarbageItem(name, size, max(0.0, now - entries.times[name]))
        for name, size in entries.sizes.items()
        if name not in rooted
    ]

    def get_rank(item: GarbageItem) -> int:
        return removal_rank[item.name.partition("/")[0]]

    # The oldest first. Of one age, a script comes before its programs: else `max_size` could remove
    # programs and keep the script that needs them.
    candidates.sort(key=lambda item: (-item.age, get_rank(item), item.name))
    total = sum(entries.sizes.values())
    removed = []
    has_no_rule = older_than is None and max_size is None
    for item in candidates:
        # `total` is what remains: an entry that is removed for its age makes room, too.
        too_old = older_than is not None and item.age > older_than
        too_much = max_size is not None and total > max_size
        if has_no_rule or too_old or too_much:
            removed.append(item)
            total -= item.size
    # Scripts first, whatever their age: no link may point to a removed program.
    removed.sort(key=get_rank)
    return GarbageReport(tuple(removed), total)


def _read_entry_graph(tree: Tree) -> _EntryGraph:
    """Return the cache's entries by relative path: size, time, and the entries that each needs.

    An entry is as recent as the newest entry that needs it. A script that cannot be read needs no
    programs.
    """
    entries = _EntryGraph({}, {}, {})
    for directory, digest in list_script_entries(tree):
        name = f"{layout.SCRIPTS}/{directory}/{digest}"
        try:
            programs = read_script_txt(tree.path(name), digest).programs
        except (FileNotFoundError, CorruptFileError):
            # Such a script is garbage; if it is a root, `_find_rooted` raises an error.
            programs = ()
        _add_entry(tree, entries, name, [f"{layout.PROGRAMS}/{program}" for program in programs])
    for program in list_entries(tree, layout.PROGRAMS):
        name = f"{layout.PROGRAMS}/{program}"
        header_digests = read_header_digests(tree.path(name))
        _add_entry(tree, entries, name, [f"{layout.INCLUDE}/{d}" for d in header_digests])
    for digest in list_entries(tree, layout.INCLUDE):
        _add_entry(tree, entries, f"{layout.INCLUDE}/{digest}", [])
    # A script passes its time on to its programs, and these to their headers: `sizes` has the
    # scripts first and the headers last, so a program has its final time before it passes it on.
    for name in entries.sizes:
        for needed in entries.needs[name]:
            if needed in entries.times:
                entries.times[needed] = max(entries.times[needed], entries.times[name])
    return entries


def _add_entry(tree: Tree, entries: _EntryGraph, name: str, needs: list[str]) -> None:
    entries.sizes[name], entries.times[name] = layout.measure_files(tree.path(name))
    entries.needs[name] = needs


_BUILD_AGAIN = "build a project of this cache again: its build makes the index again"


def _find_roots(
    tree: Tree, entries: _EntryGraph, forgotten: Sequence[str]
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Return the names of the scripts that projects and packages need, by their keys in the index;
    those that only a limit may remove, of requests and projects elsewhere; and the manifests of
    projects that are gone. Projects in `forgotten` are left out.

    Raises `TilusbuildError` for a missing or damaged index or root: then nothing may be removed.
    """
    try:
        projects = read_index(tree)
    except CorruptFileError as error:
        raise TilusbuildError(f"{error}: nothing was removed\n  {_BUILD_AGAIN}") from None
    if entries.sizes and not os.path.lexists(tree.path(layout.INDEX)):
        raise TilusbuildError(
            f"{tree.root} has no {layout.INDEX}, which says what is in use: nothing was removed\n"
            f"  {_BUILD_AGAIN}, or remove everything with `tilusbuild cache clear`"
        )
    needed: dict[str, list[str]] = {}
    requested: list[str] = []
    gone = []
    for manifest, project in projects.items():
        if manifest in forgotten:
            continue
        names = [f"{layout.SCRIPTS}/{directory}/{digest}" for directory, digest in project.scripts]
        # A root that cannot be read keeps nothing: its programs would be removed.
        damaged = [name for name in names if not entries.needs.get(name)]
        is_missing = os.path.isabs(manifest) and _is_missing(manifest)
        if is_missing and project.host == HOST:
            gone.append(manifest)
        elif is_missing or manifest.startswith(JIT_ROOT_PREFIX):
            requested.extend(name for name in names if name not in damaged)
        elif damaged:
            raise TilusbuildError(
                f"{damaged[0]}, which the last build of {manifest} made, is missing or damaged\n"
                "  build that project again, or forget it"
            )
        else:
            needed[manifest] = names
    return needed, requested, gone


def _is_missing(path: str) -> bool:
    """Return whether a file is certainly not there: other errors are those of a directory that may
    not be searched, or of a server that does not answer."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def _add_needed(entries: _EntryGraph, rooted: set[str], names: Sequence[str]) -> set[str]:
    """Return `rooted` and `names` with all entries that they need."""
    pending = list(names)
    rooted = rooted | set(names)
    while pending:
        for needed in entries.needs.get(pending.pop(), ()):
            # A program of a script may be missing: it failed, or was never compiled.
            if needed in entries.sizes and needed not in rooted:
                rooted.add(needed)
                pending.append(needed)
    return rooted


def read_header_digests(path: str) -> list[str]:
    """Return the digests of the header directories that a program's compile.sh names."""
    return layout.find_header_digests(read_compile_script(path) or b"")


def read_compile_script(path: str) -> bytes | None:
    """Return the compile.sh of a program; None if it is not built."""
    return try_read_bytes(os.path.join(path, layout.COMPILE_SH))


def list_entries(tree: Tree, *directory: str) -> list[str]:
    """Return the hashes of the entries in a directory of the tree, sorted."""
    names = filter(layout.is_hash, tree.list_names(*directory))
    return [name for name in names if is_real_directory(tree.path(*directory, name))]


def list_script_entries(tree: Tree) -> list[tuple[str, str]]:
    """Return (directory, hash) of each script directory, sorted."""
    return [
        (directory, digest)
        for directory in filter(layout.is_script_directory, tree.list_names(layout.SCRIPTS))
        for digest in list_entries(tree, layout.SCRIPTS, directory)
    ]


def list_abandoned(tree: Tree) -> list[str]:
    """Return the names of the private directories without a holder, which killed processes left.
    Raises `OSError`."""
    # A living owner holds the lock of its directory: a free lock proves that the owner was killed.
    return [
        f"{layout.STAGING}/{name}"
        for name in filter(layout.is_staging, tree.list_names(layout.STAGING))
        if tree.locks.is_lock_free(LockName("stage", name))
    ]
