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
"""More are not looked for: who wrote so many mends a few at a time."""


def too_many_error(document: Document, more: int | None = None) -> Diagnostic:
    """Return what stands after the last mistake that is shown."""
    left = "there are more mistakes" if more is None else f"there are {more} more mistakes"
    return Diagnostic(left, Place(document.shown), "they appear when you have fixed these")


class Checks(Struct):
    """The manifest under check, and the mistakes found so far."""

    document: Document
    manifest: Manifest
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unsound: set[Path] = field(default_factory=set)
    """Parameters whose values cannot be counted out; `check_space` has said why."""
    looked_for: set[str] = field(default_factory=set)
    """The paths of files and directories that were looked for, there or not."""

    def add_error(
        self, message: str, place: Place | Callable[[], Place], hint: str | None = None
    ) -> None:
        """Add a mistake; the same words at the same place are added once. Raises `InputError` when
        there are so many that the rest is not looked for.

        A place may be given as a call: a manifest without mistakes is then never scanned for any.
        """
        diagnostic = Diagnostic(message, place() if callable(place) else place, hint)
        if diagnostic in self.diagnostics:
            return
        self.diagnostics.append(diagnostic)
        if len(self.diagnostics) >= MAX_MISTAKES:
            self.diagnostics.append(too_many_error(self.document))
            raise InputError(*self.diagnostics)

    def reject_keys(self, path: Path, keys: Iterable[str], whose: str, why: str) -> None:
        """Report those of a table's keys that are for another kind of table."""
        for key in keys:
            if self.value_in_file(*path, key) is not None:
                self.add_error(f'"{key}" is for {whose}', self.document.locate_key(*path, key), why)

    def value_in_file(self, *path: str | int) -> Any:
        """Return the value in the file, checked or not; None when there is none."""
        at: Any = self.document.data
        for part in path:
            at = _get_member(at, part)
        return at

    def list_keys(self, *path: str | int) -> tuple[str, ...]:
        """Return the keys of a table as written."""
        table = self.value_in_file(*path)
        return tuple(table) if isinstance(table, dict) else ()

    def list_names(self, *path: str | int) -> tuple[str, ...]:
        """Return the names that the keys of a table declare: `"m, n"` both, of parameters."""
        section = str(path[-1])
        return tuple(
            name for key in self.list_keys(*path) for name in split_declared_names(section, key)
        )

    def list_scripts(self) -> Iterator[tuple[Path, str, ScriptSection]]:
        """Yield every script that could be read: its path, name and table."""
        for name, script in self.manifest.scripts.items():
            yield ("script", name), name, script

    def list_known_targets(self, script: str) -> tuple[str, ...]:
        """Return the script's targets, less unknown ones, which are reported elsewhere."""
        return tuple(t for t in self.manifest.targets_of(script) if t in self.manifest.targets)


def _get_member(at: Any, part: str | int) -> Any:
    if isinstance(at, dict):
        return at.get(part)
    if isinstance(at, list) and isinstance(part, int) and part < len(at):
        return at[part]
    if part == 0 and isinstance(at, str | int):
        return at  # one value where several may be
    return None
