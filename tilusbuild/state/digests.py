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

from tilusbuild.state.clock import FileClock, FileTime
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
    """The questions of a fingerprint: answered by `DigestMemory`, or recorded by
    `toolchain.probe.Evidence`."""

    def digest_file(self, path: str) -> str: ...
    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str: ...


class DigestSource(Struct, frozen=True):
    """The files that a digest was taken of: one file, or the selected files of a tree with their
    directories."""

    key: str
    path: str
    stamp: str
    select: Callable[[str], bool] | None = None
    directories: Mapping[str, Stamp] = field(default_factory=dict)
    size: int = 1

    def __len__(self) -> int:
        return self.size

    def is_unchanged(self) -> bool:
        """Return whether the same files are selected, and have the stamps that they had."""
        files = [("", self.path)]
        try:
            if self.select is not None:
                files = sorted(walk_files(self.path, self.select))
            return _format_stamps(files, _stat_files(files)) == self.stamp
        except OSError:
            return False


class DigestMemory:
    """Digests by stamp, kept in the file `digests` of `state_dir`, a cache's directory for state;
    with None in memory only. Safe for threads. `save_records` writes the new ones.

    It also keeps texts by keys of the caller's; such an answer holds as long as its key.
    """

    def __init__(
        self, state_dir: str | None = None, now: Callable[[], FileTime] | None = None
    ) -> None:
        """`now` returns an instant, as `FileClock.read_recent_time` does."""
        self._log = StateFile(state_dir, "digests")
        self._now = now or FileClock(state_dir).read_recent_time
        self._guard = threading.Lock()
        self._inputs: dict[str, DeviceStamp] = {}

    def digest_file(self, path: str) -> str:
        """Return the sha256 of a file's content. Raises `OSError`."""
        return self.digest_with_source(path)[0]

    def digest_with_source(self, path: str) -> tuple[str, DigestSource]:
        """Return the sha256 of a file's content, and the file with its stamp. Raises `OSError`."""
        path = os.path.abspath(path)
        key = f"files:{path}"
        with self._guard:
            try:
                digest, stamp = self._find_or_digest(key, [("", path)], lambda: sha256_file(path))
            except OSError:
                # A missing file is an input, too: it may appear before the next build.
                self._note_inputs({path: DeviceStamp(ABSENT, -1)})
                raise
        return digest, DigestSource(key, path, stamp)

    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """Return one digest of the names and contents of the selected files under `root`. Raise
        `OSError`.

        `select` gets each relative name; a directory's name ends with a slash, and a directory that
        is not selected is not entered. `label` identifies the selection in the memory. The digest
        of no file is that of an empty text.
        """
        return self.digest_tree_with_source(root, label, select)[0]

    def digest_tree_with_source(
        self, root: str, label: str, select: Callable[[str], bool]
    ) -> tuple[str, DigestSource]:
        """Return the digest of `digest_tree`, and the files with their stamps. Raises `OSError`."""
        root = os.path.abspath(root)
        key = f"trees:{label}\n{root}"
        directories: dict[str, Stamp] = {}

        def note_directories(stamps: Mapping[str, DeviceStamp]) -> None:
            self._note_inputs(stamps)
            directories.update({path: stamp for path, (stamp, _) in stamps.items()})

        with self._guard:
            self._note_inputs({root: read_device_stamp(root)})
            files = sorted(walk_files(root, select, note_directories))
            digest, stamp = self._find_or_digest(key, files, lambda: _digest_files(files))
        return digest, DigestSource(key, root, stamp, select, directories, len(files))

    def _find_or_digest(
        self, key: str, files: Sequence[tuple[str, str]], digest_now: Callable[[], str]
    ) -> tuple[str, str]:
        """Return the digest in memory if the files still have its stamps, else that of
        `digest_now`; and the stamps as text. `files` are (relative name, path).

        The files are added to the inputs. A new digest is remembered only if no file changed
        meanwhile or could change under its stamp. Raises `OSError`.
        """
        stamps = _stat_files(files)
        self._note_inputs(stamps)
        stamp_text = _format_stamps(files, stamps)
        record = self._log.get_value(key)
        if isinstance(record, list) and len(record) == 2:
            recorded_stamps, recorded_digest = record
            if recorded_stamps == stamp_text:
                return str(recorded_digest), stamp_text
        # The clock is read before the files: a file that is edited meanwhile is younger than
        # `moment`, and so not settled.
        moment = self._now()
        digest = digest_now()
        is_unchanged = _format_stamps(files, _stat_files(files)) == stamp_text
        # A file that is not settled may still change and keep its stamp.
        if is_unchanged and are_settled(stamps.values(), moment):
            self._log.put_value(key, [stamp_text, digest])
        return digest, stamp_text

    def _note_inputs(self, stamps: Mapping[str, DeviceStamp]) -> None:
        """Add inputs with the stamps that they had before they were read. The first stamp of a path
        stays."""
        for path, stamp in stamps.items():
            self._inputs.setdefault(path, stamp)

    def has_file(self, path: str) -> bool:
        """Return whether a path exists. It becomes an input, present or not."""
        stamp = read_device_stamp(path)
        with self._guard:
            self._note_inputs({path: stamp})
        return stamp.stamp != ABSENT

    def get_answer(self, key: str) -> str | None:
        """Return the text that was recorded under `key`; None without one."""
        with self._guard:
            text = self._log.get_value(f"answers:{key}")
        return text if isinstance(text, str) else None

    def put_answer(self, key: str, text: str) -> None:
        """Remember a text that `key` determines."""
        with self._guard:
            if self._log.get_value(f"answers:{key}") != text:
                self._log.put_value(f"answers:{key}", text)

    def list_inputs(self) -> dict[str, DeviceStamp]:
        """Return each file and each directory of a tree that was read in this process, with the
        stamp that it had before. While all stamps are equal, all answers are."""
        with self._guard:
            return dict(self._inputs)

    def save_records(self) -> None:
        """Write the new records to the state file; do nothing when it cannot be written."""
        with self._guard:
            self._log.save_records(keep=_exists_still)


