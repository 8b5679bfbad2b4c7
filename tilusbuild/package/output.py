"""Putting carriers where they belong: whole or not at all, and never over what is not ours.

Everything is made in a folder of its own beside its place, and moved there when all of it is done.
A file is replaced by one rename; of a folder the old one is moved away first, so for an instant
there is none, but never a part of one. What was there stays unless it is a package of tilusbuild.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tilusbuild.errors import input_error
from tilusbuild.package import names
from tilusbuild.package.errors import CannotPack
from tilusbuild.package.formats.wheel_code import RUNTIME
from tilusbuild.state.files import sync_folder

_ZSTD = b"\x28\xb5\x2f\xfd"
_PREFIX = ".tmp-"
_ATTEMPTS = 100


@contextmanager
def staging(output: str) -> Iterator[str]:
    """A folder to make carriers in; gone afterwards. Raises `InputError` for a place that cannot
    be written, and `CannotPack` when the disk refuses."""
    try:
        os.makedirs(output, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=output)
    except OSError as error:
        raise input_error(f"--output {output}: {error.strerror}") from None
    try:
        yield folder
    except OSError as error:
        raise CannotPack(f"{error.filename or output}: {error.strerror}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_replaceable(output: str, made: Sequence[str]) -> None:
    """Raises `CannotPack` when one of these names is taken by something that is no package."""
    for name in made:
        path = os.path.join(output, name)
        if os.path.lexists(path) and not is_ours(path):
            raise CannotPack(
                f"{path} is there, and is no package of tilusbuild",
                hint="remove it, or name another folder with --output",
            )


def move(folder: str, output: str, made: Sequence[str]) -> None:
    """Move carriers from `folder` to their places. Of two who pack at once, the later stays. Raises
    `OSError`."""
    for name in made:
        for attempt in range(_ATTEMPTS):
            old = os.path.join(folder, f"{_PREFIX}old-{attempt}-{name}")
            if _put(os.path.join(folder, name), os.path.join(output, name), old):
                break
        else:
            raise OSError(errno.EBUSY, "others keep putting packages here", name)
    sync_folder(output)


def _put(made: str, place: str, old: str) -> bool:
    """Whether it could be moved; not when somebody else was quicker."""
    if os.path.isdir(place):
        with suppress(FileNotFoundError):
            os.rename(place, old)
    try:
        os.rename(made, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if os.path.isdir(old):
            os.rename(old, place)
        raise
    return True


def is_ours(path: str) -> bool:
    """Whether this looks like what a carrier makes. Links are not followed."""
    if os.path.islink(path):
        return False
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, names.LIST)) or _is_layout(path)
    with suppress(OSError, zipfile.BadZipFile):
        if path.endswith(".whl"):
            return _is_wheel(path)
        with open(path, "rb") as file:
            start = file.read(1 << 17)
        return start.startswith(_ZSTD) and _begins_with_list(start)
    return False


def _is_layout(path: str) -> bool:
    try:
        with open(os.path.join(path, "index.json"), "rb") as file:
            return b"application/vnd.tilusbuild.package" in file.read(1 << 20)
    except OSError:
        return False


def _is_wheel(path: str) -> bool:
    ours = re.compile(rf"\w+/(tilus/{re.escape(names.LIST)}|{RUNTIME}/loading\.py)")
    with zipfile.ZipFile(path) as archive:
        return any(ours.fullmatch(name) for name in archive.namelist())


def _begins_with_list(start: bytes) -> bool:
    import zstandard

    try:
        stream = zstandard.ZstdDecompressor().stream_reader(start)
        return stream.read(len(names.LIST) + 1) == names.LIST.encode() + b"\0"
    except zstandard.ZstdError:
        return False
