"""A wheel as it is read: a zip file with the package in `<import name>/tilus`, and what pip needs.

Names in two spellings are refused,
and entries that are not deflated: other methods may ask for gigabytes of memory. An
import runs a wheel's code, and pip believes its metadata; both follow from the list, so
`check_wheel` makes them again from it and compares. Nothing beside the package is read that is not
of the size that it should have.

Zip says every fact twice, in an entry's own header and in the directory at the end, and readers
differ in which they believe; between entries, behind their data and in extra fields there is room
for what only some of them see. So the two must agree in every field, entries must follow each other
without a gap from the first byte to the directory, an entry's data must end where it says and be
what its size and CRC say, and nothing may be in extra fields but the sizes of large files.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import IO

from tilusbuild._version import __version__
from tilusbuild.package import names
from tilusbuild.package.errors import (
    inconsistent,
    no_package,
    over_limit,
    truncated,
    unlisted,
    unsafe_entry,
)
from tilusbuild.package.formats.directory import open_plain
from tilusbuild.package.formats.wheels import (
    INSIDE,
    RUNTIME,
    distribution,
    last_line,
    members,
    record_line,
)
from tilusbuild.package.listing import MAX_FILES, MAX_LIST_SIZE, FileList
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, ContainerFile
from tilusbuild.state.files import sha256_bytes

MAGIC = b"PK\x03\x04"
_LIST = re.compile(rf"(\w+)/{INSIDE}/{re.escape(names.LIST)}")
_DIST_INFO = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
_END = struct.Struct("<4s4H2LH")
_LOCATOR_SIZE, _END64_SIZE = 20, 56
_MAX_ENTRIES = MAX_FILES + 100
_MAX_DIRECTORY_SIZE = 32 << 20
"""Bytes of a zip's directory, of 200,000 files. In memory it takes ten times that."""
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
)
"""What zipfile raises for a corrupt file."""


class WheelReader:
    """The package in the file at `path`. Raises `PackageError`s."""

    kind = "wheel"

    def __init__(self, path: str) -> None:
        handle = open_plain(path, os.path.basename(path))
        self._file: IO[bytes] = os.fdopen(handle, "rb")
        try:
            size = os.fstat(handle).st_size
            self.packed: int | None = size
            count = _check_directory(self._file, size)
            with _as_truncated("the wheel"):
                self._zip = zipfile.ZipFile(self._file)
            self._entries = _checked(self._zip.infolist())
            if len(self._entries) != count:
                raise truncated(f"the wheel has {len(self._entries)} entries and says {count}")
            _check_headers(self._file, self._entries.values(), self._zip.start_dir)
            self.module = _module(self._entries)
        except BaseException:
            self._file.close()
            raise
        self._prefix = f"{self.module}/{INSIDE}/"

    def list_bytes(self) -> bytes:
        return self._content(self._prefix + names.LIST, MAX_LIST_SIZE)

    def attestations(self) -> dict[str, bytes]:
        present = [name for name in names.BESIDE if self._prefix + name in self._entries]
        return {name: self._content(self._prefix + name, MAX_ATTESTATION_SIZE) for name in present}

    def others(self) -> dict[str, int]:
        """Return the sizes of what is beside the package: the module's code, and what pip reads."""
        found = self._entries.items()
        return {n: info.file_size for n, info in found if not n.startswith(self._prefix)}

    def holds(self, name: str, data: bytes) -> bool:
        """Return whether an entry has these bytes. One of another size is not read."""
        if self._entries[name].file_size != len(data):
            return False
        return self._content(name, len(data)) == data

    def heads(self) -> dict[str, bytes]:
        """Return the list and the attestations, by name, in the order that they have here."""
        found = {names.LIST: self.list_bytes(), **self.attestations()}
        present = (n.removeprefix(self._prefix) for n in self._entries)
        return {name: found[name] for name in present if name in found}

    def stream(self) -> Iterator[ContainerFile]:
        for name in self._entries:
            path = name.removeprefix(self._prefix)
            if path == name:
                self.check_other(name)
            elif path != names.LIST and path not in names.BESIDE:
                yield self._entry(name)._replace(path=path)

    def close(self) -> None:
        self._zip.close()
        self._file.close()

    def check_other(self, name: str) -> None:
        """Raise `PackageError` for a file that is neither the module's code nor pip's."""
        directory, _, file = name.rpartition("/")
        of_pip = directory.endswith(".dist-info") and "/" not in directory and file in _DIST_INFO
        code = directory in (self.module, f"{self.module}/{RUNTIME}") and file.endswith(".py")
        if not of_pip and not code:
            raise unlisted(f"{name!r:.200} is in the wheel, and not listed")

    def _content(self, name: str, limit: int) -> bytes:
        if name not in self._entries:
            raise no_package(f"there is no {name}")
        return self._entry(name).content(limit)

    def _entry(self, name: str) -> ContainerFile:
        info = self._entries[name]
        return ContainerFile(name, info.file_size, _open_entry(self._file, info))


