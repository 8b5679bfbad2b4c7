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
from tilusbuild.runtime.table_file import FILE, LIMIT, Refusal, by_number, read_refusals

SCHEMA = 1
SOURCES = ("table", "measured")
"""Where a row can come from, by number in C."""


class TableEntry(NamedTuple):
    """One row."""

    key: tuple[int, ...]
    program: int
    source: str
    seconds: float | None
    at: tuple[int, ...] | None = None
    """The sizes that it was measured at: they stand for all of the bucket."""
    origin: str | None = None
    """The file of the repository that it is from; None for a row of this directory's own."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """What people call the row: where it was measured, else its bucket."""
        return self.key if self.at is None else self.at

    @property
    def origin_text(self) -> str:
        """Return where it is from, to be put behind what is said of it."""
        return "" if self.origin is None else f" ({self.origin})"


class Table(NamedTuple):
    """What was found out on one device."""

    fingerprint: Mapping[str, str]
    entries: tuple[TableEntry, ...]

    def refusal(self, wanted: Mapping[str, str]) -> str | None:
        """Return which field is another one; None when the table holds here."""
        for field, value in self.fingerprint.items():
            if value != "*" and wanted.get(field) != value:
                return f"{field} is {value!r}, not {wanted.get(field)!r}"
        return None


class TableFile(NamedTuple):
    """What `dispatch_table.json` says."""

    tables: tuple[Table, ...] = ()
    refused: tuple[Refusal, ...] = ()


def serving(script: Script) -> TableFile:
    """Return what serves calls: what the file says, and what is committed. Raises
    `CorruptCacheError`."""
    found = read_dispatch(script)
    return found._replace(tables=with_committed(script, found))


def with_committed(script: Script, own: TableFile) -> tuple[Table, ...]:
    """Return tables with the rows that are committed for other buckets, of programs that there are
    and that are not refused. Raises `CorruptCacheError`."""
    if script.committed is None:
        return own.tables
    path = os.path.join(script.path, script_file.FILE)
    out = by_number(script.programs, own.refused).keys() | script.not_built.keys()
    try:
        origin = str(script.committed["from"])
        made = []
        for each in script.committed["tables"]:
            fingerprint = _fingerprint(each["fingerprint"])
            kept = _entries(script, path, [row for row in each["entries"] if row[1] not in out])
            rows = {row.key: row._replace(origin=origin) for row in kept}
            first = next((t for t in own.tables if t.refusal(fingerprint) is None), None)
            rows |= {row.key: row for row in first.entries} if first is not None else {}
            made += [Table(fingerprint, tuple(rows[key] for key in sorted(rows)))] if rows else []
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptCacheError(f"{path} is malformed: {type(error).__name__}: {error}") from None
    known = [table.fingerprint for table in made]
    return (*made, *(table for table in own.tables if table.fingerprint not in known))


def read_dispatch(script: Script) -> TableFile:
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
        return TableFile(_tables(script, path, value), read_refusals(value.get("refused", [])))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CorruptCacheError(f"{path} is not a dispatch table: {why}\n  {_MEND}") from None


_MEND = "fix or delete it; `tilusbuild tune` makes a new one"


def table_for(script: Script, tables: tuple[Table, ...], device: Device) -> Table | None:
    """Return the first that holds on the device; None when there is none at all.

    Raises `LoadError` when there are tables of the file and none of them holds.
    """
    wanted = device.fingerprint(script.hash)
    reasons = []
    for table in tables:
        reason = table.refusal(wanted)
        if reason is None:
            return table
        if not table.entries or any(entry.origin is None for entry in table.entries):
            reasons.append(reason)
    if reasons:
        raise LoadError(
            f"{os.path.join(script.path, FILE)}: no table holds on {device}: {'; '.join(reasons)}"
        )
    return None


def _tables(script: Script, path: str, value: Any) -> tuple[Table, ...]:
    if not isinstance(value, dict) or value["schema"] != SCHEMA:
        raise ValueError("not of schema 1")
    if tuple(value["keys"]) != script.keys:
        if value["tables"]:
            raise ValueError(f"its keys are {value['keys']}, the script's {list(script.keys)}")
        return ()
    return tuple(
        Table(_fingerprint(table["fingerprint"]), _entries(script, path, table["entries"]))
        for table in value["tables"]
    )


def _fingerprint(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("a fingerprint maps fields to strings")
    missing = {"script", "device", "arch"} - value.keys()
    if missing:
        raise ValueError(f'a fingerprint is missing {sorted(missing)}; "*" matches any')
    return value


def _entries(script: Script, path: str, rows: Any) -> tuple[TableEntry, ...]:
    found: dict[tuple[int, ...], TableEntry] = {}
    for row in rows:
        key, program, source = row[0], row[1], row[2] if len(row) > 2 else "measured"
        seconds = row[3] if len(row) > 3 else None
        at = row[4] if len(row) > 4 else None
        if len(key) != len(script.keys) or not all(map(_is_size, key)):
            raise ValueError(f"{key!r:.80} is not a key of {list(script.keys)}")
        if at is not None and (len(at) != len(key) or not all(map(_is_size, at))):
            raise ValueError(f"{at!r:.80} are not sizes of {list(script.keys)}")
        if tuple(key) in found:
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
        found[tuple(key)] = TableEntry(tuple(key), program, source, seconds, at and tuple(at))
    return tuple(found.values())


def _is_size(value: object) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX
