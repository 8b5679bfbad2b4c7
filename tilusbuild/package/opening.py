"""What a path is, by what is in it: names and endings say nothing about a package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tilusbuild.cache import layout
from tilusbuild.errors import input_error
from tilusbuild.package import names
from tilusbuild.package.errors import NoPackage, PackageError
from tilusbuild.package.formats import frames, read_wheel
from tilusbuild.package.reader import Reader

_PICKLE = b"\x80"
_KNOWN = "a package is a folder, a .tar.zst, a wheel, or an OCI image layout"


@contextmanager
def opened(path: str) -> Iterator[Reader]:
    """The package at a path. Every `PackageError` of the block is told with the path.

    Raises `NoPackage`, what opening the container raises, and `InputError` for a file that cannot
    be read.
    """
    try:
        reader = _reader(path)
        try:
            yield reader
        finally:
            reader.close()
    except PackageError as error:
        if path not in str(error):
            error.args = (f"{path}: {error}",)
        raise


def is_cache(path: str) -> bool:
    """Whether a folder is a cache tree."""
    return os.path.isfile(os.path.join(path, layout.TAG)) and not _has(path, names.LIST)


def _reader(path: str) -> Reader:
    if os.path.isdir(path):
        return _of_folder(path)
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise input_error(f"{path!r} cannot be read: {what}") from None
    if start == frames.MAGIC:
        from tilusbuild.package.formats.read_archive import ArchiveReader

        return ArchiveReader(path)
    if start == read_wheel.MAGIC:
        return read_wheel.WheelReader(path)
    if start[:1] == _PICKLE:
        raise NoPackage("it looks like a pickle, and nothing is ever unpickled", hint=_KNOWN)
    raise NoPackage(f"a file that begins with {start!r}", hint=_KNOWN)


def _of_folder(path: str) -> Reader:
    if _has(path, names.LIST):
        from tilusbuild.package.formats.read_directory import DirectoryReader

        return DirectoryReader(path)
    if _has(path, "oci-layout"):
        from tilusbuild.package.formats.read_oci import OciReader

        return OciReader(path)
    if is_cache(path):
        raise NoPackage("it is a cache tree, not a package", hint="`tilusbuild package` packs one")
    raise NoPackage(f"a folder without {names.LIST}", hint=_KNOWN)


def _has(path: str, name: str) -> bool:
    return os.path.lexists(os.path.join(path, name))
