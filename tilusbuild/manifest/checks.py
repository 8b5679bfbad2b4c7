"""Collect the mistakes of a manifest, and look up what its file says: shared by all checks.

A check covers one subject and adds every mistake of it. It must stay silent about consequences of a
mistake that `loading.validate_structure` has already reported: `get_file_value` returns values of
the file, also of entries that were removed from the manifest as mistakes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from tilusbuild.arch.table import ARCHS
from tilusbuild.errors import Diagnostic, Location, did_you_mean
from tilusbuild.manifest.document import Document
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.names import split_declared_names
from tilusbuild.manifest.reading import KernelTemplate
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection

MAX_MISTAKES = 100
"""Checking stops after so many mistakes: a user corrects a few at a time."""


class TooManyMistakesError(Exception):
    """There are more mistakes than are shown."""


class Checks(Struct):
    """The manifest under check, and the mistakes found so far."""

    document: Document
    manifest: Manifest
    diagnostics: list[Diagnostic] = field(default_factory=list)
    templates: Mapping[str, KernelTemplate] = {}
    """The template of each script of the project's, by the script's name."""
    unread: set[str] = field(default_factory=set)
    """The names of scripts of which a part could not be read: a check would report what follows
    from that mistake."""
    looked_for: set[str] = field(default_factory=set)
    """The paths of all files and directories that the checks looked for, missing ones too."""

    def add_error(self, location: Location, message: str, hint: str | None = None) -> None:
        """Add a mistake, unless there is an equal one. Raises `TooManyMistakesError`."""
        diagnostic = Diagnostic(message, location, hint)
        # An expression is checked for each target of its script.
        if diagnostic in self.diagnostics:
            return
        self.diagnostics.append(diagnostic)
        if len(self.diagnostics) > MAX_MISTAKES:
            raise TooManyMistakesError

    # Positions are looked up only for a mistake: a manifest without one is never scanned.

    def add_key_error(self, path: Path, message: str, hint: str | None = None) -> None:
        """Add a mistake in the key at a path."""
        self.add_error(self.document.locate_key(*path), message, hint)

    def add_value_error(self, path: Path, message: str, hint: str | None = None) -> None:
        """Add a mistake in the value at a path."""
        self.add_error(self.document.locate_value(*path), message, hint)

    def reject_keys(self, path: Path, keys: Iterable[str], whose: str, why: str) -> None:
        """Report each of these keys that a table has: they belong to another kind of table."""
        for key in keys:
            if self.has(*path, key):
                self.add_key_error((*path, key), f'"{key}" is for {whose}', why)

    def check_references(
        self,
        path: Path,
        names: Sequence[str],
        known: Collection[str],
        kind: str,
        hint: str | None = None,
    ) -> None:
        """Report names in the array at a path that are not `known`, and names that come twice.
        `kind` says in the message what they name; `hint` is used if no known name is near."""
        for number, name in enumerate(names):
            if name not in known:
                # No target is called so, but an architecture is: that was not misspelt.
                near = None if name in ARCHS else did_you_mean(name, known)
                self.add_value_error((*path, number), f'unknown {kind} "{name}"', near or hint)
            elif name in names[:number]:
                self.add_value_error((*path, number), f'"{name}" is listed twice')

    def has(self, *path: str | int) -> bool:
        """Return whether the file sets a key, rightly or not."""
        return self.get_file_value(*path) is not None

    def get_file_value(self, *path: str | int) -> Any:
        """Return a value of the file, whether it is right or not; None if it is absent."""
        value: Any = self.document.data
        for part in path:
            value = _get_member(value, part)
        return value

    def list_keys(self, *path: str | int) -> tuple[str, ...]:
        """Return the keys of a table in the file."""
        table = self.get_file_value(*path)
        return tuple(table) if isinstance(table, dict) else ()

    def list_names(self, *path: str | int) -> tuple[str, ...]:
        """Return the names that a table's keys declare: `"m, n"` in a space declares two."""
        section = str(path[-1])
        return tuple(
            name for key in self.list_keys(*path) for name in split_declared_names(section, key)
        )

    def list_scripts(self) -> Iterator[tuple[Path, str, ScriptSection]]:
        """Yield path, name and table of every script that could be read."""
        for name, script in self.manifest.scripts.items():
            if name not in self.unread:
                yield ("script", name), name, script

    def list_known_targets(self, script: str) -> tuple[str, ...]:
        """Return the script's targets without unknown ones, which `check_targets` reports."""
        return tuple(
            t for t in self.manifest.list_script_targets(script) if t in self.manifest.targets
        )


def _get_member(value: Any, part: str | int) -> Any:
    """Return the value of a table's key, or the item of an array; None without one."""
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    # A single value may take the place of an array of one.
    return value if part == 0 and isinstance(value, str | int) else None
