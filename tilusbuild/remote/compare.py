"""Programs of a cache, compared with what a remote cache has under their names, byte by byte.

Both sides are read: a file here is held against its own digest, a blob there is fetched and held
against the digest that its record names. Nothing is written on either side. What the remote has not
is no difference: it may keep what it likes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, lookup, product_of
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import program_problems
from tilusbuild.remote.backend import Backend
from tilusbuild.remote.blobs import BlobReader, Contents
from tilusbuild.remote.claims import ClaimError, checked_meta
from tilusbuild.remote.guard import Guard
from tilusbuild.remote.record import (
    Blob,
    Describer,
    Record,
    RecordError,
    decode,
    files_of_tree,
    key,
)
from tilusbuild.runtime.sealed import CorruptFileError


@dataclass(frozen=True, slots=True)
class Differing:
    """A program with other bytes: the names of its files that differ, and what is known of why."""

    program: str
    files: tuple[str, ...]
    here: str = ""
    """What is wrong with the one of this machine, without a compile."""
    there: str = ""
    """What is wrong with the remote's, without a compile."""
    products: tuple[str, str] = ("", "")
    """The digests of what it was made into, here and there, if they differ."""


@dataclass(slots=True)
class Comparison:
    """How many programs are the same on both sides, how many the remote has not, or not whole, and
    those that differ."""

    address: str
    cache: Tree
    same: int = 0
    missing: int = 0
    differing: list[Differing] = field(default_factory=list)
    _describer: Describer = field(init=False)
    _whole: set[Blob] = field(default_factory=set)
    """Trees of header directories whose blobs the remote has, all as they should be."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._describer = Describer(self.cache.include_path)

    def compare(self, backend: Backend, guard: Guard, programs: Sequence[str]) -> None:
        """Compare those of these programs that are in the cache. May be called from several
        threads. Raises `BrokenError`."""
        keys = [key(program) for program in programs]
        answers = guard.call(lambda: backend.results(keys))
        blobs = BlobReader(backend, guard)
        for program, data in zip(programs, answers, strict=True):
            if (entry := lookup(self.cache, program)) is None:
                continue
            try:
                differing = _GONE if data is None else self._one(entry, decode(data), blobs)
            except RecordError as error:
                differing = Differing(program, ("its record",), there=str(error))
            except OSError as error:
                differing = Differing(program, ("its directory",), here=str(error))
            with self._counting:
                self.same += differing is None
                self.missing += differing is _GONE
                self.differing += [differing] if differing and differing is not _GONE else []

    def _one(self, entry: Entry, theirs: Record, blobs: BlobReader) -> Differing | None:
        """Return what differs; None for nothing. Raises `RecordError`, `OSError`."""
        ours, _ = self._describer.describe(entry, 0.0)
        contents = Contents()
        blobs.read({*theirs.files.values()}, contents)
        held = {name: _held(blob, contents) for name, blob in theirs.files.items()}
        differing = {name for name, blob in theirs.files.items() if ours.files.get(name) != blob}
        differing |= ours.files.keys() - theirs.files.keys()
        for digest in {*ours.directories, *theirs.directories}:
            tree, name = theirs.directories.get(digest), f"{layout.INCLUDE}/{digest}"
            if tree is None or tree != ours.directories.get(digest):
                differing.add(name)
            else:
                held[name] = self._held_tree(tree, blobs)
        wrong = [name for name, state in held.items() if state is False]
        here = _problems_here(entry)
        if not (differing or wrong or here):
            return _GONE if None in held.values() else None
        there = f"{min(wrong)} has other bytes than its digest says" if wrong else ""
        if not there and None not in held.values():
            there = _claimed(entry.hash, theirs, contents)
        files = sorted({*differing, *wrong, *here}, key=lambda name: (name == layout.META, name))
        damaged = next((f"{name} {what}".strip() for name, what in here.items()), "")
        product, none = product_of(entry.meta), Blob("", 0)
        digests = (ours.files.get(product, none).digest, theirs.files.get(product, none).digest)
        products = digests if digests[0] != digests[1] else ("", "")
        return Differing(entry.hash, tuple(files), damaged, there, products)

    def _held_tree(self, tree: Blob, blobs: BlobReader) -> bool | None:
        """Return `_held` of a directory's blobs as a whole."""
        if tree in self._whole:
            return True
        contents = Contents()
        blobs.read({tree}, contents)
        wanted = {tree}
        if tree in contents.good:
            wanted |= {*files_of_tree(contents.good[tree]).values()}
            blobs.read(wanted, contents)
        states = {_held(blob, contents) for blob in wanted}
        if states == {True}:
            self._whole.add(tree)
        return False if False in states else True if states == {True} else None


_GONE = Differing("", ())
"""Of a program that the remote has not, or not whole."""


def _held(blob: Blob, contents: Contents) -> bool | None:
    """Return whether the remote has a blob as it should be; None when it has none."""
    return True if blob in contents.good else False if blob in contents.wrong else None


def _claimed(program: str, record: Record, contents: Contents) -> str:
    """Return what the remote's own files say against it."""
    try:
        checked_meta(program, record, {n: contents.good[b] for n, b in record.files.items()})
    except ClaimError as error:
        return str(error)
    return ""


def _problems_here(entry: Entry) -> dict[str, str]:
    try:
        return dict(program_problems(entry.path, entry.hash, deep=True))
    except (CorruptFileError, OSError) as error:
        return {layout.META: str(error)}
