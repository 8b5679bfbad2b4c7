"""The scans of headers by the digest of their text, so that a plan reads only headers that are new.

A scan follows from the text alone, whatever project it is of and wherever it lies.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Raw, msgpack

from tilusbuild.render.preprocessor import Scan
from tilusbuild.state.envelope import Envelope

_ENVELOPE = Envelope("scans")
_SLACK = 4
"""Where the file has so many times more than a run asked for, the rest is left out."""


class ScanMemory:
    """The scans that are known. With a path they outlive the process, in a file that the first
    question reads and only `save_scans` writes."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._scans: dict[str, Scan] | None = None
        self._used_digests: set[str] = set()
        self._changed = False

    def get_scan(self, digest: str) -> Scan | None:
        """Return the scan of the text with this sha256, or None. The scan counts as used."""
        self._used_digests.add(digest)
        return self._load_scans().get(digest)

    def put_scan(self, digest: str, scan: Scan) -> None:
        """Keep the scan of the text with this sha256."""
        self._used_digests.add(digest)
        self._load_scans()[digest] = scan
        self._changed = True

    def save_scans(self) -> None:
        """Write the scans to the file if any is new; do nothing without a path, or where the file
        cannot be written."""
        if not self._changed or self._path is None:
            return
        known = self._load_scans()
        texts = {}
        # The rest is of other projects, or of headers that were edited, which may come back.
        used = self._used_digests & known.keys()
        kept = known.keys() if len(known) <= _SLACK * len(used) else used
        for digest in kept:
            with suppress(UnicodeEncodeError):  # of text that is not UTF-8
                texts[digest] = Raw(msgpack.encode(known[digest]))
        _ENVELOPE.save_value(self._path, texts)
        self._changed = False

    def _load_scans(self) -> dict[str, Scan]:
        """Return the known scans by digest; the first call reads the file."""
        if self._scans is None:
            known = (
                None if self._path is None else _ENVELOPE.load_value(self._path, dict[str, Scan])
            )
            self._scans = known or {}
        return self._scans
