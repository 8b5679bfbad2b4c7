"""Reads and writes the measurements of tuning in `latency/<key>/`, and refuses wrong programs.

`<key>` is the buckets of the dispatch keys joined by `-`. `measured.json` has a section a device,
beside a report for people:

    {"schema": 1, "keys": ["m", "n"], "key": [16, 4096],
     "measured": [{"fingerprint": {…}, "at": [9, 4096], "seconds": {"0": 1.2e-05},
                   "refused": {"3": "wrong"}}]}

A program that computes wrong or crashes is refused in the table file (`runtime/table_file.py`) of
every script directory of the cache that lists it, because every choice reads that file. Measured
rows of a refused program go to the best of the others that were measured for them, or are removed.
A row by hand stays, and the runtime raises an error for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, convert, field

from tilusbuild.cache import layout
from tilusbuild.dispatch.tables import lock_tables
from tilusbuild.dispatch.tables import replace_tables as write_tables
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.regular import read_bytes, try_list, try_read_bytes
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, explain_refusals
from tilusbuild.runtime.tables import DeviceTable, TableEntry, read_dispatch_table
from tilusbuild.state.directories import make_directories_below
from tilusbuild.state.files import sweep_temporary_files, write_atomic
from tilusbuild.table import Cell, format_table, format_times

DIRECTORY, FILE, REPORT = layout.LATENCY, "measured.json", layout.LATENCY_REPORT
SCHEMA = 1
TIE = 0.01
"""Programs within this share of the best are as good: the earlier one is chosen."""


class Measurement(Struct, frozen=True):
    """The times of programs in one bucket on one device, and why others have none."""

    fingerprint: Mapping[str, str]
    key: tuple[int, ...]
    seconds: Mapping[int, float]
    refused: Mapping[int, str] = field(default_factory=dict)
    at: tuple[int, ...] | None = None
    """The sizes of the calls that were measured."""

    def find_best(self, excluded: Collection[int] = ()) -> TableEntry | None:
        """Return the table row of the fastest program that is neither refused nor excluded;
        None without one. Of ties the earliest wins."""
        # A program that was refused at any size of the bucket is left out: the row would serve that
        # size, too.
        candidates = {
            program: seconds
            for program, seconds in self.seconds.items()
            if program not in self.refused and program not in excluded
        }
        if not candidates:
            return None
        tie_limit = min(candidates.values()) * (1 + TIE)
        best = min(program for program, seconds in candidates.items() if seconds <= tie_limit)
        return TableEntry(self.key, best, "measured", candidates[best], self.at)


def write_measurement(script: Script, measured: Measurement) -> None:
    """Write a measurement and its report, in place of the same device's last one. Raises
    `OSError`."""
    relative_directory = name_directory(measured.key)
    make_directories_below(script.path, *relative_directory.split("/"))
    directory = os.path.join(script.path, relative_directory)
    with lock_tables(script):
        fingerprint = dict(measured.fingerprint)
        earlier_measurements = _read_file(os.path.join(directory, FILE), script)
        kept = [m for m in earlier_measurements if dict(m.fingerprint) != fingerprint]
        sweep_temporary_files(directory)
        # The report comes first: whoever finds the file that programs read finds both.
        for name, data in format_measurements(script, measured.key, [*kept, measured]).items():
            write_atomic(os.path.join(directory, name), data)


def name_directory(key: Sequence[int]) -> str:
    """Return the directory of a key's measurements, in the script's."""
    return f"{DIRECTORY}/{'-'.join(map(str, key)) or 'all'}"


def format_measurements(
    script: Script, key: Sequence[int], measurements: Sequence[Measurement]
) -> dict[str, bytes]:
    """Return the files of a key by name, in the order of writing. There is one measurement for each
    device."""
    value = {
        "schema": SCHEMA,
        "keys": list(script.keys),
        "key": list(key),
        "measured": [
            {
                "fingerprint": dict(measurement.fingerprint),
                "seconds": {str(p): s for p, s in sorted(measurement.seconds.items())},
                "refused": {str(p): why for p, why in sorted(measurement.refused.items())},
                **({} if measurement.at is None else {"at": list(measurement.at)}),
            }
            for measurement in measurements
        ],
    }
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    return {REPORT: _format_report(script, measurements).encode(), FILE: text.encode()}


def read_measurements(script: Script) -> list[Measurement]:
    """Return all measurements of a script, by key and device. Raises `CorruptCacheError`."""
    directory = os.path.join(script.path, DIRECTORY)
    paths = (os.path.join(directory, name, FILE) for name in try_list(directory))
    measurements = [measured for path in paths for measured in _read_file(path, script)]
    return sorted(measurements, key=lambda measured: measured.key)


def _read_file(path: str, script: Script) -> list[Measurement]:
    """Return the measurements in a `measured.json`; none without the file, and none for other
    dispatch keys. Raise `CorruptCacheError`."""
    try:
        value: Any = json.loads(read_bytes(path))
        if value["schema"] != SCHEMA or tuple(value["keys"]) != script.keys:
            return []  # measured before an edit of the dispatch keys
        return [
            convert({**section, "key": value["key"]}, Measurement, str_keys=True)
            for section in value["measured"]
        ]
    except FileNotFoundError:
        return []
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise CorruptCacheError(f"{path} cannot be read: {error}") from None


def _format_report(script: Script, measurements: Sequence[Measurement]) -> str:
    """Return a table for people of each measurement: the fastest program first, the refused ones
    last."""
    parts = []
    for measurement in measurements:
        fingerprint = ", ".join(f"{k} {v}" for k, v in sorted(measurement.fingerprint.items()))
        times = sorted(measurement.seconds.items(), key=lambda item: item[1])
        unit, texts = format_times([seconds for _, seconds in times])
        cells = [(program, text, "") for (program, _), text in zip(times, texts, strict=True)]
        cells += [(program, None, why) for program, why in sorted(measurement.refused.items())]
        rows: list[tuple[Cell, ...]] = [
            (program, *script.get_schedule(program).values(), text, why)
            for program, text, why in cells
        ]
        heads = ("index", *script.schedules, f"latency ({unit})", "refused")
        parts.append(f"{fingerprint}\n\n{format_table(heads, rows)}")
    return "\n".join(parts)


def update_refusals(
    script: Script, refusals: Iterable[Refusal], lifted: Collection[str] = ()
) -> bool:
    """Add refusals to a script's table file and remove those of the program hashes `lifted`. The
    measured rows of refused programs go to the best other program, or are removed. Return whether
    anything changed. Raises `LoadError` and `OSError`."""
    with lock_tables(script):
        table_file = read_dispatch_table(script)
        refused = {r.program: r for r in table_file.refused if r.program not in lifted}
        refused.update((refusal.program, refusal) for refusal in refusals)
        # Most builds change nothing: then nothing is read further, and nothing written.
        if tuple(refused.values()) == table_file.refused:
            return False
        refused_numbers = explain_refusals(script.programs, refused.values()).keys()
        measured = read_measurements(script) if refused_numbers else []
        tables = [_remove_programs(table, refused_numbers, measured) for table in table_file.tables]
        write_tables(script, tables, tuple(refused.values()))
        return True


def _remove_programs(
    table: DeviceTable, refused_numbers: Collection[int], measured: Iterable[Measurement]
) -> DeviceTable:
    """Return a table whose measured rows of refused programs go to the best other program, or
    are removed. Rows by hand stay."""
    measurements = {m.key: m for m in measured if dict(m.fingerprint) == table.fingerprint}
    new_entries = []
    for entry in table.entries:
        if entry.program not in refused_numbers or entry.source == "table":
            new_entries.append(entry)
            continue
        measurement = measurements.get(entry.key)
        replacement = None if measurement is None else measurement.find_best(refused_numbers)
        if replacement is not None:
            new_entries.append(replacement)
    return table._replace(entries=tuple(new_entries))


def copy_refusals(script: Script) -> list[Script]:
    """Copy this script's refusals to all other scripts of its cache that list the same programs.
    Return the scripts that changed. Unreadable scripts are skipped. Raises `OSError`, and
    `LoadError` for a damaged table file of this script."""
    refused = {refusal.program: refusal for refusal in read_dispatch_table(script).refused}
    if not refused:
        return []
    changed_scripts: list[Script] = []
    script_directories = list_paths(os.path.join(script.root, layout.SCRIPTS))
    for path in (path for directory in script_directories for path in list_paths(directory)):
        if path == script.path:
            continue
        with suppress(LoadError):
            sibling = read_script(path)
            shared = [refused[digest] for digest in sibling.programs.values() if digest in refused]
            if shared and update_refusals(sibling, shared):
                changed_scripts.append(sibling)
    return changed_scripts


def collect_refusals(scripts: str) -> dict[str, Refusal]:
    """Return the refusals in all directories of a script, by program hash. `scripts` is the
    directory that holds these directories. Unreadable directories are skipped."""
    refusals: dict[str, Refusal] = {}
    for path in list_paths(scripts):
        # The table file is searched as text first: most directories refuse nothing, and reading
        # a script's description takes long.
        if b'"refused"' in (try_read_bytes(f"{path}/{layout.TABLE_JSON}") or b""):
            with suppress(LoadError):
                table_file = read_dispatch_table(read_script(path))
                refusals.update((refusal.program, refusal) for refusal in table_file.refused)
    return refusals


def adopt_refusals(script: Script, refused: Mapping[str, Refusal]) -> None:
    """Add the refusals of other directories to a new one that lists the same programs. Raises
    `LoadError` and `OSError`."""
    shared = [refused[digest] for digest in script.programs.values() if digest in refused]
    if shared:
        # Refusals that the script has already are newer than those of other directories, and stay.
        already_refused = {refusal.program for refusal in read_dispatch_table(script).refused}
        update_refusals(script, [r for r in shared if r.program not in already_refused])


def list_paths(path: str) -> list[str]:
    """Return the paths in a directory, sorted; none where it cannot be read."""
    return [os.path.join(path, name) for name in try_list(path)]
