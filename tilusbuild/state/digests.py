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
from tilusbuild.state.directories import is_machine_error
from tilusbuild.state.envelope import StateFile
from tilusbuild.state.files import make_hasher, sha256_bytes, sha256_file
from tilusbuild.state.stamp import (
    ABSENT,
    DeviceStamp,
    Stamp,
    are_settled,
    make_stamp,
    read_device_stamp,
)


class Digests(Protocol):
    """What a fingerprint asks: `DigestMemory`, or what takes note of the questions."""

    def digest(self, path: str) -> str: ...
    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str: ...


class DigestSource(Struct, frozen=True):
    """What a digest was taken of: a file, or the selected files of a tree and their directories."""

    key: str
    path: str
    stamp: str
    select: Callable[[str], bool] | None = None
    directories: Mapping[str, Stamp] = field(default_factory=dict)
    size: int = 1

    def __len__(self) -> int:
        return self.size

    def is_unchanged(self) -> bool:
        """Return whether all of it has its stamps."""
        files = [("", self.path)]
        try:
            if self.select is not None:
                files = sorted(walk_files(self.path, self.select))
            return _format_stamps(files, _stat_files(files)) == self.stamp
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
        self._inputs: dict[str, DeviceStamp] = {}

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content. Raises `OSError`."""
        return self.digest_with_source(path)[0]

    def digest_with_source(self, path: str) -> tuple[str, DigestSource]:
        """As `digest`, with what it was taken of."""
        path = os.path.abspath(path)
        key = f"files:{path}"
        with self._guard:
            try:
                digest, stamp = self._find_or_digest(key, [("", path)], lambda: sha256_file(path))
            except OSError:
                self._note_inputs({path: DeviceStamp(ABSENT, -1)})
                raise
        return digest, DigestSource(key, path, stamp)

    def stat_input(self, path: str) -> Stamp:
        """Return the stamp of what is at a path, which counts as consulted from now on."""
        stamped = read_device_stamp(path)
        with self._guard:
            self._note_inputs({os.path.abspath(path): stamped})
        return stamped.stamp

    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """Return one digest of the files under `root` whose relative name is selected: of their
        names and contents. Raises `OSError`.

        A directory's name ends with a slash: one that is not selected is not entered. `label`
        stands for `select`: the same label means the same selection. The digest of no file is that
        of an empty text.
        """
        return self.digest_tree_with_source(root, label, select)[0]

    def digest_tree_with_source(
        self, root: str, label: str, select: Callable[[str], bool]
    ) -> tuple[str, DigestSource]:
        """As `tree`, with what the digest was taken of."""
        root = os.path.abspath(root)
        key = f"trees:{label}\n{root}"
        entered: dict[str, Stamp] = {}

        def note_directories(stamps: Mapping[str, DeviceStamp]) -> None:
            self._note_inputs(stamps)
            entered.update({path: each.stamp for path, each in stamps.items()})

        with self._guard:
            self._note_inputs({root: read_device_stamp(root)})
            files = sorted(walk_files(root, select, note_directories))
            digest, stamp = self._find_or_digest(key, files, lambda: _digest_files(files))
        return digest, DigestSource(key, root, stamp, select, entered, len(files))

    def _find_or_digest(
        self, key: str, files: Sequence[tuple[str, str]], digest_now: Callable[[], str]
    ) -> tuple[str, str]:
        """Return a digest, and the stamp of what it was taken of."""
        stamps = _stat_files(files)
        self._note_inputs(stamps)
        stamp_text = _format_stamps(files, stamps)
        record = self._log.get_value(key)
        if isinstance(record, list) and len(record) == 2 and record[0] == stamp_text:
            return str(record[1]), stamp_text
        moment = self._now()
        digest = digest_now()
        # Otherwise it changed while it was read, or may change and keep its stamp.
        if _format_stamps(files, _stat_files(files)) == stamp_text and are_settled(
            stamps.values(), moment
        ):
            self._log.put_value(key, [stamp_text, digest])
        return digest, stamp_text

    def _note_inputs(self, stamps: Mapping[str, DeviceStamp]) -> None:
        """Keep what was seen before it was read: of several times, the first."""
        for path, each in stamps.items():
            self._inputs.setdefault(path, each)

    def get_answer(self, key: str) -> str | None:
        """Return the text recorded under `key`, or None."""
        with self._guard:
            text = self._log.get_value(f"answers:{key}")
        return text if isinstance(text, str) else None

    def put_answer(self, key: str, text: str) -> None:
        """Remember a text that `key` determines."""
        with self._guard:
            if self._log.get_value(f"answers:{key}") != text:
                self._log.put_value(f"answers:{key}", text)

    def list_inputs(self) -> dict[str, DeviceStamp]:
        """Return every file whose digest was asked for in this process, and every directory below
        the root of a tree, as it was before it was first read: as long as all of them are still so,
        all answers would be the same."""
        with self._guard:
            return dict(self._inputs)

    def save_records(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        with self._guard:
            self._log.save_records(keep=_exists_still)


def _exists_still(key: str) -> bool:
    """Return whether a record's file or directory exists; a tree's key ends with its root."""
    kind, _, name = key.partition(":")
    return kind == "answers" or os.path.exists(name.rpartition("\n")[2])


def walk_files(
    root: str,
    select: Callable[[str], bool],
    note_directories: Callable[[Mapping[str, DeviceStamp]], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yield the selected files under `root`, links followed: the name relative to it, and the path;
    in no order. `note` gets each directory as it was before it was read.

    Raises `OSError` for a directory that cannot be read just now: a digest without what is in it
    would be that of other tools.
    """
    visited: set[tuple[int, int]] = set()
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in visited:
                continue  # a link to a directory that was walked already, maybe its own parent
            visited.add((status.st_dev, status.st_ino))
            note_directories({directory: DeviceStamp(make_stamp(status), status.st_dev)})
            entries = list(os.scandir(directory))
        except OSError as error:
            if is_machine_error(error, directory):
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


def _stat_files(files: Sequence[tuple[str, str]]) -> dict[str, DeviceStamp]:
    """Return files as they are, by path. Raises `OSError`."""
    statuses = ((path, os.stat(path)) for _, path in files)
    return {path: DeviceStamp(make_stamp(status), status.st_dev) for path, status in statuses}


def _format_stamps(
    files: Sequence[tuple[str, str]], stamps_by_path: Mapping[str, DeviceStamp]
) -> str:
    """Return the stamps of files as one text."""
    stamps = [(name, *stamps_by_path[path].stamp) for name, path in files]
    lines = [f"{size} {mtime} {ctime} {inode} {name}" for name, size, mtime, ctime, inode in stamps]
    if len(files) == 1 and not files[0][0]:
        return lines[0].rstrip()
    return sha256_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))


def _digest_files(files: list[tuple[str, str]]) -> str:
    combined = make_hasher()
    for name, path in files:
        combined.update(f"{sha256_file(path)}  {name}\n".encode("utf-8", "surrogateescape"))
    return combined.hexdigest()
