"""Checks of the files that a manifest names: they exist, and lie inside the project.

What the file system says can change while the manifest does not, so these checks are made at each
load, also of a manifest whose other checks are remembered (`memo`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from tilusbuild.errors import Diagnostic, Location, find_nearest_word
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import PACKAGE
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script_sections import split_function
from tilusbuild.manifest.sections import Directory
from tilusbuild.runtime.where import is_within


def check_files(checks: Checks) -> None:
    """Check templates, include directories, references, and spaces in files."""
    check_include_dirs(checks, ("build",), checks.manifest.build.include_dirs)
    # Also of scripts that are not read: a missing template may be the reason.
    for name, script in checks.manifest.scripts.items():
        path: Path = ("script", name)
        # The key of each file, its path, and its kind in messages.
        files: list[tuple[Path, str | None, str]] = [(("space-file",), script.space_file, "file")]
        for name, template in script.generate.items():
            files.append((("generate", name), template, "template"))
        # Whether a package is installed only matters to a build.
        if script.generator is not None:
            files.append((("generator",), split_function(script.generator)[0], "Python file"))
        elif not script.template.startswith(PACKAGE):
            files.append((("template",), script.template, "template"))
        if script.dispatch is not None:
            files.append((("dispatch", "measured"), script.dispatch.measured, "file"))
        for key in ("ref", "inputs", "compare"):
            function = getattr(script.tune, key, None)  # as in "ref.py:matmul"
            if function is not None:
                files.append((("tune", key), function.rpartition(":")[0], "Python file"))
        for inner, file, kind in files:
            if file is not None:
                _check_file(checks, (*path, *inner), file, kind)
        check_include_dirs(checks, path, script.include_dirs)


def _check_file(checks: Checks, path: Path, name: str, kind: str) -> None:
    """Report a path that, links followed, is not a regular file inside the project. Add the path
    to `checks.looked_for`. A missing file of measurements is not a mistake."""
    root = checks.manifest.root
    full = os.path.normpath(os.path.join(root, name))
    checks.looked_for.add(full)
    if os.path.isabs(name):
        # An absolute path does not hold on another machine.
        hint = f"the project is {root}"
        if is_within(full, root):
            hint = f'write "{os.path.relpath(full, root)}"'
        checks.add_value_error(path, f"the {kind} must be relative to the manifest", hint)
        return
    if not is_within(full, root):
        hint = f"the project is {root}"
        checks.add_value_error(path, f"the {kind} is outside the project", hint)
        return
    try:
        mode = os.stat(full).st_mode
    except FileNotFoundError:
        # The file of measurements is written by `dispatch export`, after the first tuning.
        if path[-1] != "measured":
            problem = make_missing_file_error(root, name, checks.document.locate_value(*path))
            checks.add_value_error(path, problem.message, problem.hint)
        return
    except OSError as error:
        checks.add_value_error(path, f"the {kind} cannot be read: {error.strerror}")
        return
    real = os.path.realpath(full)
    if not is_within(real, os.path.realpath(root)):
        message = f"the {kind} is outside the project, through a symbolic link"
        checks.add_value_error(path, message, f"it is {real}")
    elif stat.S_ISDIR(mode):
        checks.add_value_error(path, f"the {kind} is a directory, not a file")
    elif not stat.S_ISREG(mode):
        checks.add_value_error(path, f"the {kind} is not a regular file")


def make_missing_file_error(root: str, name: str, location: Location | None = None) -> Diagnostic:
    """Return the error for a missing file, relative to `root`, with a similar name as its hint."""
    full = os.path.normpath(os.path.join(root, name))
    return Diagnostic(f'file not found: "{name}"', location, _find_similar(full, name))


def _find_similar(full: str, name: str) -> str | None:
    """Return a hint on a missing file: that its directory is missing, or the nearest name in the
    directory; None if no name is near. `name` is the path as written, `full` its full path."""
    slashed_name = name.replace("\\", "/")
    if slashed_name != name and os.path.exists(full.replace("\\", "/")):
        return f'write "{slashed_name}"'
    directory, base = os.path.split(full)
    try:
        names = os.listdir(directory)
    except OSError:
        return f'there is no directory "{os.path.dirname(name)}"'
    nearest_name = find_nearest_word(base, sorted(names))
    return nearest_name and f'did you mean "{os.path.join(os.path.dirname(name), nearest_name)}"?'


def check_include_dirs(
    checks: Checks, path: Path, directories: Sequence[Directory], key: str = "include-dirs"
) -> None:
    """Report the directories under `key` that no build can use: one of the project that does not
    exist, and one of a package that is absolute or outside of the package. Add the paths of the
    project's directories to `checks.looked_for`."""
    kind = "include directory" if key == "include-dirs" else "directory"
    for number, directory in enumerate(directories):
        directory_path: Path = (*path, key, number, "path")
        # Whether the package is installed only matters to a build.
        if directory.package is not None:
            escapes = os.path.normpath(directory.path).split(os.sep)[0] == os.pardir
            if os.path.isabs(directory.path) or escapes:
                checks.add_value_error(
                    directory_path, "a package's directory is relative to the package"
                )
            continue
        # Unlike a template, it may lie outside of the project: a toolkit's headers do.
        full = os.path.join(checks.manifest.root, os.path.expanduser(directory.path))
        checks.looked_for.add(os.path.normpath(full))
        if not os.path.exists(full):
            hint = _find_similar(os.path.normpath(full), directory.path)
            checks.add_value_error(directory_path, f'there is no {kind} "{directory.path}"', hint)
        elif not os.path.isdir(full):
            checks.add_value_error(directory_path, f'the {kind} "{directory.path}" is a file')
