"""The scans of headers by the digest of their text, so that a plan reads only headers that are new.

A scan follows from the text alone, whatever project it is of and wherever it lies.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Raw, msgpack

from tilusbuild.render.preprocessor import Scan
from tilusbuild.state.envelope import Envelope

_ENVELOPE = Envelope("scans")
_MAX_UNUSED_RATIO = 4
"""If a file has more than this many times the scans that a run used, only the used ones stay."""


class ScanMemory:
    """The known scans. With a path they outlive the process, in a file that the first `get_scan`
    or `put_scan` reads and only `save_scans` writes."""

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
        scans = self._load_scans()
        encoded_scans = {}
        # Unused scans are of other projects, or of headers that were edited and may come back.
        used_digests = self._used_digests & scans.keys()
        keeps_all = len(scans) <= _MAX_UNUSED_RATIO * len(used_digests)
        for digest in scans.keys() if keeps_all else used_digests:
            # A scan of text that is not UTF-8 cannot be encoded, and is left out.
            with suppress(UnicodeEncodeError):
                encoded_scans[digest] = Raw(msgpack.encode(scans[digest]))
        _ENVELOPE.save_value(self._path, encoded_scans)
        self._changed = False

    def _load_scans(self) -> dict[str, Scan]:
        """Return the known scans by digest; the first call reads the file."""
        if self._scans is None:
            stored_scans = None
            if self._path is not None:
                stored_scans = _ENVELOPE.load_value(self._path, dict[str, Scan])
            self._scans = stored_scans or {}
        return self._scans
