"""Collect the mistakes of a manifest, and look up what its file says: shared by all checks.

A check covers one subject and adds every mistake of it. It must stay silent about consequences of a
mistake that `loading.validate_structure` has already reported: `value_in_file` returns values of
the file, also of entries that were removed from the manifest as mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from tilusbuild.errors import Diagnostic, InputError, Place
from tilusbuild.manifest.document import Document
from tilusbuild.manifest.names import split_declared_names
from tilusbuild.manifest.scanner import Path

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest
    from tilusbuild.manifest.script import ScriptSection

MAX_MISTAKES = 100
"""Checking stops after so many mistakes: a user corrects a few at a time."""


def too_many_error(document: Document, more: int | None = None) -> Diagnostic:
    """Return the diagnostic behind the last mistake that is shown. `more` counts the others."""
    message = "there are more mistakes" if more is None else f"there are {more} more mistakes"
    return Diagnostic(message, Place(document.shown), "they appear when you have fixed these")


class Checks(Struct):
    """The manifest under check, and the mistakes found so far."""

    document: Document
    manifest: Manifest
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unsound: set[Path] = field(default_factory=set)
    """Parameters whose values cannot be listed; `check_space` has reported them."""
    looked_for: set[str] = field(default_factory=set)
    """The paths of all files and directories that the checks looked for, missing ones too."""

    def add_error(
        self, message: str, place: Place | Callable[[], Place], hint: str | None = None
    ) -> None:
        """Add a mistake, unless there is an equal one. Raises `InputError` at `MAX_MISTAKES`.

        `place` may be a function: then a manifest without mistakes is never scanned for positions.
        """
        diagnostic = Diagnostic(message, place() if callable(place) else place, hint)
        if diagnostic in self.diagnostics:
            return
        self.diagnostics.append(diagnostic)
        if len(self.diagnostics) >= MAX_MISTAKES:
            self.diagnostics.append(too_many_error(self.document))
            raise InputError(*self.diagnostics)

    def reject_keys(self, path: Path, keys: Iterable[str], whose: str, why: str) -> None:
        """Report each of these keys that a table has: they belong to another kind of table."""
        for key in keys:
            if self.value_in_file(*path, key) is not None:
                self.add_error(f'"{key}" is for {whose}', self.document.locate_key(*path, key), why)

    def value_in_file(self, *path: str | int) -> Any:
        """Return a value of the file, whether it is right or not; None if it is absent."""
        at: Any = self.document.data
        for part in path:
            at = _get_member(at, part)
        return at

    def list_keys(self, *path: str | int) -> tuple[str, ...]:
        """Return the keys of a table in the file."""
        table = self.value_in_file(*path)
        return tuple(table) if isinstance(table, dict) else ()

    def list_names(self, *path: str | int) -> tuple[str, ...]:
        """Return the names that a table's keys declare: `"m, n"` in a space declares two."""
        section = str(path[-1])
        return tuple(
            name for key in self.list_keys(*path) for name in split_declared_names(section, key)
        )

    def list_scripts(self) -> Iterator[tuple[Path, str, ScriptSection]]:
        """Yield path, name and table of every script without mistakes in its structure."""
        for name, script in self.manifest.scripts.items():
            yield ("script", name), name, script

    def list_known_targets(self, script: str) -> tuple[str, ...]:
        """Return the script's targets without unknown ones, which `check_targets` reports."""
        return tuple(t for t in self.manifest.targets_of(script) if t in self.manifest.targets)


def _get_member(at: Any, part: str | int) -> Any:
    if isinstance(at, dict):
        return at.get(part)
    if isinstance(at, list) and isinstance(part, int) and part < len(at):
        return at[part]
    if part == 0 and isinstance(at, str | int):
        return at  # a single value is the first item of its array
    return None
