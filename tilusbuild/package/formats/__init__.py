"""The formats of packages, by name: the core's two, and those that optional rooms bring.

A format's module is imported when a package is written in it, or when a path is read that no format
before it recognizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from tilusbuild.package.listing import FileList
from tilusbuild.package.model import Reader
from tilusbuild.rooms import find_contributions, import_value

_POINT = "package format"


class PackageFormat(Struct, frozen=True, kw_only=True):
    """A format of packages: how its container is named, written, recognized and read."""

    title: str
    """The container in a sentence, such as "a .tar.zst"."""
    file_name: Callable[[str, FileList], str]
    """From "NAME-VERSION" and the list to the name of the file or directory. Raises
    `PackageError`."""
    write: Callable[..., None]
    """Write a `Contents` at a path that does not exist; the keyword `time` is every file's, in
    seconds since 1970. Raises `PackageError` and `OSError`."""
    recognize: Callable[[str, bytes], bool]
    """Return whether a path is in this format, from the first 4 bytes of a file, or b"" for a
    directory. Raises nothing."""
    read: Callable[[str], Reader]
    """Open the package at a path. Raises `PackageError`."""
    is_readable: bool = True
    """Whether `read` returns a reader. For a format that is only written, `read` raises a
    `PackageError` that names what to read instead."""
    holds_kinds: bool = True
    """Whether a package of another kind than programs (`names.py`) can be written in it."""


def load_format(name: str) -> PackageFormat:
    """Return the format with a name that the manifest's `formats` takes."""
    container: PackageFormat = import_value(find_contributions(_POINT)[name])
    return container


def load_formats() -> Iterator[PackageFormat]:
    """Yield every format, the core's first."""
    return map(load_format, find_contributions(_POINT))


def recognize_format(path: str, start: bytes) -> PackageFormat | None:
    """Return the format that a path is in; None for no package in a known format. `start`: the
    first 4 bytes of a file, b"" for a directory."""
    # The formats of rooms come last: for a path in one of the core's they are not even imported.
    return next((form for form in load_formats() if form.recognize(path, start)), None)
