"""The engine's seam to where programs are kept; the cache tree implements it.

Called from several threads at once. A lookup takes no lock and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tilusbuild.status import Status


class Entry(Protocol):
    """What the store has under a hash. `meta` has a "reason" when the status is not "built"."""

    @property
    def status(self) -> Status: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


class Stage(Protocol):
    """A private folder in the store that becomes an entry at once, or never."""

    @property
    def path(self) -> str: ...

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> object:
        """Make the entry with this hash, durably. Raises `OSError`."""
        ...

    def discard(self) -> None: ...


class Store(Protocol):
    """Programs by their hash."""

    def lookup(self, program: str, /) -> Entry | None:
        """What is known of a program; None when there is nothing whole."""
        ...

    def locked(self, program: str, /, wait: bool) -> AbstractContextManager[bool]:
        """Be the only builder of a program; yields whether we are. The engine never waits here."""
        ...

    def stage(self) -> Stage:
        """A new empty stage. Raises `OSError`."""
        ...

    def program_path(self, program: str, /) -> str:
        """The folder that a published program has."""
        ...

    def log(self, program: str, /) -> str:
        """What the compiler printed for a published program; "" when there is nothing."""
        ...
