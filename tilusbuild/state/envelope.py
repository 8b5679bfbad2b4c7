"""The one form of files that only save work: a head line that says what the file is, then frames.

A frame is a line with the sha256 of its body and the body's length in bytes, the body, and a line
feed. An `Envelope` is a file with one frame; `tilusbuild.state.log` appends frames to its file.
Nothing about such a file is ever an error: one that is missing, damaged, cut short, or of another
kind or version is as good as none, and one that cannot be written, or lies behind a link, is left
alone. A `StepStore` keeps in such files what programs share of a compile, so that it is made once:
the object of a launcher, the front end's output for a unit of kernels.

The price is that nothing can be found in such a file without reading it, and that writing one word
writes it all; they are small, or a log.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.directories import make_unlinked
from tilusbuild.state.files import sha256_bytes, sha256_text, write_atomic

_DIGEST_DIGITS = 64
_MAX_LENGTH_DIGITS = 20


def head(title: str) -> bytes:
    """Return the first line of a file; `title` is its kind and version."""
    return f"tilusbuild {title}\n".encode()


def frame(body: bytes) -> bytes:
    """Return the frame of a body."""
    return f"{sha256_bytes(body)} {len(body)}\n".encode() + body + b"\n"


def frames(data: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield the body of each whole frame from `start` on, with the offset behind the frame.

    What follows a damaged frame is not trusted: where the next one begins is not known.
    """
    while start < len(data):
        line_end = data.find(b"\n", start, start + _DIGEST_DIGITS + _MAX_LENGTH_DIGITS)
        digest, _, length = data[start : max(line_end, start)].partition(b" ")
        if line_end < 0 or not length.isdigit():
            return
        end = line_end + 1 + int(length)
        body = data[line_end + 1 : end]
        if data[end : end + 1] != b"\n" or sha256_bytes(body).encode() != digest:
            return
        yield body, end + 1
        start = end + 1


class Envelope:
    """Files of one kind and version, each with one checksummed body."""

    def __init__(self, title: str) -> None:
        """`title` is the kind and the version, as in "plan 2": raise the number with each change of
        what the bodies mean, so that files of before count as missing."""
        self._head = head(title)

    def wrap(self, body: bytes) -> bytes:
        """Return the content of a file that holds `body`."""
        return self._head + frame(body)

    def unwrap(self, data: bytes) -> bytes | None:
        """Return the body; None when `data` is not a whole file of this kind and version."""
        if data.startswith(self._head):
            for body, end in frames(data, len(self._head)):
                return body if end == len(data) else None
        return None

    def read(self, path: str) -> bytes | None:
        """Return the body of the file; None when there is no such file."""
        try:
            return self.unwrap(read_bytes(path))
        except OSError:
            return None

    def write(self, path: str, body: bytes) -> None:
        """Write the file, and its directory if need be; do nothing where that is not possible."""
        with suppress(OSError):
            make_unlinked(os.path.dirname(path))
            write_atomic(path, self.wrap(body))


_ENVELOPE = Envelope("launcher 2")


class StepStore:
    """What steps of compiles made, by the digest of what it was made of: in memory and in
    `directory`, which is made when it is first written to; with None in memory only. Of what
    `directory` has, no more than `in_memory` bytes stay in memory: those that were used last."""

    def __init__(self, directory: str | None = None, *, in_memory: int | None = None) -> None:
        self.directory = directory
        self._in_memory = in_memory
        self._objects: dict[str, bytes] = {}  # the one that was used last is last
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
            self._keep(key, made)
            return made

    def _keep(self, key: str, made: bytes) -> None:
        with self._guard:
            self._objects.pop(key, None)
            self._objects[key] = made
            if self.directory is not None and self._in_memory is not None:
                total = sum(map(len, self._objects.values()))
                while total > self._in_memory:
                    total -= len(self._objects.pop(next(iter(self._objects))))

    def drop(self, key: str) -> None:
        """Forget the object, so that the next compile makes it again: using it went wrong."""
        with self._guard:
            self._objects.pop(key, None)
        if (path := self._path(key)) is not None:
            with suppress(OSError):
                make_unlinked(os.path.dirname(path))
                os.unlink(path)

    def _path(self, key: str) -> str | None:
        return None if self.directory is None else os.path.join(self.directory, key + ".o")
