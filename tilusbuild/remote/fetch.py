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
from tilusbuild.cache.checks import Content, FileFacts, Origin, check_directory, check_entry
from tilusbuild.cache.entries import EntryBatch
from tilusbuild.cache.includes import is_include_whole, publish_include
from tilusbuild.cache.tree import PrivateDirectory, Tree
from tilusbuild.engine.attempt import ProgramAnswer, make_answer
from tilusbuild.engine.interfaces import Store
from tilusbuild.errors import InputError
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
from tilusbuild.state.files import sha256_file
from tilusbuild.status import RECORDED, Compiled, Status

# How often a program's lock is tried, and seconds between. Programs share locks: one that is held
# while another program is published is free in a moment; one of a compile of this program is not.
_ATTEMPTS, _PAUSE = 5, 0.05
# Include directories of a program: of its headers, and of its launcher. A compile.sh that names
# more is refused, and a hundred directories are not fetched for it before.
_MAX_DIRECTORIES = 2
# Bytes of a file that is read into memory.
_MAX_TEXT = 16 << 20
# The files that `check_entry` reads as text. Others are mapped: a library may have 100 MB.
_TEXTS = (layout.META, *layout.TEXTS, layout.COMPILE_SH, layout.LOG, layout.MANIFEST)


class Outcome(Struct, frozen=True):
    """The outcome of a fetch.

    With `answer` the program is in the store. With `refused`, a text, its entry was not accepted.
    With neither, the remote does not have the program, or another build holds its lock.
    """

    program: str
    answer: ProgramAnswer | None = None
    seconds: float = 0.0
    """The seconds that its compile took."""
    refused: str | None = None
    outdated: bool = False
    """Whether the remote should get another entry for it."""
    verified: bool = False
    """Whether it was compiled again, with the same bytes."""
    wrong: bool = False
    """Whether it was compiled again, with other bytes."""


