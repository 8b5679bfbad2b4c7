"""Copies the measurements of unchanged programs into a new script directory, after an edit.

After an edit of a space an instance has another directory, with other program numbers; equal hashes
mean equal programs. Measurements come from the directory of the same script, constants and target
that was tuned last. A row keeps its program, goes to the best of the remaining programs that were
measured for it, or is removed. So every row is a measurement of its own program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tilusbuild.cache import layout
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.latency import Measurement, list_paths
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script, parse_description, read_script
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.runtime.table_file import Refusal, explain_refusals, read_measured_keys
from tilusbuild.runtime.tables import DeviceTable, TableEntry, read_dispatch_table

# Sizes in a message, which is one line.
_MAX_NAMED = 4


class CarriedOver(NamedTuple):
    """The measurements that a directory takes over, and a message about the rows that are lost:
    None where none is."""

    tables: tuple[DeviceTable, ...] = ()
    refused: tuple[Refusal, ...] = ()
    measured: tuple[Measurement, ...] = ()
    lost: str | None = None


def collect_carried_over(script: Script) -> CarriedOver:
    """Return the measurements for a new directory of `script`: those of the latest tuned directory
    that has any for its programs. Without any, only the message of the latest directory is
    returned. Unreadable directories are skipped."""
    latest: CarriedOver | None = None
    for former in _read_tuned_siblings(script):
        with suppress(LoadError):
            carried = _carry_over_from(former, script)
            if carried.tables or carried.measured:
                return carried
            # If no directory has rows to keep, the message of the latest one is returned.
            if latest is None:
                latest = carried
    return CarriedOver() if latest is None else latest


def describe_lost_rows(path: str, describe: Callable[[], bytes]) -> str | None:
    """Return a message about the rows that a script directory to be made at `path` will lose,
    or None. `describe` returns its script.json."""
    if next(_list_tuned_directories(path), None) is None:
        return None
    script = parse_description(path, unseal_json(describe()))
    # The build comes later: all planned programs count as built.
    return collect_carried_over(script._replace(not_built={})).lost


def format_other_keys(label: str, former: Sequence[str], keys: Sequence[str]) -> str:
    """Return the message that a script's measurements are for other dispatch keys."""
    former_keys, current_keys = (", ".join(names) or "none" for names in (former, keys))
    why = f"it was for the dispatch keys {former_keys}, which are {current_keys} now"
    return f"{label}: its measurements no longer apply: {why}"


def make_initial_files(path: str, described: bytes, *, carry: bool = True) -> dict[str, bytes]:
    """Return the files with tables and reports of a new script directory, by name. `described` is
    its script.json. Without `carry` the tables are empty."""
    script = parse_description(path, unseal_json(described))
    carried = collect_carried_over(script) if carry else CarriedOver()
    files = tables.format_tables(script, carried.tables, carried.refused)
    for key in dict.fromkeys(measurement.key for measurement in carried.measured):
        key_measurements = [m for m in carried.measured if m.key == key]
        formatted = latency.format_measurements(script, key, key_measurements)
        directory = latency.name_directory(key)
        files.update((f"{directory}/{name}", data) for name, data in formatted.items())
    return files


def _read_tuned_siblings(script: Script) -> Iterator[Script]:
    """Yield the other tuned directories of an instance (same script, constants and target), the
    latest first. Unreadable directories are skipped."""
    for _, path in sorted(_list_tuned_directories(script.path), reverse=True):
        with suppress(LoadError):
            sibling = read_script(path)
            if _identify_instance(sibling) == _identify_instance(script):
                yield sibling


def _list_tuned_directories(path: str) -> Iterator[tuple[int, str]]:
    """Yield (mtime of the table file in ns, path) of the directories beside `path` that have
    measured tables."""
    for sibling in list_paths(os.path.dirname(path)):
        with suppress(OSError):
            if sibling != path and read_measured_keys(sibling) is not None:
                yield os.stat(os.path.join(sibling, layout.TABLE_JSON)).st_mtime_ns, sibling


def _identify_instance(script: Script) -> tuple[object, ...]:
    return script.name, script.target, script.params


def _carry_over_from(former: Script, script: Script) -> CarriedOver:
    """Return the measurements that the directory of `script` takes over from `former`; only a
    message if their dispatch keys differ. Raises `LoadError`."""
    if former.keys != script.keys:
        return CarriedOver(lost=format_other_keys(script.label, former.keys, script.keys))
    return _Renumbering(former, script).collect_rows()


