"""The one form of files that only save work: a head line with the file's kind, a line with the
sha256 of the body and its length in bytes, the body, and a line feed.

An `Envelope` is such a file, a `StateFile` one whose body is a map; `VERSIONS` lists the kinds.
A state file is never the cause of an error: one that is missing, damaged, cut short, or of another
kind or version counts as missing, and one that cannot be written, or lies behind a link, is left
alone. A `StepStore` keeps in such files what programs share of a compile, so that it is made once:
the object of a launcher, the front end's output for a unit of kernels.

The price is that nothing can be found in such a file without reading it, and that writing one word
writes it all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tilusbuild.runtime.regular import try_read_bytes
from tilusbuild.state.directories import make_directory
from tilusbuild.state.files import open_atomic, sha256_bytes, sha256_text

Value = TypeVar("Value")
VERSIONS = {
    "caches": 1,
    "digests": 4,
    "history": 4,
    "manifest": 6,
    "needed": 4,
    "plan": 3,
    "published": 4,
    "scans": 2,
    "spaces": 4,
    "step": 3,
    "timeline": 4,
}
"""The version of each kind of state file. Raise the number with each change of a body's meaning:
files of earlier versions then count as missing. docs/formats.md has the same table."""


class Envelope:
    """Files of one kind, each with one checksummed body."""

    def __init__(self, kind: str) -> None:
        self._head = f"tilusbuild {kind} {VERSIONS[kind]}\n".encode()

    def wrap_body(self, body: bytes) -> bytes:
        """Return the content of a file that holds `body`."""
        # The size beside the digest is for people: `head -2` shows whether a file was cut.
        return b"%s%s %d\n%s\n" % (self._head, sha256_bytes(body).encode(), len(body), body)

    def unwrap_body(self, data: bytes) -> bytes | None:
        """Return the body of a file's content; None for content that is damaged, or of another kind
        or version."""
        # The body begins after the line of the digest, and ends before the last line feed. It is
        # wrapped again and compared with the whole content, so no part needs a check of its own.
        body = data[data.find(b"\n", len(self._head)) + 1 : -1]
        return body if data == self.wrap_body(body) else None

    def read_body(self, path: str) -> bytes | None:
        """Return the body of the file; None when it is missing, damaged, or of another kind or
        version."""
        data = try_read_bytes(path)
        return None if data is None else self.unwrap_body(data)

    def load_value(self, path: str, kind: type[Value]) -> Value | None:
        """Return the value that `save_value` wrote; None without a valid file of this type."""
        body = self.read_body(path)
        if body is None:
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError:
            return None

    def save_value(self, path: str, value: object, *, parents: bool = False) -> None:
        """Write a value as msgpack, as `write_body` does. Do nothing for a value with text that is
        not UTF-8."""
        with suppress(UnicodeEncodeError):
            self.write_body(path, msgspec.msgpack.encode(value), parents=parents)

    def write_body(self, path: str, body: bytes, *, parents: bool = False) -> None:
        """Write the file, and make its directory; with `parents` those above it, too. Do nothing
        where that is not possible. The file is not synced: after a power failure it may be
        damaged."""
        with suppress(OSError):
            if parents:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            make_directory(os.path.dirname(path))
            with open_atomic(path, durable=False) as file:
                file.write(self.wrap_body(body))


class StateFile:
    """A small persistent map from text to plain values: the file `kind` in `directory`, read on
    first use; without a directory, in memory. One thread at a time. Of several builders who save in
    the same instant, the last one's is kept."""

    def __init__(self, directory: str | None, kind: str) -> None:
        self._path = None if directory is None else os.path.join(directory, kind)
        self._envelope = Envelope(kind)
        self._records: dict[str, Any] | None = None
        self._unsaved: dict[str, Any] = {}

    def get_value(self, key: str) -> Any:
        """Return the value of a key; None without one. The file is not trusted: the caller checks
        the shape of the value."""
        return self._load_records().get(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield every key with its value."""
        yield from self._load_records().items()

    def put_value(self, key: str, value: Any) -> None:
        """Remember a value; the next `save_records` writes it."""
        self._load_records()[key] = value
        self._unsaved[key] = value

    @property
    def unsaved(self) -> int:
        """How many records wait for `save_records`."""
        return len(self._unsaved)

    def save_records(self, keep: Callable[[str], bool] = lambda _: True) -> None:
        """Write the new records beside those that others saved meanwhile, without the keys that
        `keep` refuses. Do nothing where that is not possible."""
        if self._path is not None and self._unsaved:
            # Read again: another builder may have saved since.
            all_records = {**self._load_records(), **self._read_records(), **self._unsaved}
            self._records = {key: value for key, value in all_records.items() if keep(key)}
            # As bytes: a key may have a path that is not UTF-8, which msgpack has no text for.
            raw_keys = [key.encode("utf-8", "surrogateescape") for key in self._records]
            body = dict(zip(raw_keys, self._records.values(), strict=True))
            self._envelope.save_value(self._path, body)
        self._unsaved = {}

    def _load_records(self) -> dict[str, Any]:
        if self._records is None:
            self._records = self._read_records()
        return self._records

    def _read_records(self) -> dict[str, Any]:
        if self._path is None:
            return {}
        body = self._envelope.load_value(self._path, dict[bytes, Any]) or {}
        return {key.decode("utf-8", "surrogateescape"): value for key, value in body.items()}


_ENVELOPE = Envelope("step")


class StepStore:
    """Outputs of compile steps by the digest of their inputs, in memory and in `directory`, which
    is made at the first write; with None in memory only. When there is a directory, at most
    `in_memory` bytes stay in memory: those that were used last."""

    def __init__(self, directory: str | None = None, *, in_memory: int | None = None) -> None:
        self.directory = directory
        self._in_memory = in_memory
        self._outputs: dict[str, bytes] = {}  # in the order of their last use
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @staticmethod
    def make_key(source: str, argv: tuple[str, ...], fingerprint: tuple[str, ...]) -> str:
        """Return the key of an output: the digest of the source, the command and the compiler's
        fingerprint."""
        return sha256_text("\0".join([source, *argv, *fingerprint]))

    def get_or_make(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the output of a key. Call `make`, once for all threads, when neither memory nor
        the directory has it. Raise the errors of `make`."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        # A lock for each key: programs with another launcher do not wait for this one.
        with lock:
            output = self._outputs.get(key)
            path = self._get_path(key)
            if output is None and path is not None:
                output = _ENVELOPE.read_body(path)
            if output is None:
                output = make()
                if path is not None:
                    _ENVELOPE.write_body(path, output)
            self._keep_in_memory(key, output)
            return output

    def _keep_in_memory(self, key: str, output: bytes) -> None:
        """Keep an output as the one that was used last. Drop others, the longest unused first,
        until `in_memory` bytes remain; without a directory, all stay."""
        with self._guard:
            self._outputs.pop(key, None)
            self._outputs[key] = output
            if self.directory is not None and self._in_memory is not None:
                total_size = sum(map(len, self._outputs.values()))
                while total_size > self._in_memory:
                    longest_unused = next(iter(self._outputs))
                    total_size -= len(self._outputs.pop(longest_unused))

    def drop_output(self, key: str) -> None:
        """Remove an output that proved unusable from memory and directory, so that the next compile
        makes it again. A file that cannot be removed stays."""
        with self._guard:
            self._outputs.pop(key, None)
        path = self._get_path(key)
        if path is not None:
            with suppress(OSError):
                make_directory(os.path.dirname(path))  # raises for a link: others' files stay
                os.unlink(path)

    def _get_path(self, key: str) -> str | None:
        return None if self.directory is None else os.path.join(self.directory, key + ".o")
