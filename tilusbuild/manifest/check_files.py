"""Checks of the files that a manifest names: they exist, and lie inside the project.

What the file system says can change while the manifest does not, so these checks are made at each
load, also of a manifest whose other checks are remembered (`memo`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.errors import Diagnostic, Place, find_nearest_word
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.scanner import Path
from tilusbuild.runtime.where import is_within

if TYPE_CHECKING:
    from tilusbuild.manifest.sections import Directory


def check_files(checks: Checks) -> None:
    """Templates, include directories, references, spaces in files."""
    check_include_dirs(checks, ("build",), checks.manifest.build.include_dirs)
    for path, _, script in checks.list_scripts():
        # Whether a package is installed only matters to a build.
        if not script.template.startswith(PACKAGE):
            _check_file(checks, (*path, "template"), script.template, "template")
        for name, template in script.generate.items():
            if not _GENERATED.fullmatch(name):
                checks.add_error(
                    f'"{name}" cannot name a generated header',
                    checks.document.locate_key(*path, "generate", name),
                    "a name without directories that ends in .h, .hh, .hpp, .cuh, .inc or .inl",
                )
            _check_file(checks, (*path, "generate", name), template, "template")
        if script.space_file is not None:
            _check_file(checks, (*path, "space-file"), script.space_file, "file")
        if script.dispatch is not None and script.dispatch.measured is not None:
            where = (*path, "dispatch", "measured")
            _check_file(checks, where, script.dispatch.measured, "file", needed=False)
        if script.tune is not None and script.tune.ref is not None:
            _check_file(
                checks, (*path, "tune", "ref"), script.tune.ref.rpartition(":")[0], "reference"
            )
        check_include_dirs(checks, path, script.include_dirs)


_GENERATED = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\.(h|hh|hpp|cuh|inc|inl)")
"""A header's name: it stands beside the source, so that none is the source's or a tool's."""


def _check_file(checks: Checks, path: Path, name: str, what: str, *, needed: bool = True) -> None:
    """Check that a path, links followed, is a regular file inside the project, or, where it is not
    `needed`, that there is nothing."""
    place = partial(checks.document.locate_value, *path)
    root = checks.manifest.root
    full = os.path.normpath(os.path.join(root, name))
    checks.looked_for.add(full)
    if os.path.isabs(name):
        relative = f'write "{os.path.relpath(full, root)}"' if is_within(full, root) else None
        hint = relative or f"the project is {root}"
        checks.add_error(f"the {what} must be relative to the manifest", place, hint)
    elif not is_within(full, root):
        checks.add_error(f"the {what} is outside the project", place, f"the project is {root}")
    else:
        try:
            mode = os.stat(full).st_mode
        except FileNotFoundError:
            if needed:
                found = missing_file_error(root, name, place())
                checks.add_error(found.message, place, found.hint)
            return
        except OSError as error:
            checks.add_error(f"the {what} cannot be read: {error.strerror}", place)
            return
        if not is_within(os.path.realpath(full), os.path.realpath(root)):
            checks.add_error(
                f"the {what} is outside the project, through a symbolic link",
                place,
                f"it is {os.path.realpath(full)}",
            )
        elif stat.S_ISDIR(mode):
            checks.add_error(f"the {what} is a directory, not a file", place)
        elif not stat.S_ISREG(mode):
            checks.add_error(f"the {what} is not a regular file", place)


def missing_file_error(root: str, name: str, place: Place) -> Diagnostic:
    """Return the error for a file of the project that is not there."""
    full = os.path.normpath(os.path.join(root, name))
    return Diagnostic(f'file not found: "{name}"', place, _find_similar(full, name))


def _find_similar(full: str, name: str) -> str | None:
    """Return the file beside it whose name is nearest, or the nearest directory that exists."""
    directory, base = os.path.split(full)
    try:
        names = os.listdir(directory)
    except OSError:
        return f'there is no directory "{os.path.dirname(name)}"'
    near = find_nearest_word(base, sorted(names))
    return near and f'did you mean "{os.path.join(os.path.dirname(name), near)}"?'


def check_include_dirs(
    checks: Checks, path: Path, directories: Sequence[Directory], key: str = "include-dirs"
) -> None:
    """Check that directories of the project are there; `key` lists them."""
    what = "include directory" if key == "include-dirs" else "directory"
    for number, directory in enumerate(directories):
        where: Path = (*path, key, number, "path")
        place = partial(checks.document.locate_value, *where)
        if directory.package is not None:
            # Whether the package is installed only matters to a build.
            escapes = os.path.normpath(directory.path).split(os.sep)[0] == os.pardir
            if os.path.isabs(directory.path) or escapes:
                checks.add_error("a package's directory is relative to the package", place)
            continue
        full = os.path.join(checks.manifest.root, os.path.expanduser(directory.path))
        checks.looked_for.add(os.path.normpath(full))
        if not os.path.exists(full):
            checks.add_error(
                f'there is no {what} "{directory.path}"',
                place,
                _find_similar(os.path.normpath(full), directory.path),
            )
        elif not os.path.isdir(full):
            checks.add_error(f'the {what} "{directory.path}" is a file', place)
