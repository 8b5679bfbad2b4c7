"""Digests of files and folders, and answers of programs, remembered so that nothing is read twice.

A remembered digest is used only when size, mtime, ctime and inode are what they were, and when it
was made clearly after the last change: a file that changes again within the file system's tick
keeps its time stamps. `StatMemory` lives in memory; its `state` can be kept between runs, and any
state, however old or damaged, costs time only.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tilusbuild.state.hashing import sha256_file

TICK_NS = 2_000_000_000
"""The coarsest time stamp of a file system in use (FAT, some network ones): two seconds."""


class DigestMemory(Protocol):
    """What remembers. Keys of answers are the asker's; an answer holds as long as its key."""

    def digest(self, path: str) -> str:
        """The sha256 of a file's content. Raises `OSError`."""
        ...

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """One digest of the files under `root` whose relative name is selected: names and content.

        A folder's name ends with a slash: one that is not selected is not entered. `label` stands
        for `select`: the same label means the same selection. The digest of no file is that of an
        empty text. Raises `OSError`.
        """
        ...

    def recall(self, key: str) -> str | None:
        """A text recorded under `key`, or None."""
        ...

    def record(self, key: str, text: str) -> None:
        """Remember a text that `key` determines."""
        ...


class Record(NamedTuple):
    """A digest and the evidence that it still holds. `at` and `newest` are in ns since 1970."""

    stamp: str
    newest: int
    at: int
    digest: str

    def holds(self, stamp: str) -> bool:
        return self.stamp == stamp and self.at > self.newest + TICK_NS


@dataclass(slots=True)
class StatMemory:
    """A `DigestMemory` by stat. Not to be shared by threads that write."""

    files: dict[str, Record] = field(default_factory=dict)
    trees: dict[str, Record] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    now: Callable[[], int] = time.time_ns

    def digest(self, path: str) -> str:
        path = os.path.abspath(path)
        stamp, newest = _stamp(os.stat(path))
        known = self.files.get(path)
        if known is not None and known.holds(stamp):
            return known.digest
        at = self.now()
        digest = sha256_file(path)
        if _stamp(os.stat(path))[0] == stamp:
            self.files[path] = Record(stamp, newest, at, digest)
        return digest

    def tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        root = os.path.abspath(root)
        files = sorted(walk(root, select))
        stamp, newest = _summary(files)
        key = f"{label}\n{root}"
        known = self.trees.get(key)
        if known is not None and known.holds(stamp):
            return known.digest
        at = self.now()
        hasher = hashlib.sha256()
        for name, path in files:
            hasher.update(f"{sha256_file(path)}  {name}\n".encode("utf-8", "surrogateescape"))
        digest = hasher.hexdigest()
        if _summary(files)[0] == stamp:
            self.trees[key] = Record(stamp, newest, at, digest)
        return digest

    def recall(self, key: str) -> str | None:
        return self.answers.get(key)

    def record(self, key: str, text: str) -> None:
        self.answers[key] = text

    def state(self) -> dict[str, Any]:
        """All that is remembered, as plain values (JSON can hold it)."""
        return {
            "files": {path: list(record) for path, record in self.files.items()},
            "trees": {key: list(record) for key, record in self.trees.items()},
            "answers": dict(self.answers),
        }

    @classmethod
    def from_state(cls, state: object) -> StatMemory:
        """What `state` gave, or an empty memory when it is anything else."""
        memory = cls()
        if isinstance(state, dict):
            memory.files.update(_records(state.get("files")))
            memory.trees.update(_records(state.get("trees")))
            answers = state.get("answers")
            if isinstance(answers, dict):
                memory.answers.update(
                    (k, v) for k, v in answers.items() if isinstance(k, str) and isinstance(v, str)
                )
        return memory


def walk(root: str, select: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """The selected files under `root`, links followed: (name relative to it, path), in no order."""
    seen: set[tuple[int, int]] = set()
    pending = [("", root)]
    while pending:
        prefix, folder = pending.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                continue  # a link to a folder that was walked already, maybe its own parent
            seen.add((status.st_dev, status.st_ino))
            entries = list(os.scandir(folder))
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


def _stamp(status: os.stat_result) -> tuple[str, int]:
    parts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return " ".join(map(str, parts)), max(status.st_mtime_ns, status.st_ctime_ns)


def _summary(files: list[tuple[str, str]]) -> tuple[str, int]:
    hasher, newest = hashlib.sha256(), 0
    for name, path in files:
        stamp, changed = _stamp(os.stat(path))
        hasher.update(f"{stamp} {name}\n".encode("utf-8", "surrogateescape"))
        newest = max(newest, changed)
    return hasher.hexdigest(), newest


def _records(table: object) -> Iterator[tuple[str, Record]]:
    if not isinstance(table, dict):
        return
    for key, row in table.items():
        kinds = [str, int, int, str]
        if isinstance(key, str) and isinstance(row, list) and [type(v) for v in row] == kinds:
            yield key, Record(*row)
