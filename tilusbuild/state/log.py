"""A small persistent map from text to JSON values that survives anything: an append-only log.

The file is the head line and frames of `tilusbuild.state.envelope`, each with one line of JSON: an
object with some of the map's entries. Later frames win. A file that is damaged or cut short counts
up to the damage and is rewritten by the next save; one of another version is replaced; one that
cannot be written is left alone. A save appends one frame with a single write, so that several
builders may share a file; when the log has grown to several times its content it is rewritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tilusbuild.runtime.regular import open_regular, read_bytes
from tilusbuild.state import envelope
from tilusbuild.state.directories import make_unlinked
from tilusbuild.state.files import write_atomic

_VERSION = 1
_SLACK = 4
"""The log may hold so many times more records than the map before it is rewritten."""
_SMALL = 1000
"""A log with fewer records is not worth rewriting."""


def header(kind: str) -> bytes:
    """Return the first line of a log of this kind."""
    return envelope.head(f"state {_VERSION} {kind}")


def frame(records: dict[str, Any]) -> bytes:
    """Return records as they stand in the file."""
    return envelope.frame(json.dumps(records, separators=(",", ":")).encode())


class StateFile:
    """The map in one file, read on first use; without a path, in memory. One thread at a time."""

    def __init__(self, path: str | None, kind: str) -> None:
        self.path = path
        self._header = header(kind)
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
        write_atomic(path, self._header + frame(records))
        self._rewrite = False
        self._logged = len(records)

    def _append(self, path: str) -> None:
        # One write to a file opened for appending: builders that share the file do not mix frames.
        data = frame(self._unsaved)
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
            for body, behind in envelope.frames(data, end):
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
