"""Which keys a script's dispatch tables were made for, without reading the tables.

A build asks it of every script that it looks at, so that this imports nothing that reads scripts,
tables or devices (`runtime/tables.py`).
"""

from __future__ import annotations

import json
import os

from tilusbuild.runtime.regular import read_bytes

FILE = "dispatch_table.json"
LIMIT = 64 << 20
"""Bytes of the file that are read."""


def measured_keys(path: str) -> tuple[str, ...] | None:
    """Return the dispatch keys that the tables in a script's directory were made for; None where
    there are none, or none that can be read."""
    try:
        data = read_bytes(os.path.join(path, FILE), LIMIT)
        # As text: most directories were not tuned.
        return tuple(map(str, json.loads(data)["keys"])) if b'"fingerprint"' in data else None
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        return None
