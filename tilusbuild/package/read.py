"""Open a package in any format, and unpack some of its files to read them.

The format follows from the content, never from a name or suffix. `unpack_package` yields a
temporary directory in the form of a cache. It is untrusted: every file has the listed size and
digest, and the scripts can be read by the runtime; no more was checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tilusbuild.cache import layout
from tilusbuild.errors import InputError, input_error
from tilusbuild.package import names
from tilusbuild.package.check import PackageChecker
from tilusbuild.package.errors import PackageError, no_package
from tilusbuild.package.extract import (
    Limits,
    check_limits,
    check_members,
    read_to_end,
    write_member,
)
from tilusbuild.package.formats import PackageFormat, load_formats, recognize_format
from tilusbuild.package.formats.directory import holds_list
from tilusbuild.package.listing import FileList, parse_list
from tilusbuild.package.model import Reader
from tilusbuild.runtime.regular import open_file
from tilusbuild.state.temporary import TemporaryDirectory

_PICKLE = b"\x80"
"""The first byte of a pickle."""


@contextmanager
def open_package(path: str) -> Iterator[Reader]:
    """Yield a reader of the package at a path, and close it after the block. Each `PackageError` of
    the block gets the path into its message, unless it names one.

    Raises `PackageError`, and `InputError` for a file that cannot be read.
    """
    try:
        reader = _open_reader(path)
        try:
            yield reader
        finally:
            reader.close()
    except PackageError as error:
        # An error of another package, opened in the block, names that one already.
        if not error.named and f"{path}:" not in str(error):
            error.args = (f"{path}: {error}",)
        error.named = True
        raise


def is_cache(path: str) -> bool:
    """Return whether a directory is a cache tree."""
    return os.path.isfile(os.path.join(path, layout.TAG)) and not holds_list(path)


def find_format(path: str) -> PackageFormat | None:
    """Return the format that a path is in; None for no package in a known format. Raises
    `InputError` for a file that cannot be read."""
    return recognize_format(path, _read_start(path))


def _open_reader(path: str) -> Reader:
    """Return the reader of the package at a path. Raises `InputError` for a file that cannot be
    read, and a `PackageError` that says what the path holds instead of a package."""
    start = _read_start(path)
    container = recognize_format(path, start)
    if container is not None:
        return container.read(path)
    titles = [known_format.title for known_format in load_formats() if known_format.is_readable]
    hint = f"a package is {', '.join(titles[:-1])} or {titles[-1]}"
    if os.path.isdir(path):
        if is_cache(path):
            hint = "`tilusbuild package` packs one"
            raise no_package("it is a cache tree, not a package", hint=hint)
        if packages := _list_packages(path):
            hint = f"it has packages: {', '.join(packages)}"
        raise no_package(f"a directory without {names.LIST}", hint=hint)
    if start[:1] == _PICKLE:
        raise no_package("it looks like a pickle, and tilusbuild never unpickles", hint=hint)
    is_text = start and start.isascii() and start.decode().isprintable()
    kind = "text" if is_text else "another file"
    raise no_package(f"it is {kind}, not an archive", hint=hint)


def _list_packages(directory: str) -> list[str]:
    """Return the paths of the packages in a directory, without files that cannot be read."""
    packages = []
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            with suppress(InputError):
                container = find_format(path)
                packages += [path] if container is not None and container.is_readable else []
    return packages


def _read_start(path: str) -> bytes:
    """Return the first 4 bytes of a file; b"" for a directory. Raises `InputError`."""
    try:
        if os.path.isdir(path):
            os.stat(os.path.join(path, os.curdir))  # raises if it may not be searched
            return b""
        with open_file(path) as file:
            return file.read(4)
    except FileNotFoundError:
        hint = "a package is named by its path; `tilusbuild package` packs one"
        raise input_error(f"there is no package {path!r}", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise input_error(f"{path!r} cannot be read: {reason}") from None


@contextmanager
def unpack_package(
    path: str, choose: Callable[[FileList], set[str]], limits: Limits
) -> Iterator[tuple[FileList, str]]:
    """Unpack the paths that `choose` returns for the list, and check the scripts among them. Yield
    the list and the directory, which is removed after the block. Raises `PackageError`.
    """
    with open_package(path) as reader, TemporaryDirectory("package") as directory:
        listing = parse_list(reader.list_bytes())
        if listing.key is not None:
            raise no_package(f"it holds {listing.summary}, not programs of tilusbuild")
        check_limits(listing, reader, limits)
        chosen = choose(listing)
        checker = PackageChecker(listing, directory.path)
        for member in check_members(reader, listing):
            if member.path not in chosen:
                continue
            # Programs are not checked: some of their files may not be among the chosen.
            read_to_end(write_member(member, directory.path))
        checker.check_scripts()
        yield listing, directory.path


def select_script_files(listing: FileList) -> set[str]:
    """Return the paths of all files of scripts."""
    return {path for path in listing.files if names.split_root(path)[0] == layout.SCRIPTS}


def select_first_libraries(listing: FileList) -> set[str]:
    """Return the paths of all files of scripts, and of the library of each one's first program."""
    first_programs = {program for entry in listing.scripts for program in entry.programs[:1]}
    return select_script_files(listing) | {
        f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}" for program in first_programs
    }


def select_texts(listing: FileList) -> set[str]:
    """Return the paths of all files of scripts, and of the two texts of each program."""
    programs = (f"{layout.PROGRAMS}/{program}" for program in listing.programs)
    texts = {f"{program}/{name}" for program in programs for name in layout.TEXTS}
    return select_script_files(listing) | texts
