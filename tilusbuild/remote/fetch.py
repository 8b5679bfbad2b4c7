"""Fetch programs: records, blobs, and from them entries of the cache, as a build here leaves them.

Every blob is compared with its size and its digest, and what a program says of itself with what can
be worked out here (`claims`). Headers and launcher are laid out before the program is published, so
that at no instant an entry names what is not there. A record with a blob that is gone is a miss.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Arrivals
from tilusbuild.cache.includes import include_problems, publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.attempt import ProgramAnswer, found
from tilusbuild.engine.interfaces import Store
from tilusbuild.remote.backend import Backend, Guard
from tilusbuild.remote.claims import check_generated, checked_meta
from tilusbuild.remote.record import (
    Blob,
    Record,
    RecordError,
    blob_for,
    decode,
    decode_listing,
    key,
)
from tilusbuild.status import RECORDED, Compiled, Status

_AT_ONCE = 64 << 20
"""Bytes of programs that are fetched together."""
_TOGETHER = 16
"""Programs that are written before the disk is waited for. Their locks are held at once."""
_ATTEMPTS, _PAUSE = 5, 0.05
"""How often a program's lock is tried, and seconds between: locks are few, so that another program
may have it for the moment in which it is published; who compiles this one has it for longer."""


class Outcome(Struct, frozen=True):
    """What came of a program: with `answer` it came from the remote and is in the store; `refused`
    says in words why it is not what it should be; with neither the remote has it not, or another
    build here has it at this moment."""

    program: str
    answer: ProgramAnswer | None = None
    seconds: float = 0.0
    """How long its compile took."""
    refused: str | None = None


Contents: TypeAlias = dict[Blob, "bytes | None"]
"""Blobs that were fetched; None of one that came, and is another than was said."""


class Fetcher:
    """Brings programs from a remote into the store. May be used from several threads."""

    def __init__(self, backend: Backend, guard: Guard, store: Store, cache: Tree) -> None:
        self._backend = backend
        self._guard = guard
        self._store = store
        self._cache = cache
        self.fetched_bytes = 0
        self._laid_out: dict[str, Mapping[str, Blob]] = {}
        """The files of header directories that are whole, by the directory's digest."""

    def records(self, programs: Sequence[str]) -> Iterator[tuple[str, Record] | Outcome]:
        """Yield what the remote says of each. Raises `BrokenError`."""
        keys = [key(program) for program in programs]
        answers = self._guard.call(lambda: self._backend.results(keys))
        for program, data in zip(programs, answers, strict=True):
            if data is None:
                yield Outcome(program)
                continue
            self.fetched_bytes += len(data)
            try:
                yield program, decode(data)
            except RecordError as error:
                yield Outcome(program, refused=str(error))

    def fetch(self, programs: Sequence[tuple[str, Record]]) -> Iterator[Outcome]:
        """Yield how each of these ended. Raises `BrokenError`, `OSError`, `CacheError`."""
        for some in _portions(programs):
            contents: Contents = {}
            for _, record in some:
                contents.update((record.files[n], t.encode()) for n, t in record.texts.items())
            blobs = {blob for _, record in some for blob in record.blobs}
            blobs |= {blob for _, record in some for blob in self._listings(record)}
            self._read(blobs, contents)
            waiting = list(some)
            for attempt in range(_ATTEMPTS):
                busy: list[tuple[str, Record]] = []
                for at in range(0, len(waiting), _TOGETHER):
                    yield from self._publish(waiting[at : at + _TOGETHER], contents, busy)
                if not (waiting := busy):
                    break
                time.sleep(_PAUSE * (attempt + 1))
            for program, _ in waiting:
                yield Outcome(program)

    def _read(self, wanted: Collection[Blob], into: Contents) -> None:
        """Fetch what is not there yet; once more what is wrong, which may be the line's fault.
        Raises `BrokenError`."""
        for _ in range(2):
            left = [blob for blob in wanted if into.get(blob) is None]
            if not left:
                return
            for blob, data in self._guard.call(partial(self._backend.blobs, left)).items():
                self.fetched_bytes += len(data)
                into[blob] = data if blob_for(data) == blob else None
            wanted = [blob for blob in left if blob in into]

    def _publish(
        self,
        some: Sequence[tuple[str, Record]],
        contents: Contents,
        busy: list[tuple[str, Record]],
    ) -> list[Outcome]:
        """Put programs into the store; return how they ended, those left out that were added to
        `busy`: another process has their lock, or the one of a program that shares it."""
        ended: list[Outcome] = []
        hits: list[Outcome] = []
        with ExitStack() as locks, Arrivals(self._cache) as arrivals:
            for program, record in some:
                try:
                    checked = self._checked(program, record, contents)
                except RecordError as error:
                    ended.append(Outcome(program, refused=str(error)))
                    continue
                if checked is None:
                    ended.append(Outcome(program))
                    continue
                if not locks.enter_context(self._store.locked(program, wait=False)):
                    busy.append((program, record))
                    continue
                entry = self._store.lookup(program)
                if entry is not None and entry.status in RECORDED:
                    ended.append(Outcome(program, found(entry)))
                    continue
                meta, files = checked
                arrivals.add(program, files, files.pop(layout.META))
                compiled = Compiled(Status(meta["status"]), reason=meta["reason"])
                answer = ProgramAnswer(compiled, cached=True, remote=True)
                hits.append(Outcome(program, answer, record.seconds))
            arrivals.commit()
        return ended + hits

    def _listings(self, record: Record) -> Iterator[Blob]:
        """Yield those of the directories that are not known to be here."""
        for digest, listing in record.directories.items():
            if digest not in self._laid_out:
                yield listing

    def _checked(
        self, program: str, record: Record, contents: Contents
    ) -> tuple[Mapping[str, Any], dict[str, bytes]] | None:
        """Return what meta.json says and all files, its headers and launcher laid out; None when a
        blob is gone. Raises `RecordError`."""
        files = _taken(record.files, contents, "")
        if files is None:
            return None
        meta = checked_meta(program, record, files)
        for digest, listing in record.directories.items():
            if digest not in self._laid_out and not self._lay_out(digest, listing, contents):
                return None
        directories = {digest: self._laid_out[digest] for digest in record.directories}
        check_generated(files[layout.OPTIONS_TXT], record, directories)
        return meta, files

    def _lay_out(self, digest: str, blob: Blob, contents: Contents) -> bool:
        """Make `include/<digest>` be there; return False when a blob of it is gone."""
        listing = _taken({"": blob}, contents, f"{layout.INCLUDE}/{digest}")
        if listing is None:
            return False
        named = decode_listing(listing[""])
        if not self._is_whole(digest):
            self._read(set(named.values()), contents)
            files = _taken(named, contents, f"{layout.INCLUDE}/{digest}/")
            if files is None:
                return False
            try:
                publish_include(self._cache, digest, files)
            except ValueError as error:
                raise RecordError(f"{layout.INCLUDE}/{digest}: {error}") from None
        self._laid_out[digest] = named
        return True

    def _is_whole(self, digest: str) -> bool:
        try:
            return not include_problems(self._cache.include_path(digest), digest)
        except OSError:
            return False


def _taken(named: Mapping[str, Blob], contents: Contents, where: str) -> dict[str, bytes] | None:
    """Return the content of each name, or None when some is gone. Raises `RecordError` for one that
    is wrong."""
    found = {name: contents[blob] for name, blob in named.items() if blob in contents}
    if wrong := [name for name, data in found.items() if data is None]:
        raise RecordError(f"{where}{wrong[0]} has other bytes than its digest says")
    return {n: data or b"" for n, data in found.items()} if len(found) == len(named) else None


def _portions(programs: Sequence[tuple[str, Record]]) -> Iterator[list[tuple[str, Record]]]:
    portion: list[tuple[str, Record]] = []
    size = 0
    for program, record in programs:
        own = sum(blob.size for blob in record.files.values())
        if portion and size + own > _AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append((program, record))
        size += own
    if portion:
        yield portion
