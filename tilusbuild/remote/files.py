"""A remote cache in a directory, of a network's file system say: `ac/<sha256>` and `cas/<sha256>`.

The layout is that of the HTTP cache, so that any web server can serve the directory. A file gets
its name by a rename, so what is there is whole, and what is there is never written again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from tilusbuild.remote.backend import Keep, RemoteTroubleError
from tilusbuild.remote.record import MAX_RECORD, Blob
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

    def check(self, *, write: bool) -> str:
        # Reading what is not there is no trouble; a directory that is not mounted would be, and
        # looks the same.
        if not os.path.isdir(self._root):
            if not write:
                raise RemoteTroubleError(f"{self._root} does not exist", retry=False)
            return f"the directory {self._root}, which is made when something is sent"
        if write and not os.access(self._root, os.W_OK):
            raise RemoteTroubleError(f"{self._root} cannot be written", retry=False)
        return f"the directory {self._root}"

    def results(self, keys: Sequence[Blob]) -> list[bytes | None]:
        names = [f"ac/{key.digest}" for key in keys]
        return [
            b"".join(self._pieces(name, MAX_RECORD)) if self._size(name) is not None else None
            for name in names
        ]

    def blobs(self, wanted: Collection[Blob], keep: Keep) -> None:
        for blob in wanted:
            if self._size(name := f"cas/{blob.digest}") is not None:
                keep(blob, self._pieces(name, blob.size))

    def missing(self, blobs: Collection[Blob]) -> Collection[Blob]:
        return [blob for blob in blobs if self._size(f"cas/{blob.digest}") != blob.size]

    def send(self, blobs: Mapping[Blob, bytes]) -> None:
        for blob, data in blobs.items():
            self._write(f"cas/{blob.digest}", data)

    def send_result(self, key: Blob, record: bytes) -> None:
        self._write(f"ac/{key.digest}", record)

    def close(self) -> None: ...

    def _size(self, name: str) -> int | None:
        """Return a file's bytes; None where there is none. What goes after that may pass."""
        with self._troubles(), suppress(FileNotFoundError, NotADirectoryError):
            return os.stat(os.path.join(self._root, name)).st_size
        return None

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        with self._troubles(), open_file(os.path.join(self._root, name)) as file:
            while most >= 0 and (piece := file.read(min(most + 1, _PIECE))):
                most -= len(piece)
                yield piece

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self._root, name)
        with self._troubles():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, data)

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RemoteTroubleError(f"{self._root}: {error.strerror or error}") from None
