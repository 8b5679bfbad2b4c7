"""Reads `dispatch_table.json`: the programs that serve sizes on a device, as measured or by hand.

    {"schema": 1, "keys": ["m", "n"],
     "tables": [{"fingerprint": {"script": …, "device": …, "arch": …},
                 "entries": [[[16, 4096], 3, "measured", 1.2e-05, [9, 4096]], …]}],
     "refused": […]}

An entry has the buckets of the keys, the program's number, the source of the choice ("measured", or
"table" for a row by hand), and if known the seconds of a call and its sizes. A table holds when
each field of its fingerprint equals that of the device in use, or is "*". `refused`, which may be
missing, lists the programs that are chosen nowhere (`runtime/table_file.py`). People edit this
file: it has no seal, and everything in it is checked.

A script's description may have tables, too, below "committed": those of its repository. Both serve
calls. For a device and a bucket that both have, the file's row is used, which was measured here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime import script as script_file
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import CorruptCacheError, LoadError, make_read_error
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.semantics import INT64_MAX, INT64_MIN
from tilusbuild.runtime.table_file import FILE, LIMIT, Refusal, explain_refusals, parse_refusals

SCHEMA = 1
# The place of the program's number in a row of the file.
_PROGRAM = 1
SOURCES = ("table", "measured")
"""The sources of a row; `dispatch.c` has them by their index."""


class TableEntry(NamedTuple):
    """One row."""

    key: tuple[int, ...]
    program: int
    source: str
    seconds: float | None
    measured_sizes: tuple[int, ...] | None = None
    """The sizes of the measured calls, which stand for all of the bucket."""
    origin: str | None = None
    """The file of the repository that has the row; None for this directory's own."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the measured sizes, else the bucket: the row's name for people."""
        return self.key if self.measured_sizes is None else self.measured_sizes

    @property
    def origin_text(self) -> str:
        """Return the origin in parentheses; "" for a row of this directory's own."""
        return "" if self.origin is None else f" ({self.origin})"


class DeviceTable(NamedTuple):
    """The rows for one device."""

    fingerprint: Mapping[str, str]
    entries: tuple[TableEntry, ...]

    def explain_mismatch(self, fingerprint: Mapping[str, str]) -> str | None:
        """Return the field of the fingerprint that differs; None when the table holds."""
        for field, value in self.fingerprint.items():
            if value != "*" and fingerprint.get(field) != value:
                return f"{field} is {value!r}, not {fingerprint.get(field)!r}"
        return None


class TableFile(NamedTuple):
    """The content of `dispatch_table.json`."""

    tables: tuple[DeviceTable, ...] = ()
    refused: tuple[Refusal, ...] = ()


def read_serving_tables(script: Script) -> TableFile:
    """Return a script's table file with the committed rows added to its tables. Raises
    `CorruptCacheError`."""
    table_file = read_dispatch_table(script)
    return table_file._replace(tables=add_committed_rows(script, table_file))


def add_committed_rows(script: Script, own: TableFile) -> tuple[DeviceTable, ...]:
    """Return the tables of the file with the committed rows added. For a device and a bucket that
    both have, the file's row stays. Committed rows of programs that are refused or not built are
    left out. Raises `CorruptCacheError`."""
    if script.committed is None:
        return own.tables
    path = os.path.join(script.path, script_file.FILE)
    excluded = explain_refusals(script.programs, own.refused).keys() | script.not_built.keys()
    # A row that is not what the builder writes shows in any of these errors.
    try:
        origin = str(script.committed["from"])
        merged = []
        for table in script.committed["tables"]:
            fingerprint = _parse_fingerprint(table["fingerprint"])
            usable_rows = [row for row in table["entries"] if row[_PROGRAM] not in excluded]
            entries = _parse_entries(script, path, usable_rows)
            rows = {row.key: row._replace(origin=origin) for row in entries}
            # The file's rows come over the committed ones. They are those of the first table that
            # holds on the device, which is the one that `select_table` would take.
            for own_table in own.tables:
                if own_table.explain_mismatch(fingerprint) is None:
                    rows |= {row.key: row for row in own_table.entries}
                    break
            if rows:
                merged.append(DeviceTable(fingerprint, tuple(rows[key] for key in sorted(rows))))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptCacheError(f"{path} is malformed: {type(error).__name__}: {error}") from None
    # Own tables with rows of the same device are in `merged`.
    fingerprints = [table.fingerprint for table in merged]
    return (*merged, *(table for table in own.tables if table.fingerprint not in fingerprints))


