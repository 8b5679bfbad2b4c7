"""Checks of names: that they can be used where they are needed, and that no two are the same."""

from __future__ import annotations

from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.locate import Path
from tilusbuild.manifest.names import (
    IDENTIFIER,
    TABLE_NAME,
    identifier_problem,
    linked_names,
    snake_case,
)
from tilusbuild.manifest.script import Override, Script

_SECTIONS = ("args", "params", "space", "derived")


def check_names(checks: Checks) -> None:
    """Names of tables, of what scripts declare, of facts and macros."""
    _tables(checks)
    _folders(checks)
    for path, _, script in checks.scripts():
        _declared(checks, path)
        _macros(checks, (*path, "defines"))
        for target, override in script.override.items():
            _overridden(checks, path, target, script, override)
    _macros(checks, ("build", "defines"))
    for target in checks.manifest.targets:
        _macros(checks, ("target", target, "defines"))
        for fact in checks.names_in("target", target, "facts"):
            if not IDENTIFIER.fullmatch(fact):
                checks.error(
                    f'"{fact}" cannot name a fact',
                    checks.document.key("target", target, "facts", fact),
                    "a name is made of letters, digits and _",
                )


def _tables(checks: Checks) -> None:
    for kind in ("script", "target", "package"):
        for name in checks.names_of_tables(kind):
            if not TABLE_NAME.fullmatch(name):
                checks.error(
                    f'"{name}" cannot name a {kind}',
                    checks.document.key(kind, name),
                    "a name is made of letters, digits, _, - and ., and starts with a letter, a "
                    "digit or _",
                )


def _folders(checks: Checks) -> None:
    """Two scripts must not share a folder of the cache tree."""
    seen: dict[str, str] = {}
    for name in checks.names_of_tables("script"):
        folder = snake_case(name)
        if folder in seen:
            checks.error(
                f'scripts "{seen[folder]}" and "{name}" would share the folder "{folder}"',
                checks.document.key("script", name),
                "rename one: capitals and - become _ in the cache tree",
            )
        seen.setdefault(folder, name)


def _declared(checks: Checks, path: Path) -> None:
    seen: dict[str, str] = {}
    for section in _SECTIONS:
        table = checks.wrote(*path, section)
        for key in table if isinstance(table, dict) else ():
            place = checks.document.key(*path, section, key)
            for name in linked_names(key) if section in ("params", "space") else (key,):
                problem = identifier_problem(name)
                if problem:
                    checks.error(f'"{name}" cannot be used as a name', place, problem)
                elif name in seen:
                    where = "twice" if seen[name] == section else f"in {seen[name]} already"
                    checks.error(f'"{name}" is declared {where}', place, "rename one of them")
                seen.setdefault(name, section)


def _overridden(
    checks: Checks, path: Path, target: str, script: Script, override: Override
) -> None:
    """An override may add names, but not move one to another section."""
    _macros(checks, (*path, "override", target, "defines"))
    homes = {name: section for section in _SECTIONS for name in checks.names_in(*path, section)}
    keys = {"space": list(script.space), "params": list(script.params)}
    for section in ("params", "space", "derived"):
        entries = getattr(override, section)
        for key in entries:
            place = checks.document.key(*path, "override", target, section, key)
            for name in linked_names(key) if section in keys else (key,):
                home = homes.get(name)
                problem = identifier_problem(name)
                if problem:
                    checks.error(f'"{name}" cannot be used as a name', place, problem)
                elif home is not None and home != section:
                    checks.error(f'"{name}" is declared in {home}', place, f"override it in {home}")
                elif home is not None and section in keys and key not in keys[section]:
                    declared = next(k for k in keys[section] if name in linked_names(k))
                    checks.error(
                        f'"{name}" is declared as "{declared}"', place, "override it under that key"
                    )
                elif home is None:
                    homes[name] = section
    for rule, value in override.restrict.items():
        if value is False and rule not in checks.names_in(*path, "restrict"):
            checks.error(
                f'there is no rule "{rule}" to remove',
                checks.document.key(*path, "override", target, "restrict", rule),
            )


def _macros(checks: Checks, path: Path) -> None:
    for name in checks.names_in(*path):
        if not IDENTIFIER.fullmatch(name):
            checks.error(
                f'"{name}" cannot name a macro',
                checks.document.key(*path, name),
                "a name is made of letters, digits and _; macros with arguments belong in a header",
            )
