"""A script's dispatch as it stands in the cache: what is there, what is wrong, which program serves
which sizes, and how few programs would serve as well.

Thinning is a greedy set cover over measured times. A program serves a key when it takes at most
`slowdown` times the key's best. Greedy choice is at most ln(keys) times the smallest possible set
(Chvátal, 1979), and is the same every time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from tilusbuild.cache.layout import DISPATCH
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.csource import NoDispatcherError
from tilusbuild.dispatch.dispatcher import is_current
from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.model import PlanSelection, chosen_pairs, script_of
from tilusbuild.runtime import device as devices
from tilusbuild.runtime import library
from tilusbuild.runtime.choose import Choice, Chooser
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.dtypes import WHOLE
from tilusbuild.runtime.errors import DriverError, LoadError
from tilusbuild.runtime.kernel import programs_there
from tilusbuild.runtime.naming import Name, snake_case
from tilusbuild.runtime.places import SearchPlace
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, by_number
from tilusbuild.runtime.tables import (
    Table,
    TableEntry,
    TableFile,
    read_dispatch,
    table_for,
)

Fingerprint: TypeAlias = tuple[tuple[str, str], ...]
_MAKE = "`tilusbuild dispatch build`"


class DispatchOverview(Struct, frozen=True):
    """One instance. `device` is what it would run on here; None when there is none."""

    script: Script
    tables: tuple[Table, ...]
    refused: tuple[Refusal, ...]
    trouble: str | None
    """Why the tables cannot be read."""
    sizes: tuple[Mapping[str, Value], ...]
    """The manifest's, of `tune`."""
    device: Device | None

    def chooser(self) -> Chooser:
        """Return what chooses on the device here: its own table, or none."""
        entries: tuple[TableEntry, ...] = ()
        if self.device is not None:
            try:
                found = table_for(self.script, self.tables, self.device)
                entries = found.entries if found else ()
            except LoadError:
                pass
        elif len(self.tables) == 1:
            entries = self.tables[0].entries
        return Chooser(self.script, entries, programs_there(self.script), self.reasons())

    def reasons(self) -> dict[int, str]:
        """Return why programs are chosen nowhere, by their numbers."""
        return by_number(self.script.programs, self.refused)

    def coverage(self) -> list[tuple[Mapping[str, Value], Choice]]:
        """Return the manifest's sizes and everything that is measured, each with who serves it."""
        keys = self.script.keys
        measured = {e.key for t in self.tables for e in t.entries}
        wanted = [dict(size) for size in self.sizes if all(key in size for key in keys)]
        wanted += [dict(zip(keys, key, strict=True)) for key in sorted(measured)]
        chooser, seen = self.chooser(), set[tuple[Value, ...]]()
        found: list[tuple[Mapping[str, Value], Choice]] = []
        for sizes in wanted:
            shown = {key: sizes[key] for key in keys}
            if tuple(shown.values()) in seen:
                continue
            seen.add(tuple(shown.values()))
            rules = {**dict.fromkeys(self._integers(), 1), **sizes}
            found.append((shown, chooser.choose(rules)))
        return found

    def _integers(self) -> list[str]:
        return [a.name for a in self.script.arguments if a.dims is None and a.dtype in WHOLE]

    def problems(self) -> Iterator[str]:
        """Yield everything that a call would trip over."""
        if self.trouble is not None:
            yield self.trouble
        if self.device is not None and self.tables:
            try:
                table_for(self.script, self.tables, self.device)
            except LoadError as error:
                yield str(error)
        available = programs_there(self.script)
        chosen = {entry.program for table in self.tables for entry in table.entries}
        chosen |= {rule.program for rule in self.script.rules}
        if self.script.default is not None:
            chosen.add(self.script.default)
        reasons = self.reasons()
        for program in sorted(chosen):
            if program in reasons:
                yield f"program {program} is chosen, and is refused: it was {reasons[program]}"
                continue
            if program not in available:
                why = self.script.not_built.get(program, "not there")
                yield f"program {program} is chosen, and is {why}"
                continue
            try:
                meta = library.read_meta(self.script, program)
                digest = meta["files"][library.LIBRARY]["sha256"]
                library.check_library(self.script.library(program), digest)
            except LoadError as error:
                yield str(error)
        try:
            self.coverage()
            if self.trouble is None and self.has_dispatcher and not is_current(self.script):
                yield f"the C dispatcher is of other tables: {_MAKE} makes it"
        except (LoadError, NoDispatcherError) as error:
            yield str(error)

    @property
    def has_dispatcher(self) -> bool:
        """Return whether there is a directory of one."""
        return os.path.isdir(os.path.join(self.script.path, DISPATCH))

    def times(self) -> dict[Fingerprint, dict[Key, Mapping[int, float]]]:
        """Return what was measured, by device."""
        found: dict[Fingerprint, dict[Key, Mapping[int, float]]] = {}
        for measured in latency.read(self.script):
            device = tuple(sorted(measured.fingerprint.items()))
            if measured.seconds:
                found.setdefault(device, {})[measured.key] = measured.seconds
        return found

    def thinned(
        self,
        fingerprint: Fingerprint,
        times: Mapping[Key, Mapping[int, float]],
        slowdown: float,
        write: bool,
    ) -> Cover:
        """Return the programs to keep; with `write` the table uses these only."""
        out = self.reasons()
        times = {
            key: left
            for key, measured in times.items()
            if (left := {p: seconds for p, seconds in measured.items() if p not in out})
        }
        kept = cover(times, slowdown)
        if write:
            entries = [
                TableEntry(key, program, "measured", times[key][program])
                for key, program in kept.chosen.items()
            ]
            tables.record(self.script, dict(fingerprint), entries)
        return kept


def overviews(
    manifest: Manifest, cache: str, name: Name, target: str | None
) -> Iterator[DispatchOverview]:
    """Yield the built instances that a name means, for a target. Raises `InputError`, and
    `LoadError` for a damaged tree."""
    script = script_of(manifest, name)
    pairs = list(chosen_pairs(manifest, PlanSelection((name,), (target,) if target else ())))
    named = {each.name for _, each in pairs}
    tune = manifest.scripts[script].tune
    sizes = tuple(dict(size) for size in tune.sizes) if tune else ()
    place = SearchPlace(cache, "the project's cache")
    found = False
    for path in place.instances(snake_case(script), manifest.root):
        read = read_script(path)
        if read.target not in named or not name.fits(read.name, read.params, read.target):
            continue
        found = True
        trouble, found_file = None, TableFile()  # type: str | None, TableFile
        try:
            found_file = read_dispatch(read)
        except LoadError as error:
            trouble = str(error)
        yield DispatchOverview(
            read, found_file.tables, found_file.refused, trouble, sizes, _device(read)
        )
    if not found:
        raise input_error(f"{name} is not built", hint=f"`tilusbuild build {name}` builds it")


def _device(script: Script) -> Device | None:
    if script.kind == "cpu":
        return devices.cpu()
    try:
        return devices.cuda(0) if devices.may_have_cuda() else None
    except DriverError:
        return None


Key: TypeAlias = tuple[int, ...]
Times: TypeAlias = Mapping[Key, Mapping[int, float]]


class Cover(Struct, frozen=True):
    """A set of programs, in the order of choice, and what it costs against the best of each key."""

    programs: tuple[int, ...]
    worst: float
    """The greatest ratio of times over all keys."""
    mean: float
    """The geometric mean of the ratios."""
    chosen: Mapping[Key, int]
    """The best of them for each key."""


def cover(times: Times, slowdown: float) -> Cover:
    """Return the fewest programs, as far as greed finds them, that serve every key within
    `slowdown`.

    Raises `ValueError` for a slowdown below 1.
    """
    if not slowdown >= 1:
        raise ValueError(f"a slowdown is at least 1, not {slowdown}")
    serves: dict[int, dict[Key, float]] = {}
    for key, measured in times.items():
        best = min(measured.values())
        for program, seconds in measured.items():
            if seconds <= best * slowdown:
                serves.setdefault(program, {})[key] = seconds / best
    open_keys, picked = set(times), list[int]()
    while open_keys:
        program = min(
            serves,
            key=lambda p: (
                -len(open_keys & serves[p].keys()),
                sum(math.log(serves[p][k]) for k in sorted(open_keys & serves[p].keys())),
                p,
            ),
        )
        picked.append(program)
        open_keys -= serves[program].keys()
    chosen, ratios = {}, []
    for key, measured in times.items():
        seconds, chosen[key] = min((measured[p], p) for p in picked if p in measured)
        ratios.append(seconds / min(measured.values()))
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
    return Cover(tuple(picked), max(ratios, default=1.0), mean, chosen)
