"""Fetch programs: archives, and from them entries of the cache, as a build here leaves them.

An entry is unpacked to a private place and checked as a whole (`check_entry`) before anything else
sees it. Its include directories come once each, whichever program needs them first, and are laid
out before the program is published, so that at no instant an entry names what is not there. An
entry without one of its directories is a miss; any other problem is the trouble of that program.
With `verify`, a share of the programs is compiled again before it is accepted.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.checks import Content, FileFacts, Origin, check_entry
from tilusbuild.cache.entries import EntryBatch
from tilusbuild.cache.includes import is_include_whole, parse_manifest, publish_include
from tilusbuild.cache.tree import PrivateDirectory, Tree
from tilusbuild.engine.attempt import ProgramAnswer, make_answer
from tilusbuild.engine.interfaces import Store
from tilusbuild.remote.archive import (
    Archive,
    ArchiveError,
    Unpacker,
    include_key,
    program_key,
)
from tilusbuild.remote.backend import Backend, Guard
from tilusbuild.runtime.regular import open_file, read_bytes
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.state.files import sha256_bytes, sha256_file
from tilusbuild.status import RECORDED, Compiled, Status

_ATTEMPTS, _PAUSE = 5, 0.05
"""How often a program's lock is tried, and seconds between: locks are few, so that another program
may have it for the moment in which it is published; who compiles this one has it for longer."""
_TRANSFERS = 2
"""How often an archive is fetched that cannot be unpacked: the line may have damaged it."""
_MAX_DIRECTORIES = 2
"""Include directories of a program: of its headers, and of its launcher."""
_MAX_TEXT = 16 << 20
"""Bytes of a file that is read into memory."""
_TEXTS = (layout.META, *layout.TEXTS, layout.COMPILE_SH, layout.LOG)
"""The files of a program that are read into memory."""


class NotVerifiedError(Exception):
    """A program could not be compiled again, which says nothing about its bytes."""


class Outcome(Struct, frozen=True):
    """The outcome of a fetch.

    With `answer` the program is in the store. With `refused`, a text, its entry was not accepted.
    With neither, the remote does not have the program, or another build holds its lock.
    """

    program: str
    answer: ProgramAnswer | None = None
    seconds: float = 0.0
    """How long its compile took."""
    refused: str | None = None
    outdated: bool = False
    """Whether the remote should get another entry for it."""
    verified: bool = False
    """Whether it was compiled again, with the same bytes."""
    wrong: bool = False
    """Whether it was compiled again, with other bytes."""


class _Include(Struct, frozen=True):
    """An include directory."""

    contents: Mapping[str, Content]
    """What is checked."""
    files: Mapping[str, bytes | str] | None
    """What is published; None once it is in the cache."""


class _Candidate(Struct, frozen=True):
    """An unpacked entry that is not accepted yet."""

    program: str
    archive: Archive
    contents: Mapping[str, Content]

    @property
    def meta(self) -> dict[str, Any]:
        """The content of its meta.json, which was checked."""
        return unseal_json(self.read_text(layout.META))

    @property
    def directories(self) -> list[str]:
        """The digests of the include directories that compile.sh names."""
        return layout.find_header_digests(self.read_text(layout.COMPILE_SH))

    def read_text(self, name: str) -> bytes:
        """Return the content of a text file; b"" without the file."""
        content = self.contents.get(name)
        return content if isinstance(content, bytes) else b""


class Fetcher:
    """Brings programs from a remote into the store. May be used from several threads."""

    def __init__(
        self,
        backend: Backend,
        guard: Guard,
        store: Store,
        cache: Tree,
        verify: Callable[[str, Archive], str | None] | None = None,
        share: float = 0.0,
    ) -> None:
        """`verify` compiles a program again and returns what differs; it raises `NotVerifiedError`.
        A `share` of the programs that were built, 0 to 1, is verified."""
        self._backend = backend
        self._guard = guard
        self._store = store
        self._cache = cache
        self._verify = verify
        self._share = share
        self._private: PrivateDirectory | None = None
        self._unpacker: Unpacker | None = None
        self._lock = threading.Lock()
        self._includes: dict[str, _Include | ArchiveError | None] = {}
        """The include directories that were asked for, by digest; None: the remote has it not."""
        self._includes_lock = threading.Lock()
        self._verifying = threading.Lock()
        self.fetched_bytes = 0

    def close(self) -> None:
        """Remove the files of entries that were not accepted."""
        if self._private is not None:
            self._private.discard()

    def fetch_programs(self, programs: Sequence[str]) -> Iterator[Outcome]:
        """Yield how each of these ended. Raises `BrokenError`, `OSError`, `CacheError`."""
        archives = self._receive_archives(program_key, programs)
        try:
            candidates: list[_Candidate] = []
            for program in programs:
                archive = archives.get(program)
                try:
                    if isinstance(archive, ArchiveError):
                        raise archive
                    if archive is not None:
                        contents = _map_contents(archive.files)
                        candidates.append(_Candidate(program, archive, contents))
                    else:
                        yield Outcome(program)
                except ArchiveError as error:
                    yield _refuse_entry(program, error)
            yield from self._accept_candidates(candidates)
        finally:
            for archive in archives.values():
                if isinstance(archive, Archive):
                    _remove_files(archive)

    def _accept_candidates(self, candidates: Sequence[_Candidate]) -> Iterator[Outcome]:
        """Check candidates and publish those that pass. Yield the outcome of each."""
        self._receive_includes(
            {digest for each in candidates for digest in each.directories[:_MAX_DIRECTORIES]}
        )
        accepted: list[_Candidate] = []
        verified: set[str] = set()
        for candidate in candidates:
            outcome = self._check_candidate(candidate)
            if outcome is None and self._is_sample(candidate):
                outcome = self._compile_again(candidate)
                verified.add(candidate.program)
            if outcome is None:
                self._lay_out_includes(candidate.directories)
                accepted.append(candidate)
            else:
                yield outcome
        for attempt in range(_ATTEMPTS):
            if not accepted:
                return
            outcomes, accepted = self._publish_candidates(accepted, verified)
            yield from outcomes
            if accepted:
                time.sleep(_PAUSE * (attempt + 1))
        yield from (Outcome(each.program) for each in accepted)

    def _receive_archives(
        self, key_of: Callable[[str], str], names: Collection[str]
    ) -> dict[str, Archive | ArchiveError]:
        """Fetch and unpack the archives under these names. Return each archive, or the error of one
        that cannot be unpacked, by name. A name that the remote does not have is left out. Raises
        `BrokenError`, `OSError`."""
        by_key = {key_of(name): name for name in names}
        archives: dict[str, Archive | ArchiveError] = {}
        missing = set(by_key)

        def take_archive(key: str, pieces: Iterable[bytes]) -> None:
            archives[by_key[key]] = self._unpack_archive(pieces)
            missing.discard(key)

        def fetch_missing() -> None:
            # A request that is tried again asks only for what has not come.
            self._backend.fetch_files([key for key in by_key if key in missing], take_archive)

        for _ in range(_TRANSFERS):
            if missing:
                self._guard.call_request(fetch_missing)
            missing = {key for key in by_key if isinstance(archives.get(by_key[key]), ArchiveError)}
        return archives

    def _unpack_archive(self, pieces: Iterable[bytes]) -> Archive | ArchiveError:
        """Unpack an archive that arrives in pieces. Return the archive, or the error for a
        malformed one. Raises the exceptions of `pieces`."""
        with self._lock:
            if self._private is None or self._unpacker is None:
                self._private = self._cache.make_private()
                self._unpacker = Unpacker(self._private.path)
        try:
            return self._unpacker.unpack_entry(self._count_bytes(pieces))
        except ArchiveError as error:
            return error

    def _count_bytes(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            with self._lock:
                self.fetched_bytes += len(piece)
            yield piece

    def _receive_includes(self, digests: Collection[str]) -> None:
        """Fetch the include directories that the cache does not have and that were not fetched
        before.

        The lock is held during the fetch, so that two threads do not fetch the same directory.
        """
        with self._includes_lock:
            unknown = [digest for digest in digests if digest not in self._includes]
            for digest in unknown:
                path = self._cache.include_path(digest)
                if is_include_whole(path, digest):
                    self._includes[digest] = _Include(_list_include(path), None)
            absent = [digest for digest in unknown if digest not in self._includes]
            archives = self._receive_archives(include_key, absent) if absent else {}
            for digest in absent:
                archive = archives.get(digest)
                self._includes[digest] = (
                    _hash_include(archive) if isinstance(archive, Archive) else archive
                )

    def _check_candidate(self, candidate: _Candidate) -> Outcome | None:
        """Return why an entry is not accepted; None for one that is right."""
        program, contents = candidate.program, candidate.contents
        directories: dict[str, Mapping[str, Content]] = {}
        absent = False
        for digest in candidate.directories[:_MAX_DIRECTORIES]:
            include = self._includes[digest]
            if isinstance(include, ArchiveError):
                return _refuse_entry(program, f"{layout.INCLUDE}/{digest}: {include}")
            if include is None:
                absent = True
            else:
                directories[digest] = include.contents
        carried = None if absent else directories
        if problems := check_entry(program, contents, carried, origin=Origin.REMOTE):
            return _refuse_entry(program, problems[0])
        return Outcome(program, outdated=True) if absent else None

    def _is_sample(self, candidate: _Candidate) -> bool:
        """Return whether to verify a program; a writer of the remote cannot know which."""
        chosen = random.random() < self._share  # noqa: S311 - seeded by the system in each process
        return chosen and self._verify is not None and candidate.meta["status"] == Status.BUILT

    def _compile_again(self, candidate: _Candidate) -> Outcome | None:
        """Compile a candidate again. Return the outcome of one with other bytes, or of one that
        does not compile; None for the same bytes."""
        assert self._verify is not None  # noqa: S101 - `_is_sample` saw it
        self._lay_out_includes(candidate.directories)
        try:
            with self._verifying:  # one compiler beside those of the build
                difference = self._verify(candidate.program, candidate.archive)
        except NotVerifiedError as error:
            return Outcome(candidate.program, refused=f"{error!s:.500}")
        if difference is None:
            return None
        return Outcome(candidate.program, refused=difference, outdated=True, wrong=True)

    def _lay_out_includes(self, digests: Iterable[str]) -> None:
        """Publish include directories that were checked. Raises `CacheError`."""
        with self._includes_lock:
            for digest in digests:
                include = self._includes[digest]
                if isinstance(include, _Include) and include.files is not None:
                    publish_include(self._cache, digest, include.files)
                    self._includes[digest] = _Include(include.contents, None)

    def _publish_candidates(
        self, candidates: Sequence[_Candidate], verified: Collection[str]
    ) -> tuple[list[Outcome], list[_Candidate]]:
        """Put programs into the store; return how they ended, and those of which another process
        has the lock, or the one of a program that shares it."""
        outcomes: list[Outcome] = []
        locked: list[_Candidate] = []
        with ExitStack() as locks, EntryBatch(self._cache) as arrivals:
            for candidate in candidates:
                program, archive = candidate.program, candidate.archive
                if not locks.enter_context(self._store.lock_program(program, wait=False)):
                    locked.append(candidate)
                    continue
                entry = self._store.find_entry(program)
                if entry is not None and entry.status in RECORDED:
                    outcomes.append(Outcome(program, make_answer(entry)))
                    continue
                files = {n: each for n, each in archive.files.items() if n != layout.META}
                arrivals.add_program(program, files, candidate.read_text(layout.META))
                meta = candidate.meta
                compiled = Compiled(Status(meta["status"]), reason=meta["reason"])
                answer = ProgramAnswer(compiled, cached=True, remote=True)
                outcomes.append(
                    Outcome(program, answer, archive.seconds, verified=program in verified)
                )
            arrivals.commit_programs()
        return outcomes, locked


def _refuse_entry(program: str, problem: object) -> Outcome:
    # A name in it is whatever a server says.
    text = "".join(each if each.isprintable() else "?" for each in f"{problem!s:.500}")
    return Outcome(program, refused=text, outdated=True)


def _map_contents(files: Mapping[str, bytes | str]) -> dict[str, Content]:
    """Return the files of a program as they are checked. Raises `ArchiveError` for a text that is
    too large to be read."""
    contents: dict[str, Content] = {}
    for name, source in files.items():
        if isinstance(source, bytes):
            contents[name] = source
        elif name not in _TEXTS:
            contents[name] = _map_file(source)
        else:
            contents[name] = _read_text(name, source)
    return contents


def _read_text(name: str, path: str) -> bytes:
    """Return the content of a file. Raises `ArchiveError` for one that is too large."""
    if os.path.getsize(path) > _MAX_TEXT:
        raise ArchiveError(f"{name} has more than {_MAX_TEXT >> 20} MiB")
    return read_bytes(path)


def _hash_include(archive: Archive) -> _Include | ArchiveError:
    """Return an include directory with each file hashed once, whoever names it."""
    contents: dict[str, Content] = {}
    for name, source in archive.files.items():
        if isinstance(source, bytes):
            contents[name] = FileFacts(len(source), sha256_bytes(source))
        else:
            contents[name] = FileFacts(os.path.getsize(source), sha256_file(source))
    files = dict(archive.files)
    if (manifest := files.get(layout.MANIFEST)) is not None:
        if isinstance(manifest, str):
            try:
                manifest = _read_text(layout.MANIFEST, manifest)
            except ArchiveError as error:
                return error
        contents[layout.MANIFEST] = files[layout.MANIFEST] = manifest
    return _Include(contents, files)


def _list_include(path: str) -> dict[str, Content]:
    """Return the files of an include directory that is whole."""
    manifest = read_bytes(os.path.join(path, layout.MANIFEST))
    contents: dict[str, Content] = {layout.MANIFEST: manifest}
    for name, digest in parse_manifest(manifest).items():
        contents[name] = FileFacts(os.path.getsize(os.path.join(path, name)), digest)
    return contents


def _map_file(path: str) -> bytes:
    """Map a file into memory. A `mmap` serves as `bytes` to the readers of binaries."""
    with open_file(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]


def _remove_files(archive: Archive) -> None:
    for source in archive.files.values():
        if isinstance(source, str):
            with suppress(OSError):
                os.unlink(source)
