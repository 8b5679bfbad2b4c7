"""Reads `dispatch_table.json`: the programs that serve sizes on a device, as measured.

    {"schema": 2, "keys": ["m", "n"],
     "tables": [{"fingerprint": {"script": …, "device": …, "arch": …},
                 "entries": [[[16, 4096], 3, 1.2e-05, [9, 4096], null, false, [0]], …],
                 "fitted": [{"source": "2e-06 + 3e-09 * m", "cost": […], "program": 3}, …]}],
     "refused": […]}

An entry has the buckets of the keys, the program's number, the seconds of a call and its sizes, the
file of the repository that has the row, if one has, whether the row is for earlier code, and the
next best programs, for calls that the program does not serve. `fitted` has costs over the
keys, for buckets without an entry (`dispatch fit`). A table holds when each field
of its fingerprint equals that of the device in use. `refused` lists the programs that are chosen
nowhere (`runtime/table_file.py`). The builder writes the file (`dispatch/measurements.py`).
Packages bring it, so everything in it is checked.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import CorruptCacheError, LoadError, make_read_error
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import FittedCost, Script, parse_fitted_cost
from tilusbuild.runtime.semantics import INT64_MAX, INT64_MIN
from tilusbuild.runtime.table_file import Refusal, parse_refusals

FILE = "dispatch_table.json"
SCHEMA = 2
_LIMIT = 64 << 20
"""Bytes of the file that are read."""


class TableEntry(NamedTuple):
    """One row."""

    key: tuple[int, ...]
    program: int
    seconds: float
    sizes: tuple[int, ...]
    """The sizes of the measured calls, which stand for all of the bucket."""
    origin: str | None = None
    """The file of the repository that has the row; None for a row of a cache."""
    is_earlier: bool = False
    """Whether other code was measured: the program has changed since."""
    others: tuple[int, ...] = ()
    """The next best programs, the best first, for calls that `program` does not serve."""

    @property
    def origin_text(self) -> str:
        """Return the origin, or that the row is for earlier code, in parentheses; else ""."""
        if self.origin is not None:
            return f" ({self.origin})"
        return " (earlier code)" if self.is_earlier else ""


class DeviceTable(NamedTuple):
    """The rows for one device."""

    fingerprint: Mapping[str, str]
    entries: tuple[TableEntry, ...] = ()
    fitted: tuple[FittedCost, ...] = ()
    """The program of the least cost serves buckets without an entry."""

    @property
    def programs(self) -> frozenset[int]:
        """Return the programs that the table can choose."""
        measured = {number for entry in self.entries for number in (entry.program, *entry.others)}
        return frozenset(measured.union(cost.program for cost in self.fitted))

    def explain_mismatch(self, fingerprint: Mapping[str, str]) -> str | None:
        """Return the field of the fingerprint that differs; None when the table holds."""
        for field, value in self.fingerprint.items():
            if fingerprint.get(field) != value:
                return f"{field} is {value!r}, not {fingerprint.get(field)!r}"
        return None


class TableFile(NamedTuple):
    """The content of `dispatch_table.json`."""

    tables: tuple[DeviceTable, ...] = ()
    refused: tuple[Refusal, ...] = ()


def read_dispatch_table(script: Script) -> TableFile:
    """Return the content of a script's `dispatch_table.json`; an empty `TableFile` without the
    file. Raises `CorruptCacheError`."""
    path = os.path.join(script.path, FILE)
    try:
        data = read_bytes(path, _LIMIT)
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


_MEND = "`tilusbuild build` makes a new one"


def select_table(
    script: Script, tables: tuple[DeviceTable, ...], device: Device
) -> DeviceTable | None:
    """Return the first table that holds on the device. If none does, return None if each has
    programs, and all of its entries an origin (a repository's); otherwise raise `LoadError`."""
    fingerprint = device.make_fingerprint(script.hash)
    reasons = []
    for table in tables:
        reason = table.explain_mismatch(fingerprint)
        if reason is None:
            return table
        # Rows of a repository for other devices are not a mistake: it keeps them for all.
        if not table.programs or any(entry.origin is None for entry in table.entries):
            reasons.append(reason)
    if reasons:
        raise LoadError(
            f"{os.path.join(script.path, FILE)}: no table holds on {device}: {'; '.join(reasons)}"
        )
    return None


def _parse_tables(script: Script, path: str, value: Any) -> tuple[DeviceTable, ...]:
    """Return the tables in the file's JSON value. Raises `CorruptCacheError` for a row of a program
    that is not built, and `LookupError`, `TypeError` or `ValueError` for another form."""
    if not isinstance(value, dict) or value["schema"] != SCHEMA:
        raise ValueError(f"not of schema {SCHEMA}")
    # A build writes the file without tables for every script, so an edit of the keys meets one.
    if value["tables"] and tuple(value["keys"]) != script.keys:
        raise ValueError(f"its keys are {value['keys']}, the script's {list(script.keys)}")
    return tuple(
        DeviceTable(
            _parse_fingerprint(table["fingerprint"]),
            _parse_entries(script, path, table["entries"]),
            tuple(
                parse_fitted_cost(cost, script.keys, script.programs)
                for cost in table.get("fitted", [])
            ),
        )
        for table in value["tables"]
    )


def _parse_fingerprint(value: Any) -> Mapping[str, str]:
    """Return the value after a check of its form. Raises `TypeError` and `ValueError`."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError("a fingerprint maps fields to strings")
    if missing := {"script", "device", "arch"} - value.keys():
        raise ValueError(f"a fingerprint is missing {sorted(missing)}")
    return value


def _parse_entries(script: Script, path: str, rows: Any) -> tuple[TableEntry, ...]:
    """Return the rows of a table. Raises as `_parse_tables`."""
    entries: dict[tuple[int, ...], TableEntry] = {}
    for key, program, seconds, sizes, origin, is_earlier, others in rows:
        _check_sizes(script, key, "is not a key")
        _check_sizes(script, sizes, "are not sizes")
        if tuple(key) in entries:
            raise ValueError(f"{key!r:.80} appears twice")
        if type(program) is not int or not isinstance(origin, str | None):
            raise ValueError(f"no entry: {key!r:.80}")
        if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
            raise ValueError(f"no time: {seconds!r:.80}")
        for number in (program, *others):
            if number not in script.programs or number in script.not_built:
                status = f"which is {script.not_built.get(number)}"
                problem = status if number in script.programs else "and there is none"
                raise CorruptCacheError(
                    f"{path}: sizes {key} choose program {number}, {problem}\n  {_MEND}"
                )
        values = (tuple(key), program, seconds, tuple(sizes), origin, is_earlier is True)
        entries[tuple(key)] = TableEntry(*values, tuple(others))
    return tuple(entries.values())


def _check_sizes(script: Script, sizes: Any, problem: str) -> None:
    """Raise `ValueError` unless there is one int64 for each dispatch key, `TypeError` for a value
    without a length. `problem` is a part of the message."""
    if len(sizes) != len(script.keys) or not all(map(_is_size, sizes)):
        raise ValueError(f"{sizes!r:.80} {problem} of {list(script.keys)}")


def _is_size(value: object) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX
