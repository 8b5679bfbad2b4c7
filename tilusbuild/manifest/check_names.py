"""Check declared names: each is valid for its use, and no two are equal."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.library import SOURCES
from tilusbuild.manifest.names import (
    IDENTIFIER,
    TABLE_NAME,
    explain_identifier,
    split_declared_names,
)
from tilusbuild.manifest.scanner import Path
from tilusbuild.runtime.naming import to_snake_case

if TYPE_CHECKING:
    from tilusbuild.manifest.script import OverrideSection

_SECTIONS = ("args", "params", "space", "derived")


def check_names(checks: Checks) -> None:
    """Report mistaken names of tables, of scripts' declarations, of facts and of macros."""
    _check_table_names(checks)
    _check_directories(checks)
    for path, _, script in checks.list_scripts():
        _check_declared_names(checks, path)
        check_macros(checks, (*path, "defines"))
        for target, override in script.override.items():
            _check_override_names(checks, path, target, override)
    check_macros(checks, ("build", "defines"))
    for target in checks.manifest.targets:
        check_macros(checks, ("target", target, "defines"))
        for fact in checks.list_names("target", target, "facts"):
            if not IDENTIFIER.fullmatch(fact):
                checks.add_error(
                    f'"{fact}" cannot name a fact',
                    checks.document.locate_key("target", target, "facts", fact),
                    "a name is made of letters, digits and _",
                )


def _check_table_names(checks: Checks) -> None:
    tables: list[Path] = [("script",), ("target",), ("library",), ("package",)]
    for table in (*tables, ("toolchain", "named")):
        for name in checks.list_keys(*table):
            if not TABLE_NAME.fullmatch(name):
                checks.add_error(
                    f'"{name}" cannot name a {table[0]}',
                    checks.document.locate_key(*table, name),
                    "a name is made of letters, digits, _, - and ., and starts with a letter, a "
                    "digit or _",
                )


def _check_directories(checks: Checks) -> None:
    """Report scripts that would share a directory of the cache tree."""
    seen: dict[str, str] = {}
    libraries = [
        (kind, name + end)
        for kind, name in (("library", name) for name in checks.list_keys("library"))
        for end in ("", SOURCES)
    ]
    for kind, name in [*(("script", name) for name in checks.list_keys("script")), *libraries]:
        directory = to_snake_case(name)
        if directory in seen:
            checks.add_error(
                f'scripts "{seen[directory]}" and "{name}" would share the directory "{directory}"',
                checks.document.locate_key(kind, name.removesuffix(SOURCES)),
                "rename one: capitals and - become _ in the cache tree",
            )
        seen.setdefault(directory, name)


def _check_declared_names(checks: Checks, path: Path) -> None:
    seen: dict[str, str] = {}
    for section in _SECTIONS:
        for key in checks.list_keys(*path, section):
            place = partial(checks.document.locate_key, *path, section, key)
            for name in split_declared_names(section, key):
                problem = explain_identifier(name)
                if problem:
                    checks.add_error(f'"{name}" cannot be used as a name', place, problem)
                elif name in seen:
                    where = "twice" if seen[name] == section else f"in {seen[name]} already"
                    checks.add_error(f'"{name}" is declared {where}', place, "rename one of them")
                seen.setdefault(name, section)


def _check_override_names(
    checks: Checks, path: Path, target: str, override: OverrideSection
) -> None:
    """Report names that an override declares in another section, or under another key.

    An override may add names, but not move them.
    """
    own = (*path, "override", target)
    check_macros(checks, (*own, "defines"))
    homes: dict[str, tuple[str, str]] = {}
    for section in _SECTIONS:
        for key in checks.list_keys(*path, section):
            homes.update(dict.fromkeys(split_declared_names(section, key), (section, key)))
    for section in ("params", "space", "derived"):
        for key in checks.list_keys(*own, section):
            place = partial(checks.document.locate_key, *own, section, key)
            for name in split_declared_names(section, key):
                home, declared = homes.setdefault(name, (section, key))
                problem = explain_identifier(name)
                if problem:
                    checks.add_error(f'"{name}" cannot be used as a name', place, problem)
                elif home != section:
                    checks.add_error(
                        f'"{name}" is declared in {home}', place, f"override it in {home}"
                    )
                elif declared != key:
                    checks.add_error(
                        f'"{name}" is declared as "{declared}"', place, "override it under that key"
                    )
    for rule, value in override.restrict.items():
        if value is False and rule not in checks.list_keys(*path, "restrict"):
            checks.add_error(
                f'there is no rule "{rule}" to remove',
                checks.document.locate_key(*own, "restrict", rule),
            )


def check_macros(checks: Checks, path: Path) -> None:
    """Report mistaken names and values in a table of macros."""
    table = checks.value_in_file(*path)
    for name in checks.list_names(*path):
        if not IDENTIFIER.fullmatch(name):
            checks.add_error(
                f'"{name}" cannot name a macro',
                checks.document.locate_key(*path, name),
                "a name is made of letters, digits and _; macros with arguments belong in a header",
            )
        value = table[name] if isinstance(table, dict) else None
        if isinstance(value, str) and (_NO_MACRO.search(value) or value.rstrip().endswith("\\")):
            checks.add_error(
                f'the value of "{name}" cannot be passed to a compiler',
                checks.document.locate_value(*path, name),
                "a macro is one line: it holds no line break, no control character but a tab, and "
                "ends in no backslash; longer ones belong in a header",
            )


_NO_MACRO = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
