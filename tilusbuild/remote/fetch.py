"""Fetch programs: records, blobs, and from them entries of the cache, as a build here leaves them.

First come the short texts that a program is named by; what its record names besides is compared
with them (`claims`), and only then fetched, to disk (`arriving`). Headers and launcher are laid out
before the program is published, so that at no instant an entry names what is not there. A record
with a blob that is gone is a miss; whatever is wrong with one is that program's trouble.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Arrivals
from tilusbuild.cache.includes import is_whole, publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.attempt import ProgramAnswer, found
from tilusbuild.engine.interfaces import Store
from tilusbuild.remote.arriving import Arriving, GoneError
from tilusbuild.remote.backend import Backend, Guard
from tilusbuild.remote.claims import Claim, check_code, check_listing, claim_of
from tilusbuild.remote.record import (
    NEEDED,
    Blob,
    Record,
    RecordError,
    Source,
    content,
    decode,
    decode_listing,
    key,
)
from tilusbuild.runtime.regular import open_file, read_bytes
from tilusbuild.status import RECORDED, Compiled, Status

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


class _Arrival(Struct):
    """A program under way."""

    program: str
    record: Record
    came: dict[Blob, Future[str]]
    """What came of all those that are fetched together."""
    claim: Claim = None  # type: ignore[assignment]  # the first step sets it

    def source(self, name: str) -> Source:
        """Return a file's content, or where it is. Raises `GoneError`, `RecordError`."""
        if name in self.record.texts:
            return self.record.texts[name].encode()
        try:
            return self.came[self.record.files[name]].result()
        except RecordError as error:
            raise RecordError(f"{name}: {error}") from None

    def read(self, name: str) -> bytes:
        return content(self.source(name))


