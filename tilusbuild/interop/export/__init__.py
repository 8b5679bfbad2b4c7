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
from tilusbuild.interop.export.layouts import hidet_layout, tilus_layout
from tilusbuild.interop.export.scripts import ExportedScript, ExportItem
from tilusbuild.runtime.regular import read_text
from tilusbuild.state.files import replace_directory
from tilusbuild.state.temporary import TemporaryDirectory

LAYOUTS: Mapping[str, Callable[[Iterable[ExportedScript]], Iterator[ExportItem]]] = {
    "tilus": tilus_layout,
    "hidet": hidet_layout,
}
MARK = ".tilusbuild-view"
"""The file by which an earlier export is recognised: its layout, and its files, one a line."""


def export(layout: str, scripts: Iterable[ExportedScript], directory: str) -> tuple[int, int, int]:
    """Write scripts in one of `LAYOUTS`; return how many files there are, how many of them are hard
    links, and the bytes of the others. Raises `InputError` and `TilusbuildError`; then nothing was
    left behind."""
    directory = os.path.realpath(directory)
    _check_replaceable(directory)
    parent = os.path.dirname(directory)
    try:
        os.makedirs(parent, exist_ok=True)
        with TemporaryDirectory("export", parent) as private:
            return _export(layout, scripts, directory, private.path)
    except OSError as error:
        raise TilusbuildError(f"{error.filename or directory}: {error.strerror}") from None


def _export(
    layout: str, scripts: Iterable[ExportedScript], directory: str, private: str
) -> tuple[int, int, int]:
    staged, aside = os.path.join(private, "new"), os.path.join(private, "old")
    os.mkdir(staged)
    os.mkdir(aside)
    os.chmod(staged, 0o755)  # noqa: S103 - whatever the umask: other users read exports, too
    items = list(LAYOUTS[layout](scripts))
    mark = "\n".join([layout, *sorted(item.path for item in items), ""])
    items.append(ExportItem(MARK, mark.encode("utf-8", "surrogateescape")))
    exported = _write(staged, items)
    replace_directory(staged, directory, aside)
    return exported


def _check_replaceable(directory: str) -> None:
    """Refuse a directory with anything in it that no export made: its mark lists what one did."""
    hint = "name a directory that is new, empty, or an earlier export"
    try:
        text = read_text(os.path.join(directory, MARK), "surrogateescape")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise input_error(f"{error.filename}: {error.strerror}", hint=hint) from None
    ours = {MARK, *text.splitlines()[1:]}
    try:
        there = list_files_below(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise input_error(f"{directory}: {error.strerror}") from None
    # Systems make lock files when they read a cache.
    strangers = [name for name in there if name not in ours and not name.endswith("/.lock")]
    if strangers:
        raise input_error(f"{directory} holds something else: {strangers[0]}", hint=hint)


def _write(staged: str, items: Iterable[ExportItem]) -> tuple[int, int, int]:
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
        elif _link(item.source, path):
            linked += 1
        else:
            copied += os.path.getsize(path)
    return files, linked, copied


def _link(source: str, path: str) -> bool:
    """Return whether a hard link could be made; if not, the file was copied."""
    try:
        os.link(source, path)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, path)
        return False
    return True
