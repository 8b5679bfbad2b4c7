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
from contextlib import ExitStack
from functools import partial
from typing import Any

from msgspec import Struct, field

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Arrivals
from tilusbuild.cache.includes import include_problems, publish_include
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.attempt import ProgramAnswer, found
from tilusbuild.engine.interfaces import Store
from tilusbuild.remote.arriving import Arriving, Bring
from tilusbuild.remote.backend import Backend, Guard
from tilusbuild.remote.claims import Claim, check_code, check_listing, claim_of
from tilusbuild.remote.record import (
    MAX_BYTES,
    MAX_LISTING,
    NEEDED,
    Blob,
    Record,
    RecordError,
    decode,
    decode_listing,
    key,
)
from tilusbuild.runtime.regular import open_file, read_bytes
from tilusbuild.status import RECORDED, Compiled, Status

_MAX_LOG = 16 << 20
"""Bytes of what the compilers said."""
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


class _Arrival(Struct):
    """A program under way."""

    program: str
    record: Record
    claim: Claim = None  # type: ignore[assignment]  # the first step sets it
    files: dict[str, bytes | str] = field(default_factory=dict)
    """Content, or where it is."""

    def read(self, name: str) -> bytes:
        source = self.files[name]
        return read_bytes(source) if isinstance(source, str) else source


class _GoneError(Exception):
    """A blob is not there any more."""


class _Mapped(mmap.mmap):
    """A file as readers of binaries take content, without all of it in memory."""

    def startswith(self, start: bytes) -> bool:
        return self[: len(start)] == start


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
        for some in _portions(programs):
            with self._arriving.together() as bring:
                yield from self._fetch([_Arrival(*each) for each in some], bring)

    def _fetch(self, some: list[_Arrival], bring: Bring) -> Iterator[Outcome]:
        ended: list[Outcome] = []
        some = _each(some, _check_sizes, ended)
        bring({each.record.files[n] for each in some for n in NEEDED - each.record.texts.keys()})
        some = _each(some, self._claim, ended)
        bring({blob for each in some for blob in (*each.record.blobs, *self._listings(each))})
        some = _each(some, partial(self._take, bring=bring), ended)
        yield from ended
        for attempt in range(_ATTEMPTS):
            busy: list[_Arrival] = []
            for at in range(0, len(some), _TOGETHER):
                yield from self._publish(some[at : at + _TOGETHER], busy)
            if not (some := busy):
                break
            time.sleep(_PAUSE * (attempt + 1))
        for each in some:
            yield Outcome(each.program)

    def _source(self, record: Record, name: str) -> bytes | str:
        if name in record.texts:
            return record.texts[name].encode()
        return self._brought(record.files[name], name)

    def _brought(self, blob: Blob, name: str) -> str:
        if (path := self._arriving.path(blob, name)) is None:
            raise _GoneError
        return path

    def _claim(self, arrival: _Arrival) -> None:
        """Read the texts that say what else there is to fetch."""
        record = arrival.record
        arrival.files = {name: self._source(record, name) for name in NEEDED}
        texts = {name: arrival.read(name) for name in NEEDED}
        arrival.claim = claim_of(arrival.program, record, texts)

    def _listings(self, arrival: _Arrival) -> Iterator[Blob]:
        """Yield those of the directories that are not known to be here."""
        for digest, listing in arrival.record.directories.items():
            if digest not in self._laid_out:
                yield listing

    def _take(self, arrival: _Arrival, bring: Bring) -> None:
        """Check all files, and lay out headers and launcher."""
        claim, record = arrival.claim, arrival.record
        arrival.files |= {n: self._source(record, n) for n in record.files if n not in NEEDED}
        for digest, listing in record.directories.items():
            if digest not in self._laid_out:
                self._lay_out(digest, listing, claim, bring)
            if self._laid_out[digest] != claim.launcher and digest != claim.headers:
                raise RecordError(f"{layout.INCLUDE}/{digest} is another launcher's")
        made = arrival.files.get(f"module/{claim.pipeline.product}")
        with self._reading:  # one at a time is in memory
            log = arrival.read(layout.LOG) if layout.LOG in record.files else b""
            check_code(claim, _mapped(made) if isinstance(made, str) else made, log)

    def _lay_out(self, digest: str, blob: Blob, claim: Claim, bring: Bring) -> None:
        """Make `include/<digest>` be there."""
        where = f"{layout.INCLUDE}/{digest}"
        listing = decode_listing(read_bytes(self._brought(blob, where)))
        check_listing(digest, listing, claim)
        if not self._is_whole(digest):
            bring(set(listing.values()))
            files: dict[str, bytes | str] = {
                name: self._brought(each, f"{where}/{name}") for name, each in listing.items()
            }
            files[layout.MANIFEST] = read_bytes(str(files[layout.MANIFEST]))
            publish_include(self._cache, digest, files)
        self._laid_out[digest] = claim.launcher if digest != claim.headers else None

    def _is_whole(self, digest: str) -> bool:
        try:
            return not include_problems(self._cache.include_path(digest), digest)
        except OSError:
            return False

    def _publish(self, some: Sequence[_Arrival], busy: list[_Arrival]) -> list[Outcome]:
        """Put programs into the store; return how they ended, those left out that were added to
        `busy`: another process has their lock, or the one of a program that shares it."""
        ended: list[Outcome] = []
        hits: list[Outcome] = []
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
                files = {name: data for name, data in each.files.items() if name != layout.META}
                arrivals.add(program, files, each.read(layout.META))
                compiled = Compiled(Status(claim.meta["status"]), reason=claim.meta["reason"])
                answer = ProgramAnswer(compiled, cached=True, remote=True)
                hits.append(Outcome(program, answer, each.record.seconds))
            arrivals.commit()
        return ended + hits


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
        except _GoneError:
            ended.append(Outcome(each.program))
        except (ValueError, RecursionError) as error:  # `RecordError`, or a reader's
            ended.append(Outcome(each.program, refused=f"{error!s:.500}"))
    return left


def _check_sizes(arrival: _Arrival) -> None:
    """Refuse texts and listings that would not be read. Raises `RecordError`."""
    record = arrival.record
    for name, blob in record.files.items():
        if blob.size > (_MAX_LOG if name == layout.LOG else MAX_BYTES) or (
            name in NEEDED and blob.size > MAX_LISTING
        ):
            raise RecordError(f"{name} has {blob.size} bytes")
    for digest, blob in record.directories.items():
        if blob.size > MAX_LISTING:
            raise RecordError(f"the listing of {layout.INCLUDE}/{digest} has {blob.size} bytes")


def _mapped(path: str) -> bytes:
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        mapped: Any = _Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    content: bytes = mapped
    return content


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
