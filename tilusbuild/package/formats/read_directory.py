"""A package as a folder. Links are seen, and refused; nothing is opened but plain files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterator

from tilusbuild.package import names
from tilusbuild.package.errors import NoPackage, OverLimit, Truncated, UnsafeEntry
from tilusbuild.package.listing import MOST_BYTES, MOST_FILES
from tilusbuild.package.reader import LARGEST_BESIDE, Item

_MOST_ENTRIES = 2 * MOST_FILES


class DirectoryReader:
    """The package in the folder at `path`."""

    kind = "directory"
    packed: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    def list_bytes(self) -> bytes:
        return self._whole(names.LIST, MOST_BYTES)

    def attestations(self) -> dict[str, bytes]:
        return {
            name: self._whole(name, LARGEST_BESIDE)
            for name in names.BESIDE
            if os.path.lexists(os.path.join(self.path, name))
        }

    def stream(self, layers: int, skip: Container[int]) -> Iterator[Item]:
        for name in _files_below(self.path):
            if name == names.LIST or name in names.BESIDE:
                continue
            handle = open_plain(os.path.join(self.path, name), name)
            with os.fdopen(handle, "rb", buffering=0) as file:
                yield Item(name, os.fstat(handle).st_size, _reading(file.read, name))

    def close(self) -> None:
        return None

    def _whole(self, name: str, most: int) -> bytes:
        return read_plain(os.path.join(self.path, name), name, most)


def read_plain(path: str, name: str, most: int) -> bytes:
    """A plain file's content. Raises `NoPackage` when it is not there, `UnsafeEntry` for anything
    else than a file, `OverLimit` for more than `most` bytes, and `Truncated`."""
    handle = open_plain(path, name)
    with os.fdopen(handle, "rb", buffering=0) as file:
        if os.fstat(handle).st_size > most:
            raise OverLimit(f"{name} has more than {most} bytes")
        read = _reading(file.read, name)
        data = b"".join(iter(lambda: read(1 << 20), b""))
    if len(data) > most:
        raise OverLimit(f"{name} has more than {most} bytes")
    return data


def open_plain(path: str, name: str) -> int:
    """A handle for reading a plain file. Raises as `read_plain`."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeEntry(f"{name!r:.200} is {_what(found.st_mode)}, not a plain file")
        # Whoever swaps the file for a pipe or a link meanwhile gains nothing.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NoPackage(f"there is no {name}") from None
    except (OSError, ValueError) as error:
        raise Truncated(f"{name!r:.200} cannot be read: {error}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnsafeEntry(f"{name!r:.200} is not a plain file")
    return handle


def _reading(read: Callable[[int], bytes | None], name: str) -> Callable[[int], bytes]:
    """`read`, with our error for a disk's."""

    def reading(count: int) -> bytes:
        try:
            return read(count) or b""
        except OSError as error:
            raise Truncated(f"{name!r:.200} cannot be read: {error.strerror}") from None

    return reading


def _files_below(folder: str) -> Iterator[str]:
    """Relative names of all that is no folder, sorted folder by folder. Links are not followed."""
    waiting = [""]
    seen = 0
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, prefix)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise Truncated(f"{prefix or '.'!r} cannot be read: {error.strerror}") from None
        seen += len(entries)
        if seen > _MOST_ENTRIES:
            raise OverLimit(f"more than {_MOST_ENTRIES} names")
        folders = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        waiting += [f"{prefix}{name}/" for name in reversed(folders)]
        yield from (prefix + e.name for e in entries if not e.is_dir(follow_symlinks=False))


def _what(mode: int) -> str:
    kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    return next((words for test, words in kinds if test(mode)), "a device or a socket")
