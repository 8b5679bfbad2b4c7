"""What is in a cache, as values for people: scripts, programs, sizes. Nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, find_entry
from tilusbuild.cache.garbage import measured
from tilusbuild.cache.scripts import read_script
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.status import KNOWN_IN_CACHE, RECORDED, Status


@dataclass(frozen=True, slots=True)
class ScriptListing:
    """One script directory."""

    directory: str
    hash: str
    head: Mapping[str, str]
    """The first lines of script.txt: "script", "target", "arch"."""
    programs: tuple[str, ...]
    """Hashes in plan order."""
    statuses: Mapping[str, int]
    """How many programs are built, failed, pruned; and "missing": not or no longer there."""
    size: int
    """Bytes of the programs, each counted once."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole cache in numbers."""

    root: str
    statuses: Mapping[str, int]
    """How many programs are built, failed, pruned; and "broken"."""
    sizes: Mapping[str, int]
    """Bytes below each directory of the cache."""
    scripts: tuple[ScriptListing, ...]

    @property
    def size(self) -> int:
        """Bytes of everything."""
        return sum(self.sizes.values())


def programs(tree: Tree) -> Iterator[str]:
    """Yield the hashes that there are directories for, sorted. Raises `InputError` for no cache."""
    if tree.exists():
        try:
            names = sorted(os.listdir(tree.path(layout.PROGRAMS)))
        except (FileNotFoundError, NotADirectoryError):
            return
        yield from filter(layout.is_hash, names)


def find(tree: Tree, prefix: str) -> list[str]:
    """Return the hashes of the programs that begin so."""
    return [program for program in programs(tree) if program.startswith(prefix)]


def scripts(tree: Tree) -> list[ScriptListing]:
    """Return every whole script directory, by directory and hash. Raises `InputError` for no
    cache."""
    entries: dict[str, Entry | None] = {}
    return list(_scripts(tree, entries)) if tree.exists() else []


def stats(tree: Tree) -> Stats:
    """Return counts and sizes. Raises `InputError` for no cache."""
    entries = {p: find_entry(tree.program_path(p), p) for p in programs(tree)}
    counts = dict.fromkeys((*RECORDED, "broken"), 0)
    for entry in entries.values():
        counts[entry.status if entry else "broken"] += 1
    sizes = {name: measured(tree.path(name))[0] for name in layout.DIRECTORIES}
    return Stats(tree.root, counts, sizes, tuple(_scripts(tree, entries)))


def _scripts(tree: Tree, entries: dict[str, Entry | None]) -> Iterator[ScriptListing]:
    for directory in _directories(tree, layout.SCRIPTS):
        for digest in filter(layout.is_hash, _directories(tree, layout.SCRIPTS, directory)):
            try:
                text = read_script(tree.script_path(directory, digest), digest)
            except (FileNotFoundError, CorruptFileError):
                continue
            counts: dict[str, int] = dict.fromkeys(KNOWN_IN_CACHE, 0)
            size = 0
            for program in dict.fromkeys(text.programs):
                if program not in entries:
                    entries[program] = find_entry(tree.program_path(program), program)
                entry = entries[program]
                counts[entry.status if entry else Status.MISSING] += 1
                size += entry.size if entry else 0
            yield ScriptListing(directory, digest, text.head, text.programs, counts, size)


def _directories(tree: Tree, *names: str) -> list[str]:
    try:
        return sorted(os.listdir(tree.path(*names)))
    except (FileNotFoundError, NotADirectoryError):
        return []
