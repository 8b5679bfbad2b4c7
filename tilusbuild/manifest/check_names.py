"""Check declared names: no two are equal, and no two scripts have one directory."""

from __future__ import annotations

from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.library import SOURCES
from tilusbuild.manifest.names import split_declared_names
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import OverrideSection
from tilusbuild.runtime.naming import to_snake_case

_SECTIONS = ("args", "params", "space", "derived")


def check_names(checks: Checks) -> None:
    """Report names that are declared twice, in scripts, in their overrides, and of scripts."""
    _check_directories(checks)
    for path, _, script in checks.list_scripts():
        _check_declared_names(checks, path)
        for target, override in script.override.items():
            _check_override_names(checks, path, target, override)


def _check_directories(checks: Checks) -> None:
    """Report scripts that would share a directory of the cache tree."""
    names_and_paths = [(name, ("script", name)) for name in checks.list_keys("script")]
    for library in checks.list_keys("library"):
        # A library stands for two scripts.
        names_and_paths += [(name, ("library", library)) for name in (library, library + SOURCES)]
    owners: dict[str, str] = {}
    for name, path in names_and_paths:
        directory = to_snake_case(name)
        if directory in owners:
            checks.add_key_error(
                path,
                f'scripts "{owners[directory]}" and "{name}" would share the directory '
                f'"{directory}"',
                "rename one: capitals and - become _ in the cache tree",
            )
        owners.setdefault(directory, name)


def _check_declared_names(checks: Checks, path: Path) -> None:
    """Report names that two sections of a script declare, or one section twice."""
    section_of_name: dict[str, str] = {}
    for section in _SECTIONS:
        for key in checks.list_keys(*path, section):
            # Of all sections: templates and expressions see the names of a script together.
            for name in split_declared_names(section, key):
                if name in section_of_name:
                    first_section = section_of_name[name]
                    where = "twice" if first_section == section else f"in {first_section} already"
                    checks.add_key_error(
                        (*path, section, key), f'"{name}" is declared {where}', "rename one of them"
                    )
                section_of_name.setdefault(name, section)


def _check_override_names(
    checks: Checks, path: Path, target: str, override: OverrideSection
) -> None:
    """Report names that an override declares in another section than the script does, or under
    another key, and rules that it removes though the script does not have them.

    An override may add names, but not move them.
    """
    override_path = (*path, "override", target)
    first_declarations = {
        name: (section, key)
        for section in _SECTIONS
        for key in checks.list_keys(*path, section)
        for name in split_declared_names(section, key)
    }
    for section in ("params", "space", "derived"):
        for key in checks.list_keys(*override_path, section):
            key_path = (*override_path, section, key)
            for name in split_declared_names(section, key):
                first_section, first_key = first_declarations.setdefault(name, (section, key))
                if first_section != section:
                    hint = f"override it in {first_section}"
                    checks.add_key_error(key_path, f'"{name}" is declared in {first_section}', hint)
                elif first_key != key:
                    checks.add_key_error(
                        key_path,
                        f'"{name}" is declared as "{first_key}"',
                        "override it under that key",
                    )
    for rule, value in override.restrict.items():
        if value is False and rule not in checks.list_keys(*path, "restrict"):
            rule_path = (*override_path, "restrict", rule)
            checks.add_key_error(rule_path, f'there is no rule "{rule}" to remove')
