"""Launcher objects, each compiled once: in memory, and in a directory that later runs use too.

An object is known by its source, its flags and the compiler's fingerprint. A file that is torn or
altered counts as missing: its object is compiled again. Threads that ask for the same object wait
for the one that makes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_text

_ENVELOPE = Envelope("launcher 2")


class LauncherStore:
    """Objects by digest, in memory and in `directory`, which is made when it is first written
    to; with None in memory only."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory
        self._objects: dict[str, bytes] = {}
        self._making: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @staticmethod
    def key(source: str, argv: tuple[str, ...], fingerprint: tuple[str, ...]) -> str:
        """Return the name of an object: what it is made of, and by which compiler."""
        return sha256_text("\0".join(["launcher 1", source, *argv, *fingerprint]))

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the object, made by `make` if no run has made it yet. Raises what `make` does."""
        with self._guard:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            made = self._objects.get(key)
            path = self._path(key)
            if made is None and path is not None:
                made = _ENVELOPE.read(path)
            if made is None:
                made = make()
                if path is not None:
                    _ENVELOPE.write(path, made)
            self._objects[key] = made
            return made

    def _path(self, key: str) -> str | None:
        return None if self.directory is None else os.path.join(self.directory, key + ".o")
