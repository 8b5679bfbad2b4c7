"""The one form of files that only save work: a head line that says what the file is, then frames.

A frame is a line with the sha256 of its body and the body's length in bytes, the body, and a line
feed. An `Envelope` is a file with one frame, a `StateFile` a log that frames are appended to.
Nothing about such a file is ever an error: one that is missing, damaged, cut short, or of another
kind or version is as good as none, and one that cannot be written, or lies behind a link, is left
alone. A `StepStore` keeps in such files what programs share of a compile, so that it is made once:
the object of a launcher, the front end's output for a unit of kernels.

The price is that nothing can be found in such a file without reading it, and that writing one word
writes it all; they are small, or a log.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tilusbuild.runtime.regular import open_regular, read_bytes
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


# A log: a small persistent map from text to JSON values. Each frame is one line of JSON, an object
# with some of the map's entries; later frames win. What is damaged or cut short counts up to the
# damage and is rewritten by the next save. A save appends one frame with a single write, so that
# several builders may share a file; when the log has grown to several times its content it is
# rewritten.


_VERSION = 1
_SLACK = 4
"""The log may hold so many times more records than the map before it is rewritten."""
_SMALL = 1000
"""A log with fewer records is not worth rewriting."""


def log_head(kind: str) -> bytes:
    """Return the first line of a log of this kind."""
    return head(f"state {_VERSION} {kind}")


def log_frame(records: dict[str, Any]) -> bytes:
    """Return records as they stand in the file."""
    return frame(json.dumps(records, separators=(",", ":")).encode())


class StateFile:
    """The map in one file, read on first use; without a path, in memory. One thread at a time."""

    def __init__(self, path: str | None, kind: str) -> None:
        self.path = path
        self._header = log_head(kind)
        self._records: dict[str, Any] | None = None
        self._unsaved: dict[str, Any] = {}
        self._logged = 0
        self._rewrite = False

    def get(self, key: str) -> Any:
        """Return the value, or None. The caller checks its shape: the file is not to be trusted."""
        return self._loaded().get(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield every key with its value."""
        yield from self._loaded().items()

    def put(self, key: str, value: Any) -> None:
        """Remember a value; it is written by the next `save`."""
        self._loaded()[key] = value
        self._unsaved[key] = value

    @property
    def unsaved(self) -> int:
        """How many records wait for `save`."""
        return len(self._unsaved)

    def save(self, keep: Callable[[str], bool] | None = None) -> None:
        """Write what is new. When the file is rewritten, keys that `keep` refuses are left out."""
        if self.path is not None and self._unsaved:
            logged = self._logged + len(self._unsaved)
            with suppress(OSError):
                if self._rewrite or logged > max(_SMALL, _SLACK * len(self._loaded())):
                    self._replace(self.path, keep)
                else:
                    self._append(self.path)
                    self._logged = logged
        self._unsaved = {}

    def _replace(self, path: str, keep: Callable[[str], bool] | None) -> None:
        records = self._loaded()
        if keep is not None:
            records = self._records = {key: records[key] for key in records if keep(key)}
        make_unlinked(os.path.dirname(path))
        write_atomic(path, self._header + log_frame(records))
        self._rewrite = False
        self._logged = len(records)

    def _append(self, path: str) -> None:
        # One write to a file opened for appending: builders that share the file do not mix frames.
        data = log_frame(self._unsaved)
        handle = open_regular(path, os.O_WRONLY | os.O_APPEND, follow=False)
        try:
            self._rewrite = os.write(handle, data) != len(data)
        finally:
            os.close(handle)

    def _loaded(self) -> dict[str, Any]:
        if self._records is None:
            self._records = {}
            if self.path is not None:
                self._read(self.path, self._records)
        return self._records

    def _read(self, path: str, records: dict[str, Any]) -> None:
        try:
            data = read_bytes(path)
        except OSError:
            data = b""
        end = len(self._header)
        if data.startswith(self._header):
            for body, behind in frames(data, end):
                try:
                    found = json.loads(body)
                except ValueError:
                    break
                if not isinstance(found, dict):
                    break
                records.update(found)
                self._logged += len(found)
                end = behind
        # A missing file is "rewritten" too: that is how it comes to be.
        self._rewrite = end != len(data)


# What steps of compiles made.

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
