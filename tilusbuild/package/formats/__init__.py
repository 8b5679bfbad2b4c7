"""The formats of packages, by name: the core's three, and those that optional rooms bring.

A format's module is imported when a package is written in it, or when a path is read that no format
before it recognizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilusbuild.package.model import PackageFormat
from tilusbuild.rooms import brought, load

_POINT = "package format"


def load_format(name: str) -> PackageFormat:
    """Return the format with a name that the manifest's `formats` takes."""
    found: PackageFormat = load(brought(_POINT)[name])
    return found


def load_formats() -> Iterator[PackageFormat]:
    """Yield every format, the core's first."""
    return map(load_format, brought(_POINT))


def recognize_format(path: str, start: bytes) -> PackageFormat | None:
    """Return the format that a path is in; None for no package in a known format. `start`: the
    first 4 bytes of a file, b"" for a directory."""
    return next((each for each in load_formats() if each.recognize(path, start)), None)