def _exists_still(key: str) -> bool:
    """Return whether the file or directory of a record exists. A tree's key ends with its root."""
    kind, _, name = key.partition(":")
    return kind == "answers" or os.path.exists(name.rpartition("\n")[2])


def walk_files(
    root: str,
    select: Callable[[str], bool],
    note_directories: Callable[[Mapping[str, DeviceStamp]], None] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yield (relative name, path) of the selected files under `root`, links followed, in no order.
    `note_directories` gets each directory with the stamp that it had before it was read.

    Raises `OSError` for a directory that the machine cannot read just now: without its files the
    digest would be that of other tools.
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
            continue  # it vanished, or a compiler may not read it either
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir():
                if select(f"{name}/"):
                    pending.append((f"{name}/", entry.path))
            elif select(name) and entry.is_file():  # false for a link to nothing
                yield name, entry.path


def _stat_files(files: Sequence[tuple[str, str]]) -> dict[str, DeviceStamp]:
    """Return the stamps of files by path. Raises `OSError`."""
    statuses = ((path, os.stat(path)) for _, path in files)
    return {path: DeviceStamp(make_stamp(status), status.st_dev) for path, status in statuses}


def _format_stamps(
    files: Sequence[tuple[str, str]], stamps_by_path: Mapping[str, DeviceStamp]
) -> str:
    """Return the stamps of files as one text."""
    lines = []
    for name, path in files:
        size, mtime, ctime, inode = stamps_by_path[path].stamp
        lines.append(f"{size} {mtime} {ctime} {inode} {name}")
    # The stamp of one file is returned as it is. Those of a tree, perhaps of thousands of files,
    # are returned as one digest, so that the memory stays small.
    if len(files) == 1 and not files[0][0]:
        return lines[0].rstrip()
    return sha256_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))


def _digest_files(files: list[tuple[str, str]]) -> str:
    """Return the sha256 of `sha256sum`'s output for these (name, path) files. Raises `OSError`."""
    output_hasher = make_hasher()
    for name, path in files:
        line = f"{sha256_file(path)}  {name}\n"
        output_hasher.update(line.encode("utf-8", "surrogateescape"))
    return output_hasher.hexdigest()