class Fetcher:
    """Brings programs from a remote into the store. May be used from several threads."""

    def __init__(self, backend: Backend, guard: Guard, store: Store, cache: Tree) -> None:
        self._backend = backend
        self._guard = guard
        self._store = store
        self._cache = cache
        self._arriving = Arriving(backend, guard, cache)
        self._of_records = 0
        self._laid_out: dict[str, str | None] = {}
        """Directories that are whole: each with the digest of the launcher's source in it."""
        self._reading = threading.Lock()

    @property
    def fetched_bytes(self) -> int:
        return self._of_records + self._arriving.bytes

    def close(self) -> None:
        """Remove what came and is in no program."""
        self._arriving.close()

    def records(self, programs: Sequence[str]) -> Iterator[tuple[str, Record] | Outcome]:
        """Yield what the remote says of each. Raises `BrokenError`."""
        keys = [key(program) for program in programs]
        answers = self._guard.call(lambda: self._backend.results(keys))
        for program, data in zip(programs, answers, strict=True):
            if data is None:
                yield Outcome(program)
                continue
            self._of_records += len(data)
            try:
                yield program, decode(data)
            except RecordError as error:
                yield Outcome(program, refused=str(error))

    def fetch(self, programs: Sequence[tuple[str, Record]]) -> Iterator[Outcome]:
        """Yield how each of these ended. Raises `BrokenError`, `OSError`, `CacheError`."""
        came: dict[Blob, Future[str]] = {}
        some = [_Arrival(program, record, came) for program, record in programs]
        ended: list[Outcome] = []
        texts = [(each.record, NEEDED - each.record.texts.keys()) for each in some]
        came |= self._arriving.bring({of.files[name] for of, names in texts for name in names})
        some = _each(some, _claim, ended)
        wanted = {blob for each in some for blob in (*each.record.blobs, *self._listings(each))}
        came |= self._arriving.bring(wanted - came.keys())
        some = _each(some, self._take, ended)
        yield from ended
        for attempt in range(_ATTEMPTS):
            outcomes, some = self._publish(some)
            yield from outcomes
            if not some:
                break
            time.sleep(_PAUSE * (attempt + 1))
        yield from (Outcome(each.program) for each in some)
        came.clear()  # the traceback of a blob that was gone may hold it

    def _listings(self, arrival: _Arrival) -> Iterator[Blob]:
        """Yield those of the directories that are not known to be here."""
        for digest, listing in arrival.record.directories.items():
            if digest not in self._laid_out:
                yield listing

    def _take(self, arrival: _Arrival) -> None:
        """Check all files, and lay out headers and launcher."""
        claim, record = arrival.claim, arrival.record
        sources = {name: arrival.source(name) for name in record.files}
        for digest, listing in record.directories.items():
            if digest not in self._laid_out:
                self._lay_out(digest, arrival.came[listing].result(), arrival)
            if self._laid_out[digest] != claim.launcher and digest != claim.headers:
                raise RecordError(f"{layout.INCLUDE}/{digest} is another launcher's")
        made = sources.get(f"module/{claim.pipeline.product}")
        with self._reading:  # one at a time is in memory
            log = arrival.read(layout.LOG) if layout.LOG in record.files else b""
            check_code(claim, _mapped(made) if isinstance(made, str) else made, log)

    def _lay_out(self, digest: str, listed: str, arrival: _Arrival) -> None:
        """Make `include/<digest>` be there, of which the listing is the file `listed`."""
        listing = decode_listing(read_bytes(listed))
        check_listing(digest, listing, arrival.claim)
        if not is_whole(self._cache.include_path(digest), digest):
            came = self._arriving.bring(set(listing.values()))
            files: dict[str, Source] = {n: came[each].result() for n, each in listing.items()}
            files[layout.MANIFEST] = read_bytes(str(files[layout.MANIFEST]))
            publish_include(self._cache, digest, files)
        self._laid_out[digest] = arrival.claim.launcher if digest != arrival.claim.headers else None

    def _publish(self, some: Sequence[_Arrival]) -> tuple[list[Outcome], list[_Arrival]]:
        """Put programs into the store; return how they ended, and those of which another process
        has the lock, or the one of a program that shares it."""
        ended: list[Outcome] = []
        hits: list[Outcome] = []
        busy: list[_Arrival] = []
        with ExitStack() as locks, Arrivals(self._cache) as arrivals:
            for each in some:
                program, claim = each.program, each.claim
                if not locks.enter_context(self._store.locked(program, wait=False)):
                    busy.append(each)
                    continue
                entry = self._store.lookup(program)
                if entry is not None and entry.status in RECORDED:
                    ended.append(Outcome(program, found(entry)))
                    continue
                files = {n: each.source(n) for n in each.record.files if n != layout.META}
                arrivals.add(program, files, each.read(layout.META))
                compiled = Compiled(Status(claim.meta["status"]), reason=claim.meta["reason"])
                answer = ProgramAnswer(compiled, cached=True, remote=True)
                hits.append(Outcome(program, answer, each.record.seconds))
            arrivals.commit()
        return ended + hits, busy


def _each(
    some: Sequence[_Arrival], step: Callable[[_Arrival], None], ended: list[Outcome]
) -> list[_Arrival]:
    """Do something with each; return those that did not end with it. Whatever is wrong with what a
    remote sent is the trouble of that program."""
    left: list[_Arrival] = []
    for each in some:
        try:
            step(each)
            left.append(each)
        except GoneError:
            ended.append(Outcome(each.program))
        except (ValueError, RecursionError) as error:  # `RecordError`, or a reader's
            ended.append(Outcome(each.program, refused=f"{error!s:.500}"))
    return left


def _claim(arrival: _Arrival) -> None:
    """Read the texts that say what else there is to fetch."""
    texts = {name: arrival.read(name) for name in NEEDED}
    arrival.claim = claim_of(arrival.program, arrival.record, texts)


def _mapped(path: str) -> Any:
    """Return a file as readers of binaries take content, without all of it in memory."""
    with open_file(path) as file:
        empty = not os.fstat(file.fileno()).st_size
        return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
