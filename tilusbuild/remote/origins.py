"""Which programs of a cache other machines made: for people, and to take back what was fetched.

State, and never in what is published: an entry is the same bytes wherever it was made. Without it
is unknown, and nothing else is lost.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.tree import Tree
from tilusbuild.process.base import Elsewhere
from tilusbuild.state.envelope import StateFile


class Origin(Struct, frozen=True):
    """A program's origin: a remote cache or, with `executed`, a server that had it compiled."""

    address: str
    executed: bool = False
    worker: str = ""
    """As the server calls it; "" where it does not say."""

    def __str__(self) -> str:
        if not self.executed:
            return f"fetched from {self.address}"
        return f"compiled by {f'{self.worker} of ' if self.worker else ''}{self.address}"


class Origins:
    """Of one cache. For one thread at a time."""

    def __init__(self, cache: Tree) -> None:
        self._cache = cache
        self._file = StateFile(cache.state_path, layout.ORIGINS)

    def of(self, program: str) -> Origin | None:
        """Return where a program is from; None: nothing but this machine is known of it."""
        match self._file.get(program):
            case str(address) if address:
                return Origin(address)
            case [str(address), str(worker)]:
                return Origin(address, True, worker)
        return None

    def fetched(self, programs: Collection[str], address: str) -> None:
        """Remember programs that came from an address."""
        for program in programs:
            self._file.put(program, address)

    def made(self, program: str, elsewhere: Elsewhere | None) -> None:
        """Remember who compiled a program, or forget where one of this name was from."""
        if elsewhere is not None:
            self._file.put(program, [elsewhere.address, elsewhere.worker])
        elif self.of(program) is not None:
            self._file.put(program, "")

    def take_back(self, address: str) -> None:
        """Remove from the cache all that came from an address. Raises `OSError`."""
        for program, found in list(self._file.items()):
            if found == address and layout.is_hash(program):
                self.remove(program)
                self._file.put(program, "")

    def remove(self, program: str) -> None:
        """Remove a program from the cache. Raises `OSError`."""
        self._cache.remove_entry(self._cache.program_path(program))

    def save(self) -> None:
        """Write what is new, where that is possible."""
        self._file.save(keep=lambda program: os.path.isdir(self._cache.program_path(program)))