def read_dispatch_table(script: Script) -> TableFile:
    """Return the content of a script's `dispatch_table.json`; an empty `TableFile` without the
    file. Raises `CorruptCacheError`."""
    path = os.path.join(script.path, FILE)
    try:
        data = read_bytes(path, LIMIT)
    except FileNotFoundError:
        return TableFile()
    except OSError as error:
        raise make_read_error(path, error) from None
    try:
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
    """Return the first table that holds on the device. Without one return None, but raise
    `LoadError` when the file has tables."""
    fingerprint = device.make_fingerprint(script.hash)
    reasons = []
    for table in tables:
        reason = table.explain_mismatch(fingerprint)
        if reason is None:
            return table
        # Committed rows of other devices are not a mistake: the repository keeps them for all.
        if not table.entries or any(entry.origin is None for entry in table.entries):
            reasons.append(reason)
    if reasons:
        raise LoadError(
            f"{os.path.join(script.path, FILE)}: no table holds on {device}: {'; '.join(reasons)}"
        )
    return None


def _parse_tables(script: Script, path: str, value: Any) -> tuple[DeviceTable, ...]:
    """Return the tables in the file's JSON value. Raise `CorruptCacheError` for a row of a program
    that is not built, and `LookupError`, `TypeError` or `ValueError` for another form."""
    if not isinstance(value, dict) or value["schema"] != SCHEMA:
        raise ValueError("not of schema 1")
    # A build writes the file without tables for every script, so an edit of the keys meets one.
    if value["tables"] and tuple(value["keys"]) != script.keys:
        raise ValueError(f"its keys are {value['keys']}, the script's {list(script.keys)}")
    return tuple(
        DeviceTable(
            _parse_fingerprint(table["fingerprint"]), _parse_entries(script, path, table["entries"])
        )
        for table in value["tables"]
    )


def _parse_fingerprint(value: Any) -> Mapping[str, str]:
    """Return the value after a check of its form. Raise `TypeError` and `ValueError`."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("a fingerprint maps fields to strings")
    # Without one of these a person's table would hold on devices that it was not meant for.
    missing = {"script", "device", "arch"} - value.keys()
    if missing:
        raise ValueError(f'a fingerprint is missing {sorted(missing)}; "*" matches any')
    return value


def _parse_entries(script: Script, path: str, rows: Any) -> tuple[TableEntry, ...]:
    """Return the rows of a table. Raise as `_parse_tables`."""
    entries: dict[tuple[int, ...], TableEntry] = {}
    for row in rows:
        # A row has two to five items: [[16, 4096], 3, "measured", 1.2e-05, [9, 4096]]. Missing ones
        # get their defaults; items behind the fifth are ignored.
        defaults = _OPTIONAL[len(row) - 2 :]
        key, program, source, seconds, measured_sizes = (*row, *defaults)[:5]
        _check_sizes(script, key, "is not a key")
        if measured_sizes is not None:
            _check_sizes(script, measured_sizes, "are not sizes")
        if tuple(key) in entries:
            raise ValueError(f"{key!r:.80} appears twice")
        if type(program) is not int or source not in SOURCES:
            raise ValueError(f"no entry: {row!r:.80}")
        is_number = isinstance(seconds, int | float) and type(seconds) is not bool
        if seconds is not None and not (is_number and 0 <= seconds < math.inf):
            raise ValueError(f"no time: {row!r:.80}")
        if program not in script.programs or program in script.not_built:
            status = f"which is {script.not_built.get(program)}"
            problem = status if program in script.programs else "and there is none"
            raise CorruptCacheError(
                f"{path}: sizes {key} choose program {program}, {problem}\n  {_MEND}"
            )
        sizes = None if measured_sizes is None else tuple(measured_sizes)
        entries[tuple(key)] = TableEntry(tuple(key), program, source, seconds, sizes)
    return tuple(entries.values())


# The defaults of the source, the seconds and the sizes in a row.
_OPTIONAL = ("measured", None, None)


def _check_sizes(script: Script, sizes: Any, problem: str) -> None:
    """Raise `ValueError` unless there is one int64 for each dispatch key, `TypeError` for a value
    without a length. `problem` is a part of the message."""
    if len(sizes) != len(script.keys) or not all(map(_is_size, sizes)):
        raise ValueError(f"{sizes!r:.80} {problem} of {list(script.keys)}")


def _is_size(value: object) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX
