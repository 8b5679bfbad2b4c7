"""What `dispatch_table.json` says that can be read without its script: the keys that its tables
were made for, and the programs that are chosen nowhere, because they computed wrong or crashed, at
whatever sizes. `runtime/tables.py` reads the rest.

    "refused": [{"program": "<hash>", "status": "incorrect", "sizes": {"n": 1000},
                 "why": "y[3] is 7, expected 6; …", "judge": "<digest of the reference>"}]

Those are known by the program's hash, so they hold until the program is another one: no table,
rule, model or default makes up for a wrong result. A hash that a script does not have is kept and
says nothing of it.
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
    """Return the dispatch keys that the tables in a script's directory were made for; None where
    there are none, or none that can be read."""
    try:
        data = read_bytes(os.path.join(path, FILE), LIMIT)
        # As text: most directories were not tuned.
        return tuple(map(str, json.loads(data)["keys"])) if b'"fingerprint"' in data else None
    except (OSError, LookupError, TypeError, ValueError, RecursionError):
        return None


class Refusal(NamedTuple):
    """Why a program is not chosen until it is rebuilt."""

    program: str
    """Its hash."""
    status: str
    sizes: Mapping[str, bool | int | float | str]
    why: str
    judge: str = ""
    """The digest of what it was judged by; "" where that is not known."""

    @property
    def text(self) -> str:
        """Return what it came to, and where, for people."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.status} at {sizes or 'no sizes'}" + (f": {self.why}" if self.why else "")

    def to_json(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {**self._asdict(), "sizes": dict(self.sizes)}


def parse_refusals(rows: Any) -> tuple[Refusal, ...]:
    """Return what a file says. Raises `KeyError`, `TypeError` and `ValueError` for another form."""
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
    """Return why programs of a script are refused, by their numbers."""
    reasons = {refusal.program: refusal.text for refusal in refusals}
    return {i: reasons[digest] for i, digest in programs.items() if digest in reasons}
