"""A package as a wheel: a zip file with the package in `<import name>/tilus`, and what pip needs.

Zip says everything twice, and readers differ in which they believe; whatever does not agree with
itself is refused: names in two spellings, entries that overlap, bytes that belong to none. Only
stored and deflated entries are read: other methods may ask for gigabytes of memory.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import IO

from tilusbuild.package import names
from tilusbuild.package.errors import FileUnlisted, NoPackage, OverLimit, Truncated, UnsafeEntry
from tilusbuild.package.formats.read_directory import open_plain
from tilusbuild.package.formats.wheel_code import INSIDE, RUNTIME
from tilusbuild.package.listing import MOST_BYTES, MOST_FILES
from tilusbuild.package.reader import LARGEST_BESIDE, Item

MAGIC = b"PK\x03\x04"
_LIST = re.compile(rf"(\w+)/{INSIDE}/{re.escape(names.LIST)}")
_DIST_INFO = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END = struct.Struct("<4s4H2LH")
_LOCATOR_SIZE, _END64_SIZE = 20, 56
_MOST_ENTRIES = MOST_FILES + 100
_LARGEST_DIRECTORY = 32 << 20
"""Bytes of a zip's directory, of 200,000 files. In memory it takes ten times that."""
_LARGEST_OTHER = 64 << 20
_MOST_OTHERS = 200


class WheelReader:
    """The package in the file at `path`. Raises `PackageError`s."""

    kind = "wheel"

    def __init__(self, path: str) -> None:
        handle = open_plain(path, os.path.basename(path))
        self._file: IO[bytes] = os.fdopen(handle, "rb")
        try:
            self.packed: int | None = os.fstat(handle).st_size
            _check_directory(self._file, os.fstat(handle).st_size)
            self._zip = _opened(self._file)
            self._entries = _checked(self._zip.infolist())
            self.module = _module(self._entries)
        except BaseException:
            self._file.close()
            raise
        self._prefix = f"{self.module}/{INSIDE}/"

    def list_bytes(self) -> bytes:
        return self._whole(self._prefix + names.LIST, MOST_BYTES)

    def attestations(self) -> dict[str, bytes]:
        there = [name for name in names.BESIDE if self._prefix + name in self._entries]
        return {name: self._whole(self._prefix + name, LARGEST_BESIDE) for name in there}

    def others(self) -> dict[str, bytes]:
        """What is beside the package: the module's code, and what pip reads."""
        strangers = [name for name in self._entries if not name.startswith(self._prefix)]
        if len(strangers) > _MOST_OTHERS:
            raise OverLimit(f"the wheel has {len(strangers)} files beside the package")
        return {name: self._whole(name, _LARGEST_OTHER) for name in strangers}

    def stream(self, layers: int, skip: Container[int]) -> Iterator[Item]:
        for name, info in self._entries.items():
            path = name.removeprefix(self._prefix)
            if path == name:
                self._check_stranger(name)
            elif path != names.LIST and path not in names.BESIDE:
                with _entry(self._zip, info) as read:
                    yield Item(path, info.file_size, read)

    def close(self) -> None:
        self._zip.close()
        self._file.close()

    def _check_stranger(self, name: str) -> None:
        folder, _, file = name.rpartition("/")
        of_pip = folder.endswith(".dist-info") and "/" not in folder and file in _DIST_INFO
        code = folder in (self.module, f"{self.module}/{RUNTIME}") and file.endswith(".py")
        if not of_pip and not code:
            raise FileUnlisted(f"{name!r:.200} is in the wheel, and not listed")

    def _whole(self, name: str, most: int) -> bytes:
        info = self._entries.get(name)
        if info is None:
            raise NoPackage(f"there is no {name}")
        if info.file_size > most:
            raise OverLimit(f"{name} has {info.file_size} bytes; at most {most} are read")
        with _entry(self._zip, info) as read:
            return b"".join(iter(lambda: read(1 << 20), b""))


_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
)


@contextmanager
def _entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[Callable[[int], bytes]]:
    """What reads an entry, with our error for zipfile's."""

    def read(count: int) -> bytes:
        try:
            return member.read(count)
        except _BROKEN as error:
            raise _damaged(info, error) from None

    try:
        member = archive.open(info)
    except _BROKEN as error:
        raise _damaged(info, error) from None
    with member:
        yield read


def _damaged(info: zipfile.ZipInfo, error: Exception) -> Truncated:
    return Truncated(f"{info.filename!r:.200} in the wheel is damaged: {error}")


def _check_directory(file: IO[bytes], size: int) -> None:
    """The directory is read whole, so its size is looked at before; and nothing but entries stands
    before it."""
    file.seek(max(0, size - _END.size - _LOCATOR_SIZE))
    locator, end = file.read(_LOCATOR_SIZE), file.read(_END.size)
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        raise Truncated("the wheel is cut short, or bytes follow its end")
    *_, length, offset, comment = _END.unpack(end)
    if locator.startswith(b"PK\x06\x07"):
        _check_directory64(file, size)
    elif comment or offset + length != size - _END.size:
        raise Truncated("the wheel holds bytes that belong to no entry")
    elif length > _LARGEST_DIRECTORY:
        raise OverLimit(f"the wheel's directory has {length} bytes")


def _check_directory64(file: IO[bytes], size: int) -> None:
    after = size - _END.size - _LOCATOR_SIZE - _END64_SIZE
    file.seek(max(0, after))
    end = file.read(_END64_SIZE)
    if after < 0 or not end.startswith(b"PK\x06\x06"):
        raise Truncated("the wheel's directory is damaged")
    length, offset = struct.unpack_from("<QQ", end, 40)
    if length > _LARGEST_DIRECTORY:
        raise OverLimit(f"the wheel's directory has {length} bytes")
    if offset + length != after:
        raise Truncated("the wheel holds bytes that belong to no entry")


def _opened(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except _BROKEN as error:
        raise Truncated(f"the wheel is damaged: {error}") from None


def _checked(infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    if len(infos) > _MOST_ENTRIES:
        raise OverLimit(f"the wheel has {len(infos)} entries")
    found: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for info in sorted(infos, key=lambda each: each.header_offset):
        name = info.orig_filename
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or name.endswith("/"):
            what = "a link" if kind == stat.S_IFLNK else "no plain file"
            raise UnsafeEntry(f"{name!r:.200} is {what}")
        if info.compress_type not in _METHODS or info.flag_bits & 1:
            raise UnsafeEntry(f"{name!r:.200} is packed or encrypted in a way that is not read")
        if name != info.filename:
            raise UnsafeEntry(f"{name!r:.200} has a second name")
        if name in found:
            raise FileUnlisted(f"{name!r:.200} is there twice")
        if info.header_offset < end or (not found and info.header_offset):
            raise Truncated(f"{name!r:.200} overlaps another entry, or bytes stand before it")
        end = info.header_offset + 30 + len(name) + info.compress_size
        found[name] = info
    return found


def _module(entries: dict[str, zipfile.ZipInfo]) -> str:
    lists = [match[1] for name in entries if (match := _LIST.fullmatch(name))]
    if len(lists) != 1:
        raise NoPackage(f"the wheel holds {len(lists) or 'no'} packages of kernels")
    return lists[0]
