"""Digests of files and directories, and answers of programs, remembered so nothing is read twice.

A remembered digest is used only when the stamps (`tilusbuild.state.stamp`) are what they were and
were old enough to be trusted when it was made. The memory is the file `digests` among the state of
a cache; one that is old or damaged costs time only, and nothing is written when nothing was
learned, so that a build with nothing to do stays silent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from tilusbuild.state.clock import FileClock, Moment
from tilusbuild.state.directories import is_trouble
from tilusbuild.state.envelope import StateFile
from tilusbuild.state.files import hasher, sha256_bytes, sha256_file
from tilusbuild.state.stamp import ABSENT, Sighting, Stamp, all_settled, sighting, stamp


class Digests(Protocol):
    """What a fingerprint asks: `DigestMemory`, or what takes note of the questions."""

    def digest(self, path: str) -> str: ...
    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str: ...


class Sight(Struct, frozen=True):
    """What a digest was taken of: a file, or the selected files of a tree and their directories."""

    key: str
    path: str
    stamp: str
    select: Callable[[str], bool] | None = None
    directories: Mapping[str, Stamp] = field(default_factory=dict)
    size: int = 1

    def __len__(self) -> int:
        return self.size

    def holds(self) -> bool:
        """Return whether all of it has its stamps."""
        files = [("", self.path)]
        try:
            if self.select is not None:
                files = sorted(walk(self.path, self.select))
            return _stamp_of(files, _sighted(files)) == self.stamp
        except OSError:
            return False


class DigestMemory:
    """Digests by stamp, kept in the file `digests` of `state_dir`, a cache's directory for state;
    with None they last as long as the process. Safe for threads; `save` writes what is new.

    Keys of answers are the caller's; an answer holds as long as its key.
    """

    def __init__(
        self, state_dir: str | None = None, now: Callable[[], Moment] | None = None
    ) -> None:
        """`now` is that of a `FileClock`."""
        self._log = StateFile(state_dir, "digests")
        self._now = now or FileClock(state_dir).recent
        self._guard = threading.Lock()
        self._sightings: dict[str, Sighting] = {}

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content. Raises `OSError`."""
        return self.sight(path)[0]

    def sight(self, path: str) -> tuple[str, Sight]:
        """As `digest`, with what it was taken of."""
        path = os.path.abspath(path)
        key = f"files:{path}"
        with self._guard:
            try:
                digest, stamp = self._remembered(key, [("", path)], lambda: sha256_file(path))
            except OSError:
                self._note({path: Sighting(ABSENT, -1)})
                raise
        return digest, Sight(key, path, stamp)

    def look(self, path: str) -> Stamp:
        """Return the stamp of what is at a path, which counts as consulted from now on."""
        found = sighting(path)
        with self._guard:
            self._note({os.path.abspath(path): found})
        return found.stamp

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """Return one digest of the files under `root` whose relative name is selected: of their
        names and contents. Raises `OSError`.

        A directory's name ends with a slash: one that is not selected is not entered. `label`
        stands for `select`: the same label means the same selection. The digest of no file is that
        of an empty text.
        """
        return self.sight_of_tree(root, label, select)[0]

    def sight_of_tree(
        self, root: str, label: str, select: Callable[[str], bool]
    ) -> tuple[str, Sight]:
        """As `tree`, with what the digest was taken of."""
        root = os.path.abspath(root)
        key = f"trees:{label}\n{root}"
        entered: dict[str, Stamp] = {}

        def note(seen: Mapping[str, Sighting]) -> None:
            self._note(seen)
            entered.update({path: each.stamp for path, each in seen.items()})

        with self._guard:
            self._note({root: sighting(root)})
            files = sorted(walk(root, select, note))
            digest, stamp = self._remembered(key, files, lambda: _digest_of(files))
        return digest, Sight(key, root, stamp, select, entered, len(files))

    def _remembered(
        self, key: str, files: Sequence[tuple[str, str]], digest_now: Callable[[], str]
    ) -> tuple[str, str]:
        """Return a digest, and the stamp of what it was taken of."""
        seen = _sighted(files)
        self._note(seen)
        found = _stamp_of(files, seen)
        known = self._log.get(key)
        if isinstance(known, list) and len(known) == 2 and known[0] == found:
            return str(known[1]), found
        moment = self._now()
        digest = digest_now()
        # Otherwise it changed while it was read, or may change and keep its stamp.
        if _stamp_of(files, _sighted(files)) == found and all_settled(seen.values(), moment):
            self._log.put(key, [found, digest])
        return digest, found

    def _note(self, seen: Mapping[str, Sighting]) -> None:
        """Keep what was seen before it was read: of several times, the first."""
        for path, each in seen.items():
            self._sightings.setdefault(path, each)

    def recall(self, key: str) -> str | None:
        """Return the text recorded under `key`, or None."""
        with self._guard:
            text = self._log.get(f"answers:{key}")
        return text if isinstance(text, str) else None

    def record(self, key: str, text: str) -> None:
        """Remember a text that `key` determines."""
        with self._guard:
            if self._log.get(f"answers:{key}") != text:
                self._log.put(f"answers:{key}", text)

    def consulted(self) -> dict[str, Sighting]:
        """Return every file whose digest was asked for in this process, and every directory below
        the root of a tree, as it was before it was first read: as long as all of them are still so,
        all answers would be the same."""
        with self._guard:
            return dict(self._sightings)

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        with self._guard:
            self._log.save(keep=_is_of_something)


def _is_of_something(key: str) -> bool:
    """Return whether a record's file or directory exists; a tree's key ends with its root."""
    kind, _, name = key.partition(":")
    return kind == "answers" or os.path.exists(name.rpartition("\n")[2])


def walk(
    root: str,
    select: Callable[[str], bool],
    note: Callable[[Mapping[str, Sighting]], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yield the selected files under `root`, links followed: the name relative to it, and the path;
    in no order. `note` gets each directory as it was before it was read.

    Raises `OSError` for a directory that cannot be read just now: a digest without what is in it
    would be that of other tools.
    """
    seen: set[tuple[int, int]] = set()
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:
                continue  # a link to a directory that was walked already, maybe its own parent
            seen.add((status.st_dev, status.st_ino))
            note({directory: Sighting(stamp(status), status.st_dev)})
            entries = list(os.scandir(directory))
        except OSError as error:
            if is_trouble(error, directory):
                raise
            continue
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir():
                if select(f"{name}/"):
                    pending.append((f"{name}/", entry.path))
            # A link to nothing is not there for a compiler either.
            elif select(name) and entry.is_file():
                yield name, entry.path


def _sighted(files: Sequence[tuple[str, str]]) -> dict[str, Sighting]:
    """Return files as they are, by path. Raises `OSError`."""
    statuses = ((path, os.stat(path)) for _, path in files)
    return {path: Sighting(stamp(status), status.st_dev) for path, status in statuses}


def _stamp_of(files: Sequence[tuple[str, str]], seen: Mapping[str, Sighting]) -> str:
    """Return the stamps of files as one text."""
    stamps = [(name, *seen[path].stamp) for name, path in files]
    lines = [f"{size} {mtime} {ctime} {inode} {name}" for name, size, mtime, ctime, inode in stamps]
    if len(files) == 1 and not files[0][0]:
        return lines[0].rstrip()
    return sha256_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))


def _digest_of(files: list[tuple[str, str]]) -> str:
    combined = hasher()
    for name, path in files:
        combined.update(f"{sha256_file(path)}  {name}\n".encode("utf-8", "surrogateescape"))
    return combined.hexdigest()
