"""What a new script directory takes over: what was measured of the same programs before an edit.

After an edit of a space an instance has another directory, and most of its programs are those of
before: their hashes say so, whatever their numbers are now. The directory of the same script,
constants and target that was tuned last is asked. A row stays with the program that it names, or
goes to the best of those that are left and were measured for it, or goes. So every row that is kept
is a measurement of the very program that it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tilusbuild.cache import layout
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.latency import Measured, below
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script, parse_description, read_script
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.runtime.table_file import Refusal, explain_refusals, read_measured_keys
from tilusbuild.runtime.tables import DeviceTable, TableEntry, read_dispatch_table

_NAMED = 4
"""Sizes that a message names."""


class CarriedOver(NamedTuple):
    """The measurements that a directory takes over, and a message about the rows that are lost:
    None where none is."""

    tables: tuple[DeviceTable, ...] = ()
    refused: tuple[Refusal, ...] = ()
    measured: tuple[Measured, ...] = ()
    lost: str | None = None


def carry_over(script: Script) -> CarriedOver:
    """Return the measurements that a new directory of `script` takes over from those beside it. A
    directory that cannot be read is passed over."""
    first: CarriedOver | None = None
    for former in _tuned_siblings(script):
        with suppress(LoadError):
            found = _carry_over_from(former, script)
            if found.tables or found.measured:
                return found
            first = first or found
    return first or CarriedOver()


def lost_rows(path: str, describe: Callable[[], bytes]) -> str | None:
    """Return what will not be taken over by the script directory that is to be made at `path`, in
    words; its script.json is `describe()`."""
    if next(_tuned(path), None) is None:
        return None
    script = parse_description(path, unseal_json(describe()))
    return carry_over(script._replace(not_built={})).lost


def other_keys_message(label: str, former: Sequence[str], keys: Sequence[str]) -> str:
    """Return in words that the measurements of a script are for other dispatch keys."""
    was, now = (", ".join(each) or "none" for each in (former, keys))
    why = f"it was for the dispatch keys {was}, which are {now} now"
    return f"{label}: its measurements no longer apply: {why}"


def initial_files(path: str, described: bytes, *, carry: bool = True) -> dict[str, bytes]:
    """Return the files that a new script directory begins with. `described` is its script.json."""
    script = parse_description(path, unseal_json(described))
    found = carry_over(script) if carry else CarriedOver()
    files = tables.texts(script, found.tables, found.refused)
    for key in dict.fromkeys(each.key for each in found.measured):
        of_key = [each for each in found.measured if each.key == key]
        top = latency.directory_of(key)
        for name, data in latency.texts(script, key, of_key).items():
            files[f"{top}/{name}"] = data
    return files


def _tuned_siblings(script: Script) -> Iterator[Script]:
    """Yield the other directories of an instance that were tuned, the last one first."""
    for _, path in sorted(_tuned(script.path), reverse=True):
        with suppress(LoadError):
            other = read_script(path)
            if _instance(other) == _instance(script):
                yield other


def _tuned(path: str) -> Iterator[tuple[int, str]]:
    """Yield the directories beside `path` that have tables, each with when they were written."""
    for other in below(os.path.dirname(path)):
        with suppress(OSError):
            if other != path and read_measured_keys(other) is not None:
                yield os.stat(os.path.join(other, layout.TABLE_JSON)).st_mtime_ns, other


def _instance(script: Script) -> tuple[object, ...]:
    return script.name, script.target, script.params


def _carry_over_from(former: Script, script: Script) -> CarriedOver:
    """Return what one directory takes over from another. Raises `LoadError`."""
    if former.keys != script.keys:
        return CarriedOver(lost=other_keys_message(script.label, former.keys, script.keys))
    return _Renumbering(former, script).carry_over()


class _Renumbering:
    """One directory's measurements, as another one of the same keys has them."""

    def __init__(self, former: Script, script: Script) -> None:
        self._former, self._script = former, script
        self._found = read_dispatch_table(former)
        first = {digest: i for i, digest in reversed([*script.programs.items()])}
        self._numbers = {i: first.get(digest) for i, digest in former.programs.items()}
        self._out = (
            explain_refusals(script.programs, self._found.refused).keys() | script.not_built.keys()
        )
        self._measured = [
            self._renumbered(each)
            for each in latency.read(former)
            if self._is_of_former(each.fingerprint) and self._is_bucket(each.key)
        ]
        self._instead: dict[tuple[int, ...], int | None] = {}
        """Sizes whose program is gone, with who serves them now."""
        self._rows = self._same = 0

    def carry_over(self) -> CarriedOver:
        """Return what is taken over."""
        kept = [
            each
            for table in self._found.tables
            if self._is_of_former(table.fingerprint) and (each := self._table(table)).entries
        ]
        programs = set(self._script.programs.values())
        return CarriedOver(
            tuple(kept),
            tuple(each for each in self._found.refused if each.program in programs),
            tuple(each for each in self._measured if each.seconds or each.refused),
            self._format_lost_rows(),
        )

    def _is_of_former(self, fingerprint: Mapping[str, str]) -> bool:
        return fingerprint["script"] in ("*", self._former.hash)

    def _is_bucket(self, key: tuple[int, ...]) -> bool:
        """Return whether what was measured at these sizes speaks for a bucket that there is."""
        pairs = zip(self._script.buckets.values(), key, strict=True)
        return all(to_bucket(size) == size for to_bucket, size in pairs)

    def _fingerprint(self, fingerprint: Mapping[str, str]) -> dict[str, str]:
        same = fingerprint["script"] == "*"
        return {**fingerprint, "script": "*" if same else self._script.hash}

    def _renumbered(self, measured: Measured) -> Measured:
        seconds: dict[int, float] = {}
        for program, time in measured.seconds.items():
            if (number := self._numbers.get(program)) is not None:
                seconds[number] = min(time, seconds.get(number, time))
        refused = {
            number: why
            for program, why in measured.refused.items()
            if (number := self._numbers.get(program)) is not None and number not in seconds
        }
        return Measured(self._fingerprint(measured.fingerprint), measured.key, seconds, refused)

    def _table(self, table: DeviceTable) -> DeviceTable:
        fingerprint = self._fingerprint(table.fingerprint)
        times = {each.key: each for each in self._measured if each.fingerprint == fingerprint}
        kept = []
        for entry in table.entries:
            self._rows += 1
            row: TableEntry | None = None
            if self._is_bucket(entry.key):
                row = self._same_row(entry) or self._next_best(entry, times.get(entry.key))
            if row is None or row.program != self._numbers[entry.program]:
                self._instead[entry.sizes] = None if row is None else row.program
            if row is not None:
                kept.append(row)
        return DeviceTable(fingerprint, tuple(kept))

    def _same_row(self, entry: TableEntry) -> TableEntry | None:
        """Return the row with the program's number of now. One by hand stays also for a program
        that is refused: the choice is the person's, and the runtime says so."""
        number = self._numbers[entry.program]
        if number is None or number in self._script.not_built:
            return None
        if number in self._out and entry.source != "table":
            return None
        self._same += 1
        return entry._replace(program=number)

    def _next_best(self, entry: TableEntry, known: Measured | None) -> TableEntry | None:
        if known is None or entry.source != "measured":
            return None
        return known.best(self._out)

    # In words.

    def _format_lost_rows(self) -> str | None:
        if not self._instead:
            return None
        rows = sorted(self._instead.items())
        parts = [f"{self._same} of {self._rows} rows of its tables keep their program"]
        if moved := sum(new is not None for _, new in rows):
            parts.append(f"{moved} go to the best of those measured that are left")
        if lost := [self._at(sizes) for sizes, new in rows if new is None]:
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            hint = f"`{format_command('tune', self._script.name)}`"
            parts.append(f"to be tuned again: {', '.join(lost[:_NAMED])}{more} ({hint})")
        return f"{self._script.label}: {'; '.join(parts)}"

    def _at(self, sizes: tuple[int, ...]) -> str:
        return " ".join(f"{n}={size}" for n, size in zip(self._script.keys, sizes, strict=True))