class _Renumbering:
    """One directory's measurements with the program numbers of another directory of the same
    keys."""

    def __init__(self, former: Script, script: Script) -> None:
        self._former, self._script = former, script
        self._former_tables = read_dispatch_table(former)
        number_of_hash: dict[str, int] = {}
        for number, digest in script.programs.items():
            number_of_hash.setdefault(digest, number)  # of equal programs the first number counts
        self._numbers = {i: number_of_hash.get(digest) for i, digest in former.programs.items()}
        """The new number of each former program; None for a program that is gone."""
        refused = explain_refusals(script.programs, self._former_tables.refused)
        self._unusable = refused.keys() | script.not_built.keys()
        self._measured = [
            self._renumber_measurement(measurement)
            for measurement in latency.read_measurements(former)
            if self._is_of_former(measurement.fingerprint) and self._is_bucket(measurement.key)
        ]
        self._replacements: dict[tuple[int, ...], int | None] = {}
        """The new program of each row whose program is gone, by its sizes; None for a lost row."""
        self._row_count = self._kept_count = 0

    def collect_rows(self) -> CarriedOver:
        """Return the tables, refusals and measurements that stay true."""
        former_tables = self._former_tables
        programs = set(self._script.programs.values())
        # Before `_format_lost_rows`, which reports the rows that `_renumber_table` counts.
        renumbered_tables = [
            self._renumber_table(table)
            for table in former_tables.tables
            if self._is_of_former(table.fingerprint)
        ]
        return CarriedOver(
            tables=tuple(table for table in renumbered_tables if table.entries),
            refused=tuple(r for r in former_tables.refused if r.program in programs),
            measured=tuple(m for m in self._measured if m.seconds or m.refused),
            lost=self._format_lost_rows(),
        )

    def _is_of_former(self, fingerprint: Mapping[str, str]) -> bool:
        return fingerprint["script"] in ("*", self._former.hash)

    def _is_bucket(self, key: tuple[int, ...]) -> bool:
        """Return whether a measured key is still a bucket: an edit may have changed the edges."""
        pairs = zip(self._script.buckets.values(), key, strict=True)
        return all(to_bucket(size) == size for to_bucket, size in pairs)

    def _renew_fingerprint(self, fingerprint: Mapping[str, str]) -> dict[str, str]:
        """Return a fingerprint with the new directory's hash; "*", any directory, stays."""
        holds_for_all = fingerprint["script"] == "*"
        return {**fingerprint, "script": "*" if holds_for_all else self._script.hash}

    def _renumber_measurement(self, measured: Measurement) -> Measurement:
        """Return a measurement with the new numbers, without the programs that are gone."""
        seconds: dict[int, float] = {}
        for program, time in measured.seconds.items():
            number = self._numbers.get(program)
            if number is not None:
                # Two old numbers may be one program now: the shorter of its times counts.
                seconds[number] = min(time, seconds.get(number, time))
        refused: dict[int, str] = {}
        for program, why in measured.refused.items():
            number = self._numbers.get(program)
            # A program that has a time under another old number computed right there.
            if number is not None and number not in seconds:
                refused[number] = why
        fingerprint = self._renew_fingerprint(measured.fingerprint)
        return Measurement(fingerprint, measured.key, seconds, refused)

    def _renumber_table(self, table: DeviceTable) -> DeviceTable:
        """Return a table with the rows that keep their program or get another one. Count the rows,
        and record each row that does not keep its program in `_replacements`."""
        fingerprint = self._renew_fingerprint(table.fingerprint)
        measurements = {m.key: m for m in self._measured if m.fingerprint == fingerprint}
        new_entries = []
        for entry in table.entries:
            self._row_count += 1
            new_entry = self._keep_program(entry) if self._is_bucket(entry.key) else None
            if new_entry is None:
                measurement = measurements.get(entry.key)
                # A row by hand is a person's choice, which no measurement replaces.
                if measurement is not None and entry.source == "measured":
                    new_entry = measurement.find_best(self._unusable)
                self._replacements[entry.sizes] = None if new_entry is None else new_entry.program
            if new_entry is not None:
                new_entries.append(new_entry)
        return DeviceTable(fingerprint, tuple(new_entries))

    def _keep_program(self, entry: TableEntry) -> TableEntry | None:
        """Return the row with its program's new number, and count it; None if the program is gone
        or unusable. A row by hand keeps a refused program: the runtime reports it."""
        number = self._numbers[entry.program]
        if number is None or number in self._script.not_built:
            return None
        if number in self._unusable and entry.source != "table":
            return None
        self._kept_count += 1
        return entry._replace(program=number)

    def _format_lost_rows(self) -> str | None:
        """Return a message about the rows that `_renumber_table` moved to other programs or lost;
        None when all keep their program."""
        if not self._replacements:
            return None
        lost_rows = []
        for sizes, program in sorted(self._replacements.items()):
            if program is None:
                pairs = zip(self._script.keys, sizes, strict=True)
                lost_rows.append(" ".join(f"{name}={size}" for name, size in pairs))
        parts = [f"{self._kept_count} of {self._row_count} rows of its tables keep their program"]
        moved_count = len(self._replacements) - len(lost_rows)
        if moved_count:
            parts.append(f"{moved_count} get the best other measured program")
        if lost_rows:
            surplus = len(lost_rows) - _MAX_NAMED
            more = f" and {surplus} more" if surplus > 0 else ""
            hint = f"`{format_command('tune', self._script.name)}`"
            parts.append(f"to be tuned again: {', '.join(lost_rows[:_MAX_NAMED])}{more} ({hint})")
        return f"{self._script.label}: {'; '.join(parts)}"
