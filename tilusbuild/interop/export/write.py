"""The one writer of views: a folder appears whole, under its name, or not at all.

Files are hard links to the cache's, copies only where the file system refuses a link. A folder that
is there already is replaced only if a view was written there before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from tilusbuild.errors import InputError, TilusbuildError, input_error
from tilusbuild.interop.export.model import Item, Linked, Pointer, Written

MARK = ".tilusbuild-view"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    files: int
    linked: int
    """Files that take no room of their own."""
    copied: int
    """Bytes of those that do."""


class NotExported(TilusbuildError):  # noqa: N818 - named for what is the case
    """The view could not be written; nothing was left behind."""


def export(layout: str, items: Iterable[Item], folder: str) -> Exported:
    """Write a view, named by its layout. Raises `InputError`, `NotExported`."""
    folder = os.path.abspath(folder)
    _check(folder)
    try:
        above = os.path.dirname(folder)
        os.makedirs(above, exist_ok=True)
        made = tempfile.mkdtemp(prefix=f".{os.path.basename(folder)}-", dir=above)
    except OSError as error:
        raise NotExported(f"{folder} cannot be made: {error.strerror}") from None
    try:
        os.chmod(made, 0o755)  # noqa: S103 - as mkdir would; mkdtemp's is for one user
        exported = _write(made, [*items, Written(MARK, f"{layout}\n".encode())])
        _put(made, folder)
    except OSError as error:
        raise NotExported(f"{error.filename or folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return exported


def _check(folder: str) -> None:
    if os.path.exists(os.path.join(folder, MARK)):
        return
    try:
        taken = bool(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise input_error(f"{folder}: {error.strerror}") from None
    if taken:
        raise _taken(folder)


def _taken(folder: str) -> InputError:
    return input_error(
        f"{folder} holds something else", hint="name a folder that is new, empty, or a view"
    )


def _write(made: str, items: Iterable[Item]) -> Exported:
    files = linked = copied = 0
    for item in items:
        path = os.path.join(made, item.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files += 1
        if isinstance(item, Written):
            with open(path, "xb") as file:
                file.write(item.data)
            copied += len(item.data)
        elif isinstance(item, Pointer):
            os.symlink(item.target, path)
        elif _link(item, path):
            linked += 1
        else:
            copied += os.path.getsize(path)
    return Exported(files, linked, copied)


def _link(item: Linked, path: str) -> bool:
    """Whether a link could be made; else the file was copied."""
    try:
        os.link(item.source, path)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(item.source, path)
        return False
    return True


def _put(made: str, folder: str) -> None:
    """Rename into place; a view that was there goes when the new one stands."""
    old = tempfile.mkdtemp(prefix=f".{os.path.basename(folder)}-", dir=os.path.dirname(folder))
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        os.rename(made, folder)
    finally:
        shutil.rmtree(old, ignore_errors=True)