@contextmanager
def _as_truncated(what: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise truncated(f"{what} is corrupt: {error}") from None


def _check_directory(file: IO[bytes], size: int) -> int:
    """Check the size of the zip's directory before zipfile reads it whole, and that it comes right
    before the end: bytes in between would be in no entry and in no digest. Returns how many entries
    it says it has."""
    file.seek(max(0, size - _END.size - _LOCATOR_SIZE))
    locator, end = file.read(_LOCATOR_SIZE), file.read(_END.size)
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        raise truncated("the wheel is truncated, or bytes follow its end")
    *_, count, length, offset, comment = _END.unpack(end)
    if comment:
        raise truncated("the wheel holds bytes that belong to no entry")
    at = size - _END.size
    if locator.startswith(b"PK\x06\x07"):
        at -= _LOCATOR_SIZE + _END64_SIZE
        file.seek(max(0, at))
        end64 = file.read(_END64_SIZE)
        if at < 0 or not end64.startswith(b"PK\x06\x06"):
            raise truncated("the wheel's directory is corrupt")
        count, length, offset = struct.unpack_from("<QQQ", end64, 32)
    if length > _MAX_DIRECTORY_SIZE:
        raise over_limit(f"the wheel's directory has {length} bytes")
    if offset + length != at:
        raise truncated("the wheel holds bytes that belong to no entry")
    return int(count)


_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def _checked(infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by name, in the order of their bytes."""
    if len(infos) > _MAX_ENTRIES:
        raise over_limit(f"the wheel has {len(infos)} entries")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in sorted(infos, key=lambda each: each.header_offset):
        name = info.orig_filename
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or name.endswith("/"):
            what = "a link" if kind == stat.S_IFLNK else "not a plain file"
            raise unsafe_entry(f"{name!r:.200} is {what}")
        if info.external_attr >> 16 & _SPECIAL:
            raise unsafe_entry(f"{name!r:.200} has a setuid, setgid or sticky bit")
        # LZMA allocates the dictionary that the entry asks for; an encrypted entry asks a password.
        if info.compress_type != zipfile.ZIP_DEFLATED or info.flag_bits & 1:
            raise unsafe_entry(f"{name!r:.200} is packed or encrypted in a way that is not read")
        # zipfile cuts a name at a null byte, and takes a Unicode name from an extra field; others
        # do not, and would unpack the file elsewhere.
        if name != info.filename:
            raise unsafe_entry(f"{name!r:.200} has a second name")
        if name in found:
            raise unlisted(f"{name!r:.200} appears twice")
        found[name] = info
    return found


def _module(entries: dict[str, zipfile.ZipInfo]) -> str:
    lists = [match[1] for name in entries if (match := _LIST.fullmatch(name))]
    if len(lists) != 1:
        raise no_package(f"the wheel holds {len(lists) or 'no'} packages of kernels")
    return lists[0]


# What is beside the package.


def not_vouched_for(reader: object, listing: FileList) -> str | None:
    """Check a wheel's own code, where the package in it is about to be used by itself; returns what
    cannot be vouched for, in words: the code of another version. None where nothing is left, and
    for other formats. Raises as `check_wheel`."""
    if not isinstance(reader, WheelReader):
        return None
    if listing.tool != __version__:
        return (
            f"the wheel's own code, which `pip install` would run, was not looked at: it is of"
            f" tilusbuild {listing.tool}, and this is {__version__}"
        )
    check_wheel(reader, listing)
    return None


def check_wheel(reader: WheelReader, listing: FileList) -> None:
    """Compare the wheel's code, metadata and record with what this version writes for the list.

    Raises `PackageError`, and what reading raises.
    """
    # The code is a copy of a version's own runtime, so no other version can make it again.
    if listing.tool != __version__:
        raise inconsistent(
            f"tilusbuild {listing.tool} made the wheel's own code; this is {__version__}",
            hint="verify it with that version, or take another format",
        )
    found = reader.others()
    for name in found:
        reader.check_other(name)
    expected = _others(reader, listing)
    different = (expected.keys() - found.keys()) | {
        name for name in found if name not in expected or not reader.holds(name, expected[name])
    }
    if different:
        first = min(different, key=lambda name: (name.endswith("/RECORD"), name))
        raise inconsistent(f"{first} is not what a wheel of this package has")


def _others(reader: WheelReader, listing: FileList) -> dict[str, bytes]:
    """Return every file beside the package, the record among them. Raises `PackageError`."""
    found, lines, wheel = {}, [], distribution(listing)
    for name, content in members(listing, reader.heads()):
        if isinstance(content, str):
            size, digest = listing.files[content].size, listing.files[content].sha256
        else:
            size, digest = len(content), sha256_bytes(content)
            if not name.startswith(f"{wheel.module}/{INSIDE}/"):
                found[name] = content
        lines.append(record_line(name, digest, size))
    record = f"{wheel.dist_info}/RECORD"
    found[record] = "".join([*lines, last_line(record)]).encode()
    return found


# The zip.


_UTF8 = 0x800
"""The one flag that an entry may have: its name is not ASCII."""
_PIECE = 1 << 16


def _header(info: zipfile.ZipInfo) -> bytes:
    """Return the header that we write of an entry."""
    made = copy(info)
    made.extra = b""
    return made.FileHeader()


def _check_headers(file: IO[bytes], infos: Iterable[zipfile.ZipInfo], directory: int) -> None:
    """Compare the header of each entry with the directory, which begins at `directory`; `infos` are
    in the order of their bytes. Raises `PackageError`."""
    end = 0
    for info in infos:
        name = f"{info.orig_filename!r:.200}"
        if info.header_offset != end:
            raise truncated(f"{name}: the bytes before it belong to no entry")
        header = _header(info)
        file.seek(end)
        agrees = file.read(len(header)) == header and _is_large_only(info.extra)
        flags = 0 if info.orig_filename.isascii() else _UTF8
        if not agrees or info.flag_bits != flags or info.comment:
            raise truncated(f"{name}: its header and the directory disagree")
        end += len(header) + info.compress_size
    if end != directory:
        raise truncated("bytes before the zip's directory belong to no entry")


def _is_large_only(extra: bytes) -> bool:
    """Return whether a directory's extra field holds sizes of a large file alone, or nothing."""
    if len(extra) < 4:
        return not extra
    return struct.unpack("<2H", extra[:4]) == (1, len(extra) - 4)


def _open_entry(file: IO[bytes], info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of an entry whose header was checked. Raises `PackageError` as soon as the
    data is not all of what the sizes and the CRC say."""
    name = f"{info.orig_filename!r:.200}"
    at = info.header_offset + len(_header(info))
    packed, left, crc, rest = info.compress_size, info.file_size, 0, b""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    with _as_truncated(f"{name} in the wheel"):
        while not inflate.eof:
            if not rest:
                file.seek(at)  # whoever takes the pieces may read another entry in between
                rest = file.read(min(_PIECE, packed))
                at, packed = at + len(rest), packed - len(rest)
            data = inflate.decompress(rest, _PIECE)
            left, crc = left - len(data), zlib.crc32(data, crc)
            if left < 0:
                raise truncated(f"{name} holds more than it says")
            if not (rest or data or inflate.eof):
                break
            rest = inflate.unconsumed_tail
            yield data
        if left or not inflate.eof:
            raise truncated(f"{name} holds less than it says")
        if inflate.unused_data or packed:
            raise truncated(f"{name}: bytes follow its data")
        if crc != info.CRC:
            raise truncated(f"{name} is not what its CRC says")
