"""Digests of files and directories, and answers of programs, remembered so nothing is read twice.

A remembered digest is used only when the stamps (`tilusbuild.state.stamp`) are what they were and
were old enough to be trusted when it was made. The memory is the log `digests` among the state of a
cache; a log that is old or damaged costs time only, and nothing is written when nothing was
learned, so that a build with nothing to do stays silent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tilusbuild.state.files import hasher, sha256_file
from tilusbuild.state.log import StateFile
from tilusbuild.state.stamp import is_settled, stamp


class Record(NamedTuple):
    """A digest and the evidence that it still holds. `at` and `newest` are in ns since 1970."""

    stamp: str
    newest: int
    at: int
    digest: str

    @classmethod
    def of(cls, row: Any) -> Record | None:
        """Return a row of the log, or None when it has another shape."""
        if isinstance(row, list) and [type(value) for value in row] == [str, int, int, str]:
            return cls(*row)
        return None

    def holds(self, stamp: str) -> bool:
        """Return whether the digest is that of the files that have this stamp now."""
        return self.stamp == stamp and is_settled(self.newest, self.at)


class DigestMemory:
    """Digests by stamp, kept in the file `digests` of `state_dir`, a cache's directory for state;
    with None they last as long as the process. Safe for threads; `save` writes what is new.

    Keys of answers are the caller's; an answer holds as long as its key.
    """

    def __init__(self, state_dir: str | None = None, now: Callable[[], int] = time.time_ns) -> None:
        path = os.path.join(state_dir, "digests") if state_dir is not None else None
        self._log = StateFile(path, "digests")
        self._now = now
        self._guard = threading.Lock()
        self._files: set[str] = set()
        self._trees: dict[tuple[str, str], Callable[[str], bool]] = {}

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content. Raises `OSError`."""
        path = os.path.abspath(path)
        with self._guard:
            self._files.add(path)
            return self._remembered(
                f"files:{path}", lambda: _stamp_of_file(path), lambda: sha256_file(path)
            )

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """Return one digest of the files under `root` whose relative name is selected: of their
        names and contents. Raises `OSError`.

        A directory's name ends with a slash: one that is not selected is not entered. `label`
        stands for `select`: the same label means the same selection. The digest of no file is that
        of an empty text.
        """
        root = os.path.abspath(root)
        with self._guard:
            self._trees[root, label] = select
            files = sorted(walk(root, select))
            return self._remembered(
                f"trees:{label}\n{root}", lambda: _stamp_of_files(files), lambda: _digest_of(files)
            )

    def _remembered(
        self, key: str, stamp_now: Callable[[], tuple[str, int]], digest_now: Callable[[], str]
    ) -> str:
        found, newest = stamp_now()
        known = Record.of(self._log.get(key))
        if known is not None and known.holds(found):
            return known.digest
        at = self._now()
        digest = digest_now()
        if stamp_now()[0] == found:  # otherwise it changed while it was read
            self._log.put(key, list(Record(found, newest, at, digest)))
        return digest

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

    def consulted(self) -> set[str]:
        """Return every file whose digest was asked for in this process, and every directory below
        the root of a tree: as long as none of them changes, all answers would be the same."""
        with self._guard:
            found = set(self._files)
            for (root, _), select in self._trees.items():
                found.add(root)
                for _, path in walk(root, select):
                    found.update((path, os.path.dirname(path)))
            return found

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        with self._guard:
            self._log.save(keep=_is_of_something)


def _is_of_something(key: str) -> bool:
    """Return whether a record's file or directory exists; a tree's key ends with its root."""
    kind, _, name = key.partition(":")
    return kind == "answers" or os.path.exists(name.rpartition("\n")[2])


def walk(root: str, select: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield the selected files under `root`, links followed: the name relative to it, and the path;
    in no order."""
    seen: set[tuple[int, int]] = set()
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:
                continue  # a link to a directory that was walked already, maybe its own parent
            seen.add((status.st_dev, status.st_ino))
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir():
                if select(f"{name}/"):
                    pending.append((f"{name}/", entry.path))
            # A link to nothing is not there for a compiler either.
            elif select(name) and entry.is_file():
                yield name, entry.path


def _stamp_of_file(path: str) -> tuple[str, int]:
    """Return a file's stamp as text, and when it last changed. Raises `OSError`."""
    found = stamp(os.stat(path))
    return " ".join(map(str, found)), found.newest


def _stamp_of_files(files: list[tuple[str, str]]) -> tuple[str, int]:
    combined, newest = hasher(), 0
    for name, path in files:
        found, changed = _stamp_of_file(path)
        combined.update(f"{found} {name}\n".encode("utf-8", "surrogateescape"))
        newest = max(newest, changed)
    return combined.hexdigest(), newest


def _digest_of(files: list[tuple[str, str]]) -> str:
    combined = hasher()
    for name, path in files:
        combined.update(f"{sha256_file(path)}  {name}\n".encode("utf-8", "surrogateescape"))
    return combined.hexdigest()
