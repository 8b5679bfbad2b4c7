"""Publishing what was made elsewhere: programs, headers and scripts of other caches and packages.

They get into place as a build's own do. All of another cache is checked against its digests before
any of it is taken, and what does not hold is left where it is. The digest of a program is of its
inputs, so the same name with other bytes means that a compile was not reproduced: it is unknown
which side is right, and neither is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from tilusbuild.cache import layout
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import ADDED_KEYS, Arrivals, Entry, Stage, find_entry, listed, lookup
from tilusbuild.cache.includes import include_problems, publish_include
from tilusbuild.cache.index import programs
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.scripts import links_of, parse_script, put_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import program_problems
from tilusbuild.errors import input_error
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.sealed import CorruptFileError, seal, unseal
from tilusbuild.state.files import sha256_bytes


class RefusedEntry(Struct, frozen=True):
    """Something that is not taken. `name` is relative to the cache `source`."""

    source: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{os.path.join(self.source, self.name)}: {self.what}"


class Merged(Struct):
    """What came of a merge: how many entries were taken over, and which were refused."""

    sources: int
    programs: int = 0
    """How many were copied."""
    known: int = 0
    """How many were in the cache already."""
    includes: int = 0
    scripts: int = 0
    incomplete: Mapping[str, int] = field(default_factory=dict)
    """Scripts of which programs are in none of the caches, by label, with how many those are."""
    refused: list[RefusedEntry] = field(default_factory=list)


def sources(cache: Tree, paths: Iterable[str]) -> list[Tree]:
    """Return the caches at these paths. Raises `InputError` for a path that is `cache` or none."""
    found = [Tree(path) for path in dict.fromkeys(map(os.path.abspath, paths))]
    for tree in found:
        if not tree.exists():
            there = "is empty" if os.path.isdir(tree.root) else "is not there"
            raise input_error(
                f"{tree.root} is not a cache of tilusbuild: it {there}",
                hint="name the directories that shards built into; their CACHEDIR.TAG belongs to "
                "them",
            )
        if os.path.isdir(cache.root) and os.path.samefile(tree.root, cache.root):
            raise input_error(f"{tree.root} is the cache to merge into")
    return found


def take(cache: Tree, trees: Sequence[Tree]) -> Merged:
    """Bring in what is missing in `cache`. Raises `CacheError`."""
    taken = Merged(len(trees))
    having: dict[str, list[Tree]] = {}
    for tree in trees:
        _take_includes(cache, tree, taken)
        for program in programs(tree):
            what = next(_problems(tree, program), None)
            if what is None:
                having.setdefault(program, []).append(tree)
            else:
                taken.refused.append(RefusedEntry(tree.root, *what))
    for program, owners in having.items():
        with cache.locked(program):
            _take_program(cache, program, owners, taken)
    return taken


def _problems(tree: Tree, program: str) -> Iterator[tuple[str, str]]:
    name, path = f"{layout.PROGRAMS}/{program}", tree.program_path(program)
    if os.path.islink(path):
        yield name, "is a link"
        return
    try:
        for inside, what in program_problems(path, program):
            yield os.path.join(name, inside).rstrip("/"), what
    except FileNotFoundError:
        yield name, "was removed during the merge"
    except (CorruptFileError, OSError) as error:
        yield name, str(error)


def _take_program(cache: Tree, program: str, owners: Sequence[Tree], taken: Merged) -> None:
    there = lookup(cache, program)
    found = [(cache.root, there)] if there else []
    found.extend(
        (tree.root, entry)
        for tree in owners
        if (entry := find_entry(tree.program_path(program), program)) is not None
    )
    for root, entry in found[1:]:
        difference = _difference(found[0][1], entry)
        if difference is not None:
            name, what = difference
            taken.refused.append(
                RefusedEntry(
                    root, f"{layout.PROGRAMS}/{program}/{name}", f"{what} in {found[0][0]}"
                )
            )
            return
    if there is not None:
        taken.known += 1
        return
    problem = _copy(cache, found[0][1]) if found else "was removed during the merge"
    if problem is None:
        taken.programs += 1
    else:
        taken.refused.append(RefusedEntry(owners[0].root, f"{layout.PROGRAMS}/{program}", problem))


def _difference(one: Entry, other: Entry) -> tuple[str, str] | None:
    """(file, how it differs) of two entries of one program. That one side kept more is none."""
    if one.status != other.status:
        return layout.META, f"is {other.status}, and {one.status}"
    digests = {name: digest for name, _, digest in listed(one.meta)}
    for name, _, digest in listed(other.meta):
        if digests.get(name, digest) != digest:
            return name, (
                "was not reproduced: the same inputs gave other bytes:"
                f" sha256 {digest[:12]}…, and {digests[name][:12]}…"
            )
    return None


def _copy(cache: Tree, entry: Entry) -> str | None:
    """Publish an entry of another cache; what is wrong when it changes while it is read."""
    files: dict[str, bytes] = {}
    for name, _, digest in listed(entry.meta):
        data = layout.read_or_none(os.path.join(entry.path, name))
        if data is None or sha256_bytes(data) != digest:
            return f"{name} changed while it was copied"
        files[name] = data
    with Arrivals(cache) as arrivals:
        arrivals.add(entry.hash, files, seal(entry.meta))
        arrivals.commit()
    return None


def _take_includes(cache: Tree, tree: Tree, taken: Merged) -> None:
    try:
        names = sorted(filter(layout.is_hash, os.listdir(tree.path(layout.INCLUDE))))
    except OSError:
        return
    for digest in names:
        path, name = tree.include_path(digest), f"{layout.INCLUDE}/{digest}"
        try:
            problems = include_problems(path, digest)
            if problems:
                inside, what = problems[0]
                taken.refused.append(RefusedEntry(tree.root, f"{name}/{inside}", what))
                continue
            if not os.path.isdir(cache.include_path(digest)):
                taken.includes += 1
            publish_include(cache, digest, files_of(path))
        except (FileNotFoundError, NotADirectoryError):
            taken.refused.append(RefusedEntry(tree.root, name, "was removed during the merge"))


def files_of(path: str) -> Mapping[str, Any]:
    """Return a header directory's files by name: the MANIFEST's content, and where others are."""
    files: dict[str, bytes | str] = {n: os.path.join(path, n) for n in layout.files_below(path)}
    files[layout.MANIFEST] = layout.read_or_none(os.path.join(path, layout.MANIFEST)) or b""
    return files


_OPTIONAL = (layout.SCHEDULE_TXT, layout.TABLE_JSON, layout.TABLE_TXT, layout.DISPATCH)


def install_program(cache: Tree, program: str, directory: str) -> Entry:
    """Publish the program whose files lie in `directory`, on the cache's disk; the directory is
    used up.

    What is published already stays. Raises `CacheError`, `CorruptFileError`, and what publishing
    raises.
    """
    disk = cache.disk
    stage = Stage(cache)
    try:
        with cache.locked(program), wrap_oserror(stage.path):
            found = unseal(_taken(cache, directory, layout.META))
            meta = {key: value for key, value in found.items() if key not in ADDED_KEYS}
            program_txt, options_txt = (
                _taken(cache, directory, name).decode("utf-8", "surrogateescape")
                for name in (layout.PROGRAM_TXT, layout.OPTIONS_TXT)
            )
            disk.rename(directory, stage.path)
            return stage.publish_program(program, program_txt, options_txt, meta)
    finally:
        stage.discard()


def install_script(
    cache: Tree, directory: str, digest: str, files: Mapping[str, bytes], dispatcher: str | None
) -> str:
    """Make a script's directory hold these files, and links to those of its programs that are
    there.

    `dispatcher` is a directory on the cache's disk that becomes its `dispatch`. What an older
    package put there beyond that goes. Returns its path; raises `CacheError`.
    """
    tree = cache
    path = tree.script_path(directory, digest)
    text = files[layout.SCRIPT_TXT].decode("utf-8", "surrogateescape")
    links = links_of(tree, parse_script(text).numbered)
    put_script(tree, directory, digest, files, links)
    with tree.held(LockName("use", shared=True), LockName("script", digest)), wrap_oserror(path):
        for name in _OPTIONAL:
            given = name in files or (name == layout.DISPATCH and dispatcher is not None)
            if not given and os.path.lexists(os.path.join(path, name)):
                tree.remove_entry(os.path.join(path, name))
        if dispatcher is not None:
            tree.move(dispatcher, os.path.join(path, layout.DISPATCH))
    return path


def _taken(cache: Tree, directory: str, name: str) -> bytes:
    """Return the content of a file that publishing writes itself, and the file out of its way."""
    path = os.path.join(directory, name)
    data = read_bytes(path)
    cache.disk.remove(path)
    return data
