"""`dispatch_table.json`: which program serves which sizes, and on which device that holds.

    {"schema": 1, "keys": ["m", "n"],
     "tables": [{"fingerprint": {"script": …, "device": …, "arch": …},
                 "entries": [[[16, 4096], 3, "measured", 1.2e-05, [9, 4096]], …]}],
     "refused": […]}

An entry is the buckets of the keys, the program's number, where the choice comes from ("measured",
or "table" for a row by hand), and where they are known the seconds of a call and the sizes of that
call. A table holds when each field of its fingerprint is that of the device in use, or "*".
`refused`, which may be missing, are the programs that are chosen nowhere (`runtime/table_file.py`).
People edit this file: it has no seal, and everything in it is checked.

A script's description may have tables, too, below "committed": those that its repository keeps. A
call is served by both; where both have a row for a device and a bucket, by the file's, which was
measured here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime import script as script_file
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.regular import open_file
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.semantics import INT64_MAX, INT64_MIN
from tilusbuild.runtime.table_file import FILE, LIMIT, Refusal, explain_refusals, parse_refusals

SCHEMA = 1
SOURCES = ("table", "measured")
"""Where a row can come from, by number in C."""


class TableEntry(NamedTuple):
    """One row."""

    key: tuple[int, ...]
    program: int
    source: str
    seconds: float | None
    measured_sizes: tuple[int, ...] | None = None
    """The sizes that it was measured at: they stand for all of the bucket."""
    origin: str | None = None
    """The file of the repository that it is from; None for a row of this directory's own."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """What people call the row: where it was measured, else its bucket."""
        return self.key if self.measured_sizes is None else self.measured_sizes

    @property
    def origin_text(self) -> str:
        """Return where it is from, to be put behind what is said of it."""
        return "" if self.origin is None else f" ({self.origin})"


class DeviceTable(NamedTuple):
    """What was found out on one device."""

    fingerprint: Mapping[str, str]
    entries: tuple[TableEntry, ...]

    def explain_mismatch(self, fingerprint: Mapping[str, str]) -> str | None:
        """Return which field is another one; None when the table holds here."""
        for field, value in self.fingerprint.items():
            if value != "*" and fingerprint.get(field) != value:
                return f"{field} is {value!r}, not {fingerprint.get(field)!r}"
        return None


class TableFile(NamedTuple):
    """What `dispatch_table.json` says."""

    tables: tuple[DeviceTable, ...] = ()
    refused: tuple[Refusal, ...] = ()


def read_serving_tables(script: Script) -> TableFile:
    """Return what serves calls: what the file says, and what is committed. Raises
    `CorruptCacheError`."""
    table_file = read_dispatch_table(script)
    return table_file._replace(tables=merge_committed(script, table_file))


def merge_committed(script: Script, own: TableFile) -> tuple[DeviceTable, ...]:
    """Return tables with the rows that are committed for other buckets, of programs that there are
    and that are not refused. Raises `CorruptCacheError`."""
    if script.committed is None:
        return own.tables
    path = os.path.join(script.path, script_file.FILE)
    excluded = explain_refusals(script.programs, own.refused).keys() | script.not_built.keys()
    try:
        origin = str(script.committed["from"])
        merged = []
        for each in script.committed["tables"]:
            fingerprint = _parse_fingerprint(each["fingerprint"])
            entries = _parse_entries(
                script, path, [row for row in each["entries"] if row[1] not in excluded]
            )
            rows = {row.key: row._replace(origin=origin) for row in entries}
            first = next((t for t in own.tables if t.explain_mismatch(fingerprint) is None), None)
            rows |= {row.key: row for row in first.entries} if first is not None else {}
            merged += (
                [DeviceTable(fingerprint, tuple(rows[key] for key in sorted(rows)))] if rows else []
            )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptCacheError(f"{path} is malformed: {type(error).__name__}: {error}") from None
    fingerprints = [table.fingerprint for table in merged]
    return (*merged, *(table for table in own.tables if table.fingerprint not in fingerprints))


def read_dispatch_table(script: Script) -> TableFile:
    """Return all that a script's file says; nothing without one. Raises `CorruptCacheError`."""
    path = os.path.join(script.path, FILE)
    try:
        with open_file(path) as file:
            data = file.read(LIMIT + 1)
    except FileNotFoundError:
        return TableFile()
    except OSError as error:
        raise CorruptCacheError(f"{path} cannot be read: {error.strerror}") from None
    try:
        if len(data) > LIMIT:
            raise ValueError("larger than any table")
        value = json.loads(data)
        return TableFile(
            _parse_tables(script, path, value), parse_refusals(value.get("refused", []))
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CorruptCacheError(f"{path} is not a dispatch table: {why}\n  {_MEND}") from None


_MEND = "fix or delete it; `tilusbuild tune` makes a new one"


def select_table(
    script: Script, tables: tuple[DeviceTable, ...], device: Device
) -> DeviceTable | None:
    """Return the first that holds on the device; None when there is none at all.

    Raises `LoadError` when there are tables of the file and none of them holds.
    """
    fingerprint = device.make_fingerprint(script.hash)
    reasons = []
    for table in tables:
        reason = table.explain_mismatch(fingerprint)
        if reason is None:
            return table
        if not table.entries or any(entry.origin is None for entry in table.entries):
            reasons.append(reason)
    if reasons:
        raise LoadError(
            f"{os.path.join(script.path, FILE)}: no table holds on {device}: {'; '.join(reasons)}"
        )
    return None


def _parse_tables(script: Script, path: str, value: Any) -> tuple[DeviceTable, ...]:
    if not isinstance(value, dict) or value["schema"] != SCHEMA:
        raise ValueError("not of schema 1")
    if tuple(value["keys"]) != script.keys:
        if value["tables"]:
            raise ValueError(f"its keys are {value['keys']}, the script's {list(script.keys)}")
        return ()
    return tuple(
        DeviceTable(
            _parse_fingerprint(table["fingerprint"]), _parse_entries(script, path, table["entries"])
        )
        for table in value["tables"]
    )


def _parse_fingerprint(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("a fingerprint maps fields to strings")
    missing = {"script", "device", "arch"} - value.keys()
    if missing:
        raise ValueError(f'a fingerprint is missing {sorted(missing)}; "*" matches any')
    return value


def _parse_entries(script: Script, path: str, rows: Any) -> tuple[TableEntry, ...]:
    entries: dict[tuple[int, ...], TableEntry] = {}
    for row in rows:
        key, program, source = row[0], row[1], row[2] if len(row) > 2 else "measured"
        seconds = row[3] if len(row) > 3 else None
        measured_sizes = row[4] if len(row) > 4 else None
        if len(key) != len(script.keys) or not all(map(_is_size, key)):
            raise ValueError(f"{key!r:.80} is not a key of {list(script.keys)}")
        if measured_sizes is not None and (
            len(measured_sizes) != len(key) or not all(map(_is_size, measured_sizes))
        ):
            raise ValueError(f"{measured_sizes!r:.80} are not sizes of {list(script.keys)}")
        if tuple(key) in entries:
            raise ValueError(f"{key!r:.80} appears twice")
        if type(program) is not int or source not in SOURCES:
            raise ValueError(f"no entry: {row!r:.80}")
        is_number = isinstance(seconds, int | float) and type(seconds) is not bool
        if seconds is not None and not (is_number and 0 <= seconds < math.inf):
            raise ValueError(f"no time: {row!r:.80}")
        if program not in script.programs:
            raise CorruptCacheError(
                f"{path}: sizes {key} choose program {program}, and there is none\n  {_MEND}"
            )
        if program in script.not_built:
            raise CorruptCacheError(
                f"{path}: sizes {key} choose program {program}, which is"
                f" {script.not_built[program]}\n  {_MEND}"
            )
        entries[tuple(key)] = TableEntry(
            tuple(key), program, source, seconds, measured_sizes and tuple(measured_sizes)
        )
    return tuple(entries.values())


def _is_size(value: object) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX
