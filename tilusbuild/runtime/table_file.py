"""Refused programs, as `dispatch_table.json` has them, and the choice among measured ones.

    "refused": [{"program": "<hash>", "status": "incorrect", "sizes": {"n": 1000},
                 "why": "y[3] is 7, expected 6; …", "judge": "<digest of the reference>"}]

Refused programs computed wrong or crashed at some sizes, and are chosen at no size: no table, rule,
model or default makes up for a wrong result. They are named by hash, so that a rebuilt program is
not refused. `runtime/tables.py` reads the other parts of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

INCORRECT = "incorrect"
"""The status of a program that computed wrong."""
_TIE = 0.01


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

    def is_at(self, sizes: Mapping[str, Any]) -> bool:
        """Return whether the program was refused at these sizes; it may know more of the call."""
        return sizes.items() <= self.sizes.items()

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


def is_overruled(refusal: Refusal, judge: str, sizes: Mapping[str, Any]) -> bool:
    """Return whether a right result at these sizes, by this judge (the digest of the reference and
    the tolerances), lifts a refusal."""
    # A crash does not depend on a judge; and the judge "" compares nothing, so it lifts nothing.
    # Other inputs, and another try with the same judge, lift nothing: an error may be rare.
    if refusal.status != INCORRECT or judge in ("", refusal.judge):
        return False
    return refusal.is_at(sizes)


def find_fastest(seconds: Mapping[int, float]) -> int | None:
    """Return the number of the program of the shortest time in seconds; of those within 1 % of it
    the smallest. Return None without times."""
    limit = min(seconds.values(), default=0.0) * (1 + _TIE)
    return min((number for number, time in seconds.items() if time <= limit), default=None)
