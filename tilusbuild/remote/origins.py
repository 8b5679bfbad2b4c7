"""Which programs of a cache were fetched, and from where: for people, and to take them back.

State: without it nobody knows, and nothing else is lost.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from tilusbuild.cache import layout
from tilusbuild.cache.cache import Cache
from tilusbuild.state.log import StateFile


class Origins:
    """Of one cache. For one thread at a time."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._file = StateFile(os.path.join(cache.state_path, "fetched"), "fetched")

    def of(self, program: str) -> str | None:
        """Return the address that a program was fetched from; None for one that was made here."""
        found = self._file.get(program)
        return found if isinstance(found, str) and found else None

    def fetched(self, programs: Collection[str], address: str) -> None:
        """Remember programs that came from an address."""
        for program in programs:
            self._file.put(program, address)

    def made_here(self, program: str) -> None:
        """Forget where a program of this name came from before."""
        if self.of(program) is not None:
            self._file.put(program, "")

    def take_back(self, address: str) -> None:
        """Remove from the cache all that came from an address. Raises `OSError`."""
        for program, found in list(self._file.items()):
            if found == address and layout.is_hash(program):
                self.remove(program)
                self._file.put(program, "")

    def remove(self, program: str) -> None:
        """Remove a program from the cache. Raises `OSError`."""
        self._cache.tree.remove_entry(self._cache.program_path(program))

    def save(self) -> None:
        """Write what is new, where that is possible."""
        self._file.save(keep=lambda program: os.path.isdir(self._cache.program_path(program)))
