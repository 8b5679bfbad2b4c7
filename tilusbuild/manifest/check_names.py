"""Checks of declared names, and of the files that a manifest names.

Names can be used where they are needed, and no two are the same; files exist, and lie inside the
project.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from functools import partial

from tilusbuild.errors import did_you_mean
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.document import Path
from tilusbuild.manifest.library import SOURCES
from tilusbuild.manifest.names import (
    IDENTIFIER,
    TABLE_NAME,
    identifier_problem,
    linked_names,
    snake_case,
)
from tilusbuild.manifest.script import OverrideSection
from tilusbuild.manifest.script_sections import PACKAGE
from tilusbuild.manifest.sections import IncludeDir

_SECTIONS = ("args", "params", "space", "derived")


def check_names(checks: Checks) -> None:
    """Names of tables, of what scripts declare, of facts and macros."""
    _tables(checks)
    _directories(checks)
    for path, _, script in checks.scripts():
        _declared(checks, path)
        check_macros(checks, (*path, "defines"))
        for target, override in script.override.items():
            _overridden(checks, path, target, override)
    check_macros(checks, ("build", "defines"))
    for target in checks.manifest.targets:
        check_macros(checks, ("target", target, "defines"))
        for fact in checks.names_in("target", target, "facts"):
            if not IDENTIFIER.fullmatch(fact):
                checks.error(
                    f'"{fact}" cannot name a fact',
                    checks.document.key("target", target, "facts", fact),
                    "a name is made of letters, digits and _",
                )


def _tables(checks: Checks) -> None:
    for kind in ("script", "target", "library", "package"):
        for name in checks.keys_in(kind):
            if not TABLE_NAME.fullmatch(name):
                checks.error(
                    f'"{name}" cannot name a {kind}',
                    checks.document.key(kind, name),
                    "a name is made of letters, digits, _, - and ., and starts with a letter, a "
                    "digit or _",
                )


def _directories(checks: Checks) -> None:
    """Two scripts must not share a directory of the cache tree."""
    seen: dict[str, str] = {}
    libraries = [
        (kind, name + end)
        for kind, name in (("library", name) for name in checks.keys_in("library"))
        for end in ("", SOURCES)
    ]
    for kind, name in [*(("script", name) for name in checks.keys_in("script")), *libraries]:
        directory = snake_case(name)
        if directory in seen:
            checks.error(
                f'scripts "{seen[directory]}" and "{name}" would share the directory "{directory}"',
                checks.document.key(kind, name.removesuffix(SOURCES)),
                "rename one: capitals and - become _ in the cache tree",
            )
        seen.setdefault(directory, name)


def _declared(checks: Checks, path: Path) -> None:
    seen: dict[str, str] = {}
    for section in _SECTIONS:
        for key in checks.keys_in(*path, section):
            place = partial(checks.document.key, *path, section, key)
            for name in _names(section, key):
                problem = identifier_problem(name)
                if problem:
                    checks.error(f'"{name}" cannot be used as a name', place, problem)
                elif name in seen:
                    where = "twice" if seen[name] == section else f"in {seen[name]} already"
                    checks.error(f'"{name}" is declared {where}', place, "rename one of them")
                seen.setdefault(name, section)


def _overridden(checks: Checks, path: Path, target: str, override: OverrideSection) -> None:
    """Report names that an override moves to another section or key; it may only add names."""
    own = (*path, "override", target)
    check_macros(checks, (*own, "defines"))
    homes: dict[str, tuple[str, str]] = {}
    for section in _SECTIONS:
        for key in checks.keys_in(*path, section):
            homes.update(dict.fromkeys(_names(section, key), (section, key)))
    for section in ("params", "space", "derived"):
        for key in checks.keys_in(*own, section):
            place = partial(checks.document.key, *own, section, key)
            for name in _names(section, key):
                home, declared = homes.setdefault(name, (section, key))
                problem = identifier_problem(name)
                if problem:
                    checks.error(f'"{name}" cannot be used as a name', place, problem)
                elif home != section:
                    checks.error(f'"{name}" is declared in {home}', place, f"override it in {home}")
                elif declared != key:
                    checks.error(
                        f'"{name}" is declared as "{declared}"', place, "override it under that key"
                    )
    for rule, value in override.restrict.items():
        if value is False and rule not in checks.keys_in(*path, "restrict"):
            checks.error(
                f'there is no rule "{rule}" to remove', checks.document.key(*own, "restrict", rule)
            )


def _names(section: str, key: str) -> tuple[str, ...]:
    """Return the names that a key declares; only parameters are linked."""
    return linked_names(key) if section in ("params", "space") else (key,)


def check_macros(checks: Checks, path: Path) -> None:
    """Check a table of macros."""
    table = checks.wrote(*path)
    for name in checks.names_in(*path):
        if not IDENTIFIER.fullmatch(name):
            checks.error(
                f'"{name}" cannot name a macro',
                checks.document.key(*path, name),
                "a name is made of letters, digits and _; macros with arguments belong in a header",
            )
        value = table[name] if isinstance(table, dict) else None
        if isinstance(value, str) and (_NO_MACRO.search(value) or value.rstrip().endswith("\\")):
            checks.error(
                f'the value of "{name}" cannot be passed to a compiler',
                checks.document.value(*path, name),
                "a macro is one line: it holds no line break, no control character but a tab, and "
                "ends in no backslash; longer ones belong in a header",
            )


_NO_MACRO = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def check_files(checks: Checks) -> None:
    """Templates, include directories, references, spaces in files, patterns of headers."""
    check_include_dirs(checks, ("build",), checks.manifest.build.include_dirs)
    check_header_patterns(checks, ("build",), checks.manifest.build.headers)
    for path, _, script in checks.scripts():
        # Whether a package is installed only matters to a build.
        if not script.template.startswith(PACKAGE):
            _file(checks, (*path, "template"), script.template, "template")
        if script.space_file is not None:
            _file(checks, (*path, "space-file"), script.space_file, "file")
        if script.tune is not None and script.tune.ref is not None:
            _file(checks, (*path, "tune", "ref"), script.tune.ref.rpartition(":")[0], "reference")
        check_include_dirs(checks, path, script.include_dirs)
        check_header_patterns(checks, path, script.headers)


def _file(checks: Checks, path: Path, name: str, what: str) -> None:
    """Check that a path, links followed, is a regular file inside the project."""
    place = partial(checks.document.value, *path)
    root = checks.manifest.root
    full = os.path.normpath(os.path.join(root, name))
    if os.path.isabs(name):
        checks.error(
            f"the {what} must be relative to the manifest",
            place,
            _relative(full, root) or f"the project is {root}",
        )
    elif not _inside(full, root):
        checks.error(f"the {what} is outside the project", place, f"the project is {root}")
    else:
        try:
            mode = os.stat(full).st_mode
        except FileNotFoundError:
            checks.error(f'there is no {what} "{name}"', place, _similar(full, name))
            return
        except OSError as error:
            checks.error(f"the {what} cannot be read: {error.strerror}", place)
            return
        if not _inside(os.path.realpath(full), os.path.realpath(root)):
            checks.error(
                f"the {what} is outside the project, through a symbolic link",
                place,
                f"it is {os.path.realpath(full)}",
            )
        elif stat.S_ISDIR(mode):
            checks.error(f"the {what} is a directory, not a file", place, _contents(full, name))
        elif not stat.S_ISREG(mode):
            checks.error(f"the {what} is not a regular file", place)


def _inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _relative(full: str, root: str) -> str | None:
    return f'write "{os.path.relpath(full, root)}"' if _inside(full, root) else None


def _similar(full: str, name: str) -> str | None:
    """Return the file of the same directory whose name is nearest, or the nearest directory that
    exists."""
    directory, base = os.path.split(full)
    try:
        names = os.listdir(directory)
    except OSError:
        return f'there is no directory "{os.path.dirname(name)}"'
    near = did_you_mean(base, names)
    if near is None or not near.startswith("did"):
        return None
    found = near.split('"')[1]
    return f'did you mean "{os.path.join(os.path.dirname(name), found)}"?'


def _contents(full: str, name: str) -> str | None:
    try:
        templates = sorted(entry for entry in os.listdir(full) if entry.endswith(".j2"))
    except OSError:
        return None
    return f'did you mean "{os.path.join(name, templates[0])}"?' if templates else None


def check_include_dirs(
    checks: Checks, path: Path, directories: Sequence[IncludeDir], key: str = "include-dirs"
) -> None:
    """Check that directories of the project are there; `key` lists them."""
    what = "include directory" if key == "include-dirs" else "directory"
    for number, directory in enumerate(directories):
        where: Path = (*path, key, number, "path")
        place = partial(checks.document.value, *where)
        if directory.package is not None:
            # Whether the package is installed only matters to a build.
            escapes = os.path.normpath(directory.path).split(os.sep)[0] == os.pardir
            if os.path.isabs(directory.path) or escapes:
                checks.error("a package's directory is relative to the package", place)
            continue
        full = os.path.join(checks.manifest.root, os.path.expanduser(directory.path))
        if not os.path.exists(full):
            checks.error(
                f'there is no {what} "{directory.path}"',
                place,
                _similar(os.path.normpath(full), directory.path),
            )
        elif not os.path.isdir(full):
            checks.error(f'the {what} "{directory.path}" is a file', place)


def check_header_patterns(checks: Checks, path: Path, patterns: tuple[str, ...]) -> None:
    """Check that patterns of headers stay in the include directories."""
    for number, pattern in enumerate(patterns):
        if os.path.isabs(pattern) or os.pardir in pattern.split("/"):
            checks.error(
                "a pattern of headers is relative to the include directories",
                checks.document.value(*path, "headers", number),
                'as in "generated/*.cuh"',
            )
