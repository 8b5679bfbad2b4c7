"""What tuning measured, kept in `latency/<key>/`: for programs to read, and as a report for people.

`<key>` is the buckets of the dispatch keys joined by `-`. `measured.json` has a section a device:

    {"schema": 1, "keys": ["m", "n"], "key": [16, 4096],
     "measured": [{"fingerprint": {…}, "seconds": {"0": 1.2e-05}, "refused": {"3": "wrong"}}]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.dispatch.tables import alone
from tilusbuild.runtime.errors import CorruptTableError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import TableEntry
from tilusbuild.state.directories import make_below
from tilusbuild.state.files import sweep, write_atomic
from tilusbuild.table import Cell, table

DIRECTORY, FILE, REPORT = layout.LATENCY, "measured.json", layout.LATENCY_REPORT
SCHEMA = 1
TIE = 0.01
"""Programs within this share of the best are as good: the earlier one is chosen."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of programs at one key on one device, and why others have none."""

    fingerprint: Mapping[str, str]
    key: tuple[int, ...]
    seconds: Mapping[int, float]
    refused: Mapping[int, str] = field(default_factory=dict)

    def best(self, among: frozenset[int] | None = None) -> TableEntry | None:
        """Return the entry for a dispatch table; None when nothing (of `among`) was measured."""
        times = {p: s for p, s in self.seconds.items() if among is None or p in among}
        if not times:
            return None
        bound = min(times.values()) * (1 + TIE)
        program = min(program for program, seconds in times.items() if seconds <= bound)
        return TableEntry(self.key, program, "measured", times[program])


def write(script: Script, measured: Measured) -> None:
    """Keep a measurement; it replaces the one of the same device. Raises `OSError`."""
    directory = directory_of(measured.key)
    make_below(script.path, *directory.split("/"))
    path = os.path.join(script.path, directory, FILE)
    with alone(script):
        _write(script, path, measured)


def directory_of(key: Sequence[int]) -> str:
    """Return where the measurements of a key are, in a script's directory."""
    return f"{DIRECTORY}/{'-'.join(map(str, key)) or 'all'}"


def _write(script: Script, path: str, measured: Measured) -> None:
    others = [m for m in _read(path, script) if dict(m.fingerprint) != dict(measured.fingerprint)]
    sweep(os.path.dirname(path))
    for name, data in texts(script, measured.key, [*others, measured]).items():
        write_atomic(os.path.join(os.path.dirname(path), name), data)


def texts(script: Script, key: Sequence[int], found: Sequence[Measured]) -> dict[str, bytes]:
    """Return the files of a key, in the order in which they are written; `found` has one
    measurement a device."""
    value = {
        "schema": SCHEMA,
        "keys": list(script.keys),
        "key": list(key),
        "measured": [
            {
                "fingerprint": dict(each.fingerprint),
                "seconds": {str(p): s for p, s in sorted(each.seconds.items())},
                "refused": {str(p): why for p, why in sorted(each.refused.items())},
            }
            for each in found
        ],
    }
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    return {REPORT: _report(script, found).encode(), FILE: text.encode()}


def read(script: Script) -> list[Measured]:
    """Return everything measured of a script, on every device, by key. Raises
    `CorruptTableError`."""
    directory = os.path.join(script.path, DIRECTORY)
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    found = [m for name in names for m in _read(os.path.join(directory, name, FILE), script)]
    return sorted(found, key=lambda measured: measured.key)


def _read(path: str, script: Script) -> list[Measured]:
    try:
        value: Any = json.loads(read_bytes(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CorruptTableError(f"{path} cannot be read: {error}") from None
    try:
        if value["schema"] != SCHEMA or tuple(value["keys"]) != script.keys:
            return []  # of other keys: it says nothing of this script any more
        return [
            Measured(
                dict(each["fingerprint"]),
                tuple(int(size) for size in value["key"]),
                {int(program): float(seconds) for program, seconds in each["seconds"].items()},
                {int(program): str(why) for program, why in each["refused"].items()},
            )
            for each in value["measured"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptTableError(f"{path} is malformed: {error}") from None


def _report(script: Script, measured: Sequence[Measured]) -> str:
    parts = []
    for each in measured:
        fingerprint = ", ".join(f"{k} {v}" for k, v in sorted(each.fingerprint.items()))
        times: list[tuple[int, float | None, str]] = [
            (program, seconds, "")
            for program, seconds in sorted(each.seconds.items(), key=lambda item: item[1])
        ]
        times += [(program, None, why) for program, why in sorted(each.refused.items())]
        rows: list[tuple[Cell, ...]] = [
            (
                program,
                *script.schedule(program).values(),
                None if seconds is None else f"{seconds * 1e3:.4f}",
                why,
            )
            for program, seconds, why in times
        ]
        heads = ("index", *script.schedules, "latency (ms)", "refused")
        parts.append(f"{fingerprint}\n\n{table(heads, rows)}")
    return "\n".join(parts)
