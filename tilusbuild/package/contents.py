"""What goes into a package: its list, and where the bytes of each file come from.

Bytes are read when a carrier asks for them, and only handed out if they are those of the list: a
cache that changes while it is packed ends in `CannotPack`, never in a package that does not verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilusbuild.package.errors import CannotPack
from tilusbuild.package.listing import FileEntry, FileList
from tilusbuild.state.hashing import sha256_bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """A package to carry. `encoded` is the list's text; `origins` has each listed file's bytes, or
    the path to read them from; `beside` the attestations about the list, by their names."""

    listed: FileList
    encoded: bytes
    origins: Mapping[str, bytes | str]
    beside: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The sha256 of the list."""
        return sha256_bytes(self.encoded)

    def read(self, path: str) -> bytes:
        """A listed file's bytes. Raises `CannotPack` when they are not those listed."""
        origin = self.origins[path]
        data = origin if isinstance(origin, bytes) else read_file(origin)
        if FileEntry(len(data), sha256_bytes(data)) != self.listed.files[path]:
            raise CannotPack(f"{path} changed while it was packed", hint="pack again")
        return data


def read_file(path: str) -> bytes:
    """A file of the cache. Raises `CannotPack`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CannotPack(f"{path} cannot be read: {error.strerror}") from None
