"""A remote cache in a directory, on a network's file system for example: `ac/<sha256>`.

The layout is that of the HTTP cache, so that any web server can serve the directory. A file gets
its name by a rename, so a reader never sees a part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from tilusbuild.remote.archive import key_digest
from tilusbuild.remote.backend import RemoteTroubleError, TakeFile
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import open_file
from tilusbuild.state.files import write_atomic

_PIECE = 1 << 20


class FileBackend:
    """The directory of a `file://` address."""

    batch = 16
    width = 4

    def __init__(self, settings: RemoteSettings) -> None:
        self._root = unquote(settings.path)

    def check_access(self, *, write: bool) -> str:
        """Return a text on the directory. Raises `RemoteTroubleError` if it cannot be written, with
        `write`, or does not exist, without."""
        # Reading what is not there is no trouble; a directory that is not mounted would be, and
        # looks the same.
        if not os.path.isdir(self._root):
            if not write:
                raise RemoteTroubleError(f"{self._root} does not exist", retry=False)
            return f"the directory {self._root}, which is made when something is sent"
        if write and not os.access(self._root, os.W_OK):
            raise RemoteTroubleError(f"{self._root} cannot be written", retry=False)
        return f"the directory {self._root}"

    def fetch_files(self, keys: Sequence[str], take: TakeFile) -> None:
        for key in keys:
            if self.has_file(key):
                take(key, self._read_pieces(key))

    def has_file(self, key: str) -> bool:
        # A directory that is not there has no files: the first one who sends makes it.
        with self._translate_errors(), suppress(FileNotFoundError, NotADirectoryError):
            os.stat(self._locate_file(key))
            return True
        return False

    def send_file(self, key: str, data: bytes) -> None:
        path = self._locate_file(key)
        # Synced before the rename: no half of an archive gets its name, also by a power failure.
        with self._translate_errors():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, data)

    def close(self) -> None: ...

    def _locate_file(self, key: str) -> str:
        return os.path.join(self._root, "ac", key_digest(key))

    def _read_pieces(self, key: str) -> Iterator[bytes]:
        # A file that is removed after `has_file` is trouble that may pass.
        with self._translate_errors(), open_file(self._locate_file(key)) as file:
            while piece := file.read(_PIECE):
                yield piece

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RemoteTroubleError(f"{self._root}: {error.strerror or error}") from None