class _Include(Struct, frozen=True):
    """An include directory, which was checked."""

    manifest: bytes
    files: Mapping[str, bytes | str] | None
    """The files for `publish_include`; None once the directory is in the cache."""


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
        """`verify` compiles a program again and returns the difference, or None; it raises
        `InputError` where it cannot. A `share` of the programs that were built, 0 to 1, is
        verified."""
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
        """The include directories that were asked for, by digest; None for one that the remote does
        not have."""
        self._includes_lock = threading.Lock()
        self._verifying = threading.Lock()
        self.fetched_bytes = 0

    def close(self) -> None:
        """Remove the files of entries that were not accepted."""
        if self._private is not None:
            self._private.discard()

    def fetch_programs(self, programs: Sequence[str]) -> Iterator[Outcome]:
        """Fetch programs, publish those whose entries are right, and yield the outcome of each, in
        any order. Raises `BrokenError`, `OSError`, `CacheError`."""
        archives = self._receive_archives(program_key, programs)
        try:
            candidates: list[_Candidate] = []
            for program in programs:
                archive = archives.get(program)
                if archive is None:
                    yield Outcome(program)
                elif isinstance(archive, ArchiveError):
                    yield _refuse_entry(program, archive)
                else:
                    try:
                        contents = _load_contents(archive.files, _map_file)
                    except ArchiveError as error:
                        yield _refuse_entry(program, error)
                    else:
                        candidates.append(_Candidate(program, archive, contents))
            yield from self._accept_candidates(candidates)
        finally:
            for archive in archives.values():
                if isinstance(archive, Archive):
                    _remove_files(archive)

    def _accept_candidates(self, candidates: Sequence[_Candidate]) -> Iterator[Outcome]:
        """Check candidates and publish those that pass; compile a sample again first. Yield the
        outcome of each.

        A program whose lock another process holds is tried `_ATTEMPTS` times, with pauses.
        """
        include_digests: set[str] = set()
        for candidate in candidates:
            include_digests.update(candidate.directories[:_MAX_DIRECTORIES])
        self._receive_includes(include_digests)
        accepted: list[_Candidate] = []
        verified: set[str] = set()
        for candidate in candidates:
            outcome = self._check_candidate(candidate)
            if outcome is None and self._is_sample(candidate):
                outcome = self._compile_again(candidate)
                verified.add(candidate.program)
            # Include directories come before the program: no entry may name a missing one.
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
        # Another build compiles these: the engine waits for its locks, and finds the entries.
        yield from (Outcome(candidate.program) for candidate in accepted)

    def _receive_archives(
        self, key_of: Callable[[str], str], names: Collection[str]
    ) -> dict[str, Archive | ArchiveError]:
        """Fetch and unpack the archives of programs or include directories, whose keys `key_of`
        returns. Return each archive, or the error of one that cannot be unpacked, by name.

        A name that the remote does not have is left out. Raises `BrokenError`, `OSError`.
        """
        pending_names = {key_of(name): name for name in names}
        archives: dict[str, Archive | ArchiveError] = {}

        def take_archive(key: str, pieces: Iterable[bytes]) -> None:
            # A server may send a file twice.
            if key in pending_names:
                archives[pending_names[key]] = self._unpack_archive(pieces)
                # A request that is tried again asks only for what has not come.
                del pending_names[key]

        self._guard.call_request(
            lambda: self._backend.fetch_files(list(pending_names), take_archive)
        )
        return archives

    def _unpack_archive(self, pieces: Iterable[bytes]) -> Archive | ArchiveError:
        """Unpack an archive that arrives in pieces. Return the archive, or the error for a
        malformed one. Raises the exceptions of `pieces`."""
        # The directory is made for the first archive: a remote that has none makes none.
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
        before. Add an entry for each of these digests to `_includes`.

        The lock is held during the fetch, so that two threads do not fetch the same directory.
        """
        with self._includes_lock:
            absent = []
            for digest in digests:
                if digest in self._includes:
                    continue
                path = self._cache.include_path(digest)
                if is_include_whole(path, digest):
                    manifest = read_bytes(os.path.join(path, layout.MANIFEST))
                    self._includes[digest] = _Include(manifest, files=None)
                else:
                    absent.append(digest)
            archives = self._receive_archives(include_key, absent) if absent else {}
            for digest in absent:
                archive = archives.get(digest)
                if isinstance(archive, Archive):
                    self._includes[digest] = _check_include(digest, archive)
                else:
                    self._includes[digest] = archive

    def _check_candidate(self, candidate: _Candidate) -> Outcome | None:
        """Return the outcome of an entry that is refused, or misses an include directory; None for
        one that is right."""
        program, contents = candidate.program, candidate.contents
        manifests: dict[str, bytes] = {}
        is_incomplete = False
        for digest in candidate.directories[:_MAX_DIRECTORIES]:
            include = self._includes[digest]
            if isinstance(include, ArchiveError):
                return _refuse_entry(program, f"{layout.INCLUDE}/{digest}: {include}")
            if include is None:
                is_incomplete = True
            else:
                manifests[digest] = include.manifest
        # An entry without one of its directories is checked all the same: if something else is
        # wrong with it, it is refused by name, and not taken for a miss.
        checked_manifests = None if is_incomplete else manifests
        if problems := check_entry(program, contents, checked_manifests, origin=Origin.REMOTE):
            return _refuse_entry(program, problems[0])
        return Outcome(program, outdated=True) if is_incomplete else None

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
        except InputError as error:
            return Outcome(candidate.program, refused=f"{error.diagnostics[0].message:.500}")
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
                    self._includes[digest] = _Include(include.manifest, None)

    def _publish_candidates(
        self, candidates: Sequence[_Candidate], verified: Collection[str]
    ) -> tuple[list[Outcome], list[_Candidate]]:
        """Publish programs in the cache, all at once. Return their outcomes, and the candidates
        whose locks were taken: by another process, or by this one for a program with the same lock
        file. Raises `CacheError`."""
        outcomes: list[Outcome] = []
        locked: list[_Candidate] = []
        with ExitStack() as locks, EntryBatch(self._cache) as arrivals:
            for candidate in candidates:
                program, archive = candidate.program, candidate.archive
                if not locks.enter_context(self._store.lock_program(program, wait=False)):
                    locked.append(candidate)
                    continue
                # Another build may have published it while this one fetched.
                entry = self._store.find_entry(program)
                if entry is not None and entry.status in RECORDED:
                    outcomes.append(Outcome(program, make_answer(entry)))
                    continue
                files = {name: data for name, data in archive.files.items() if name != layout.META}
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
    # The text may have a name that the server chose, which must not control the terminal.
    text = "".join(letter if letter.isprintable() else "?" for letter in f"{problem!s:.500}")
    return Outcome(program, refused=text, outdated=True)


def _load_contents(
    files: Mapping[str, bytes | str], load_file: Callable[[str], Content]
) -> dict[str, Content]:
    """Return the contents of an archive's files by name: of texts as bytes, of other files that
    were written to the disk as `load_file` returns them for their paths. Raises `ArchiveError` for
    a text that is too large, and `OSError`."""
    contents: dict[str, Content] = {}
    for name, source in files.items():
        if isinstance(source, bytes):
            contents[name] = source
        elif name not in _TEXTS:
            contents[name] = load_file(source)
        elif os.path.getsize(source) > _MAX_TEXT:
            raise ArchiveError(f"{name} has more than {_MAX_TEXT >> 20} MiB")
        else:
            contents[name] = read_bytes(source)
    return contents


def _check_include(digest: str, archive: Archive) -> _Include | ArchiveError:
    """Return the include directory in an archive, or the error for one that is not right. It is
    hashed here, once, whichever programs name it."""
    try:
        # Headers are not mapped: each map holds a descriptor, and there may be thousands.
        contents = _load_contents(
            archive.files, lambda path: FileFacts(os.path.getsize(path), sha256_file(path))
        )
    except ArchiveError as error:
        return error
    if problems := check_directory(digest, contents):
        return ArchiveError(str(problems[0]))
    manifest = contents[layout.MANIFEST]
    assert isinstance(manifest, bytes)  # noqa: S101 - one of `_TEXTS`
    return _Include(manifest, {**archive.files, layout.MANIFEST: manifest})


def _map_file(path: str) -> bytes:
    """Map a file into memory. A `mmap` serves as `bytes` to the readers of binaries."""
    with open_file(path) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]


def _remove_files(archive: Archive) -> None:
    """Remove the files to which an archive was unpacked."""
    for source in archive.files.values():
        if isinstance(source, str):
            # The file of an accepted entry was moved into the cache, and `cache clear` may have
            # removed that of any entry.
            with suppress(FileNotFoundError):
                os.unlink(source)
