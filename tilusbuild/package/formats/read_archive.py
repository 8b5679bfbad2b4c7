"""A package as a `.tar.zst`: the list in the first frame, a frame for each layer, then the end.

The frames are counted when the file is opened, so one that was not downloaded to its end is refused
at once, and a layer that nobody needs is passed over without being unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator

from tilusbuild.package import names
from tilusbuild.package.errors import FileUnlisted, NoPackage, OverLimit, Truncated
from tilusbuild.package.formats.frames import Frame, Section, Unpacked, frames
from tilusbuild.package.formats.read_directory import open_plain
from tilusbuild.package.formats.tar import entries
from tilusbuild.package.listing import MOST_BYTES
from tilusbuild.package.reader import LARGEST_BESIDE, Item

_MOST_FRAMES = 100_000


class ArchiveReader:
    """The package in the file at `path`. Raises as `frames`, and `NoPackage`."""

    kind = "archive"

    def __init__(self, path: str) -> None:
        self._handle = open_plain(path, os.path.basename(path))
        try:
            self.packed: int | None = os.fstat(self._handle).st_size
            self._frames = frames(self._handle, os.fstat(self._handle).st_size, _MOST_FRAMES)
            self._first = self._read_first()
        except BaseException:
            self.close()
            raise

    def list_bytes(self) -> bytes:
        return self._first[names.LIST]

    def attestations(self) -> dict[str, bytes]:
        return {name: data for name, data in self._first.items() if name != names.LIST}

    def stream(self, layers: int, skip: Container[int]) -> Iterator[Item]:
        if len(self._frames) != layers + 2:
            there = max(0, len(self._frames) - 2)
            raise Truncated(f"it has {there} layers, and its list makes {layers}")
        for number, frame in enumerate(self._frames[1:-1]):
            if number not in skip:
                yield from entries(self._unpacked(frame), ends=False)
        yield from entries(self._unpacked(self._frames[-1]), ends=True)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _unpacked(self, frame: Frame) -> Unpacked:
        return Unpacked(Section(self._handle, frame.offset, frame.size))

    def _read_first(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if not self._frames:
            raise Truncated("it is empty")
        for item in entries(self._unpacked(self._frames[0]), ends=False):
            if not found and item.path != names.LIST:
                raise NoPackage(f"its first file is {item.path!r:.100}, not {names.LIST}")
            if found and item.path not in names.BESIDE:
                raise FileUnlisted(f"{item.path!r:.200} stands beside {names.LIST}")
            if item.path in found:
                raise FileUnlisted(f"{item.path} is there twice")
            most = LARGEST_BESIDE if found else MOST_BYTES
            if item.size > most:
                raise OverLimit(f"{item.path} has {item.size} bytes; at most {most} are read")
            found[item.path] = b"".join(iter(lambda: item.read(1 << 20), b""))  # noqa: B023
        if not found:
            raise NoPackage(f"it does not begin with {names.LIST}")
        return found
