"""Open a package in any format, and unpack some of its files to read them.

The format follows from the content, never from a name or suffix. `unpacked` gives a
temporary directory that is laid out like a cache. Its content is untrusted: every file has the
listed size and digest, and the runtime can read the scripts; nothing else was checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilusbuild.cache import layout
from tilusbuild.errors import input_error
from tilusbuild.package import names
from tilusbuild.package.check import Checker
from tilusbuild.package.errors import PackageError, no_package
from tilusbuild.package.extract import Limits, check_limits, members, write_member
from tilusbuild.package.formats import archive, oci, wheel
from tilusbuild.package.formats.archive import ArchiveReader
from tilusbuild.package.formats.directory import DirectoryReader
from tilusbuild.package.formats.kernels import is_kernels
from tilusbuild.package.formats.wheels import INSIDE
from tilusbuild.package.listing import FileList, parse
from tilusbuild.package.model import Reader
from tilusbuild.runtime.regular import open_file
from tilusbuild.state.temporary import TemporaryDirectory

_PICKLE = b"\x80"
_KNOWN = "a package is a directory, a .tar.zst, a wheel, or an OCI image layout"


@contextmanager
def opened(path: str) -> Iterator[Reader]:
    """Open the package at a path. Every `PackageError` of the block is raised
    with the path in its message.

    Raises `PackageError`, what opening the container raises, and `InputError` for a file that
    cannot be read."""
    try:
        reader = _reader(path)
        try:
            yield reader
        finally:
            reader.close()
    except PackageError as error:
        # In the block another package may be open, which has said already that it is the one.
        if not error.named and path not in str(error):
            error.args = (f"{path}: {error}",)
        error.named = True
        raise


def is_cache(path: str) -> bool:
    """Return whether a directory is a cache tree."""
    return os.path.isfile(os.path.join(path, layout.TAG)) and not _has(path, names.LIST)


def _reader(path: str) -> Reader:
    if os.path.isdir(path):
        return _of_directory(path)
    try:
        with open_file(path) as file:
            start = file.read(4)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise input_error(f"{path!r} cannot be read: {what}") from None
    if start == archive.MAGIC:
        return ArchiveReader(path)
    if start == wheel.MAGIC:
        return wheel.WheelReader(path)
    if start[:1] == _PICKLE:
        raise no_package("it looks like a pickle, and tilusbuild never unpickles", hint=_KNOWN)
    what = "text" if start and start.isascii() and start.decode().isprintable() else "another file"
    raise no_package(f"it is {what}, not an archive or a wheel", hint=_KNOWN)


def _of_directory(path: str) -> Reader:
    if _has(path, names.LIST):
        return DirectoryReader(path)
    if _has(path, oci.LAYOUT):
        return oci.OciReader(path)
    if is_kernels(path):
        raise no_package(f"it holds a package for each variant, in build/*/{INSIDE}")
    if is_cache(path):
        raise no_package("it is a cache tree, not a package", hint="`tilusbuild package` packs one")
    raise no_package(f"a directory without {names.LIST}", hint=_KNOWN)


def _has(path: str, name: str) -> bool:
    return os.path.lexists(os.path.join(path, name))


@contextmanager
def unpacked(
    path: str, choose: Callable[[FileList], set[str]], limits: Limits
) -> Iterator[tuple[FileList, str]]:
    """Unpack the paths that `choose` picks from the list, which is yielded with their directory;
    they are removed after the block.

    Raises `PackageError`s.
    """
    with (
        opened(path) as reader,
        TemporaryDirectory("package") as directory,
    ):
        listing = parse(reader.list_bytes())
        if listing.key is not None:
            raise no_package(f"it holds {listing.summary}, not programs of tilusbuild")
        check_limits(listing, reader, limits)
        chosen = choose(listing)
        checker = Checker(listing, directory.path)
        for member in members(reader, listing):
            if member.path not in chosen:
                continue
            if names.root_of(member.path)[0] == layout.SCRIPTS:
                checker.take(member, keep=True)
            else:
                for _ in write_member(member, directory.path):
                    pass
        checker.finish()
        yield listing, directory.path


def of_scripts(listing: FileList) -> set[str]:
    """Return what the runtime reads of scripts."""
    return {path for path in listing.files if names.root_of(path)[0] == layout.SCRIPTS}


def texts(listing: FileList) -> set[str]:
    """Return what people read: scripts, and what each program is made of."""
    wanted = (layout.PROGRAM_TXT, layout.OPTIONS_TXT)
    return of_scripts(listing) | {
        f"{layout.PROGRAMS}/{program}/{name}" for program in listing.programs for name in wanted
    }
