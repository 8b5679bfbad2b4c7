"""Reads the parts of `dispatch_table.json` that need no script: the keys, and refused programs.

    "refused": [{"program": "<hash>", "status": "incorrect", "sizes": {"n": 1000},
                 "why": "y[3] is 7, expected 6; …", "judge": "<digest of the reference>"}]

Refused programs computed wrong or crashed at some sizes, and are chosen at no size: no table, rule,
model or default makes up for a wrong result. They are named by hash, so that a rebuilt program is
not refused. A hash that a script does not have is kept. `runtime/tables.py` reads the other parts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime.regular import read_bytes

FILE = "dispatch_table.json"
LIMIT = 64 << 20
"""Bytes of the file that are read."""


def read_measured_keys(path: str) -> tuple[str, ...] | None:
    """Return the dispatch keys of the tables in a script's directory; None without tables, and for
    an unreadable file."""
    try:
        data = read_bytes(os.path.join(path, FILE), LIMIT)
        # Searched as text first: most directories were not tuned.
        if b'"fingerprint"' not in data:
            return None
        return tuple(map(str, json.loads(data)["keys"]))
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        return None


class Refusal(NamedTuple):
    """The refusal of a program, which is not chosen until it is rebuilt."""

    program: str
    """The program's hash."""
    status: str
    sizes: Mapping[str, bool | int | float | str]
    why: str
    judge: str = ""
    """The digest of the reference; "" if it is not known."""

    @property
    def text(self) -> str:
        """Return the status, the sizes and the reason, for people."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.status} at {sizes or 'no sizes'}" + (f": {self.why}" if self.why else "")

    def to_json(self) -> dict[str, Any]:
        """Return the object of the file."""
        return {**self._asdict(), "sizes": dict(self.sizes)}


def parse_refusals(rows: Any) -> tuple[Refusal, ...]:
    """Return the first refusal of each program in the list `refused` of a table file. Raises
    `KeyError` and `TypeError` for any other form."""
    refusals: dict[str, Refusal] = {}
    if not isinstance(rows, list):
        raise TypeError('"refused" is not a list')
    for row in rows:
        texts = [row["program"], row["status"], row["why"], row.get("judge", "")]
        sizes = row["sizes"]
        if not all(isinstance(text, str) for text in texts) or not isinstance(sizes, dict):
            raise TypeError(f"not a refused program: {row!r:.80}")
        if not all(isinstance(size, bool | int | float | str) for size in sizes.values()):
            raise TypeError(f"not sizes: {sizes!r:.80}")
        program, status, why, judge = texts
        refusals.setdefault(program, Refusal(program, status, sizes, why, judge))
    return tuple(refusals.values())


def explain_refusals(programs: Mapping[int, str], refusals: Iterable[Refusal]) -> dict[int, str]:
    """Return the reason for each refused program of a script, by number. `programs` has the hashes
    by number."""
    reasons = {refusal.program: refusal.text for refusal in refusals}
    return {i: reasons[digest] for i, digest in programs.items() if digest in reasons}
