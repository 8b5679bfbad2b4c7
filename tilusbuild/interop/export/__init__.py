"""Export the scripts of a cache in the directory layout of Tilus or Hidet, as hard links.

Files are hard links to the cache's, copies only where the file system refuses a link; nothing in
the cache is changed. The directory of an export appears whole, under its name, or not at all, and
replaces only an earlier export, into which nothing was added, or an empty directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping

from tilusbuild.cache.layout import list_files_below
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.interop.export.layouts import (
    ExportedScript,
    ExportItem,
    lay_out_for_hidet,
    lay_out_for_tilus,
)
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import replace_directory
from tilusbuild.state.temporary import TemporaryDirectory

LAYOUTS: Mapping[str, Callable[[Iterable[ExportedScript]], Iterator[ExportItem]]] = {
    "tilus": lay_out_for_tilus,
    "hidet": lay_out_for_hidet,
}
MARK = ".tilusbuild-view"
"""The file by which an earlier export is recognised: its layout, and its files, one a line."""


def export_scripts(
    layout: str, scripts: Iterable[ExportedScript], directory: str
) -> tuple[int, int, int]:
    """Write scripts in one of `LAYOUTS` to `directory`, in place of an earlier export. Return the
    number of files, the number of hard links among them, and the bytes of the others. Raises
    `InputError` and `TilusbuildError`; then `directory` is unchanged."""
    directory = os.path.realpath(directory)
    _check_replaceable(directory)
    parent = os.path.dirname(directory)
    try:
        os.makedirs(parent, exist_ok=True)
        with TemporaryDirectory("export", parent) as private:
            return _export_into(layout, scripts, directory, private.path)
    except OSError as error:
        raise TilusbuildError(f"{error.filename or directory}: {error.strerror}") from None


def _export_into(
    layout: str, scripts: Iterable[ExportedScript], directory: str, private: str
) -> tuple[int, int, int]:
    """Write the export into a private directory, and rename it to `directory`. Return the counts as
    `export_scripts`."""
    staged, aside = os.path.join(private, "new"), os.path.join(private, "old")
    os.mkdir(staged)
    os.mkdir(aside)
    os.chmod(staged, 0o755)  # noqa: S103 - whatever the umask: other users read exports, too
    items = list(LAYOUTS[layout](scripts))
    mark = "\n".join([layout, *sorted(item.path for item in items), ""])
    # Paths come from names of files, which may be any bytes.
    items.append(ExportItem(MARK, mark.encode("utf-8", "surrogateescape")))
    exported = _write_items(staged, items)
    replace_directory(staged, directory, aside)
    return exported


def _check_replaceable(directory: str) -> None:
    """Raise `InputError` for a directory with a file that its mark, the list of an earlier export,
    does not name. A missing or empty directory passes."""
    hint = "name a directory that is new, empty, or an earlier export"
    mark = os.path.join(directory, MARK)
    try:
        present = list_files_below(directory)
        # Without a mark, any file is a foreign one: only an empty directory is replaced.
        text = read_text(mark, "surrogateescape") if MARK in present else ""
    except FileNotFoundError:
        return
    except OSError as error:
        raise input_error(f"{error.filename or directory}: {error.strerror}", hint=hint) from None
    # The first line is the layout.
    exported = {MARK, *text.splitlines()[1:]}
    # Systems make lock files when they read a cache.
    unknown = [name for name in present if name not in exported and not name.endswith("/.lock")]
    if unknown:
        raise input_error(f"{directory} holds something else: {unknown[0]}", hint=hint)


def _write_items(staged: str, items: Iterable[ExportItem]) -> tuple[int, int, int]:
    """Write the items below `staged`. Return the counts as `export_scripts`."""
    files = linked = copied = 0
    for item in items:
        path = os.path.join(staged, item.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        files += 1
        if item.leads_to:
            os.symlink(item.leads_to, path)
        elif not item.source:
            with open(path, "xb") as file:
                file.write(item.data)
            copied += len(item.data)
        elif _link_or_copy(item.source, path):
            linked += 1
        else:
            copied += os.path.getsize(path)
    return files, linked, copied


def _link_or_copy(source: str, path: str) -> bool:
    """Make a hard link to a file, or a copy if the file system refuses links. Return whether it is
    a link. Raises `FileNotFoundError` and other `OSError`s."""
    try:
        os.link(source, path)
    # The source is gone: a copy would fail, too.
    except FileNotFoundError:
        raise
    # Another file system, or one without hard links.
    except OSError:
        shutil.copyfile(source, path)
        return False
    return True
