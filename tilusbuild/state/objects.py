"""Launcher objects, each compiled once: in memory, and in a folder that later runs use too.

An object is known by its source, its flags and the compiler's fingerprint. A file in the folder
ends with the digest of what stands before it: a torn or altered one is compiled again. Threads that
ask for the same object wait for the one that makes it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable

from tilusbuild.state.files import write_atomic
from tilusbuild.state.hashing import sha256_text


class LauncherStore:
    """Objects by digest. `folder` is made when it is first written; None keeps them in memory."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._objects: dict[str, bytes] = {}
        self._making: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @staticmethod
    def key(source: str, argv: tuple[str, ...], fingerprint: tuple[str, ...]) -> str:
        """The name of an object: what it is made of, and by which compiler."""
        return sha256_text("\0".join(["launcher 1", source, *argv, *fingerprint]))

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The object, made by `make` if no run has made it yet. What `make` raises is raised."""
        with self._guard:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            made = self._objects.get(key)
            if made is None:
                made = self._read(key)
            if made is None:
                made = make()
                self._write(key, made)
            self._objects[key] = made
            return made

    def _read(self, key: str) -> bytes | None:
        if self.folder is None:
            return None
        try:
            with open(os.path.join(self.folder, key + ".o"), "rb") as file:
                content = file.read()
        except OSError:
            return None
        data, digest = content[:-32], content[-32:]
        return data if hashlib.sha256(data).digest() == digest else None

    def _write(self, key: str, data: bytes) -> None:
        if self.folder is None:
            return
        try:
            os.makedirs(self.folder, exist_ok=True)
            content = data + hashlib.sha256(data).digest()
            write_atomic(os.path.join(self.folder, key + ".o"), content)
        except OSError:
            return  # a folder that cannot be written costs the next run a compile, nothing else
