"""Reports a script's dispatch in the cache: its tables, its problems, and its choices by size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from tilusbuild.cache.layout import DISPATCH
from tilusbuild.dispatch.recorded import RecordedSizes, read_recorded_sizes
from tilusbuild.dispatch.refresh import load_dispatcher_module
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.settings import Setting
from tilusbuild.plan.model import PlanSelection, find_script, select_script_targets
from tilusbuild.runtime import device as devices
from tilusbuild.runtime import library
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import list_available_programs, make_chooser
from tilusbuild.runtime.naming import NamePattern, format_command, to_snake_case
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.search_roots import SearchRoot
from tilusbuild.runtime.table_file import Refusal, explain_refusals
from tilusbuild.runtime.tables import (
    DeviceTable,
    TableFile,
    read_dispatch_table,
    select_table,
)

_MAKE = "`tilusbuild dispatch build`"


class CoverageRow(NamedTuple):
    """The program that serves some sizes, and why; None and the source "none" if none does."""

    sizes: Mapping[str, Value]
    program: int | None
    source: str
    why: str
    calls: int | None
    """The number of recorded calls; None without a record."""


class DispatchOverview(Struct, frozen=True, dict=True):
    """The dispatch of one built instance. `device` is this machine's for it, or None."""

    script: Script
    tables: tuple[DeviceTable, ...]
    refused: tuple[Refusal, ...]
    trouble: str | None
    """Why the tables cannot be read."""
    sizes: tuple[Mapping[str, Value], ...]
    """The manifest's, of `tune`."""
    device: Device | None
    recorded: RecordedSizes | None = None
    """The sizes that programs called, of a file."""

    def make_chooser(self) -> Chooser:
        """Return the chooser for `device`. Without a device use the only table, if there is one."""
        table_file = TableFile(self.tables, self.refused)
        if self.device is not None:
            return make_chooser(self.script, table_file, self.device)[0]
        # Of several devices' tables none is better than another.
        table = self.tables[0] if len(self.tables) == 1 else None
        refused = explain_refusals(self.script.programs, self.refused)
        return Chooser(self.script, table, list_available_programs(self.script), refused)

    @cached_property
    def coverage(self) -> list[CoverageRow]:
        """Return the choices for the recorded sizes, most calls first; without a record those for
        the sizes in the manifest and for all measured sizes, without duplicates."""
        keys = self.script.keys
        chooser = self.make_chooser()
        if self.recorded is not None:
            return [
                _find_choice(chooser, row.sizes, row.sizes, row.calls)
                for row in self.recorded.by_sizes
            ]
        table_sizes = {entry.sizes for table in self.tables for entry in table.entries}
        all_sizes = [sizes for sizes in self.sizes if all(key in sizes for key in keys)]
        all_sizes += [dict(zip(keys, sizes, strict=True)) for sizes in sorted(table_sizes)]
        coverage: dict[tuple[Value, ...], CoverageRow] = {}
        for sizes in all_sizes:
            key_sizes = {key: sizes[key] for key in keys}
            key_values = tuple(key_sizes.values())
            if key_values not in coverage:
                call_sizes = self.script.complete_sizes(sizes)
                coverage[key_values] = _find_choice(chooser, key_sizes, call_sizes, None)
        return list(coverage.values())

    def _find_unserved(self) -> Iterator[str]:
        """Yield the errors of calls at the known sizes."""
        unserved = [row for row in self.coverage if row.program is None]
        # Recorded sizes can be thousands: the one with most calls stands for all.
        if self.recorded is not None and len(unserved) > 1:
            calls = sum(row.calls or 0 for row in unserved)
            yield f"{calls} recorded calls at {len(unserved)} sizes would fail, such as:"
            unserved = unserved[:1]
        yield from (row.why for row in unserved)

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each reason for which a call would fail, and for a C dispatcher that
        is out of date. The libraries of all programs that may be chosen are read and checked."""
        if self.trouble is not None:
            yield self.trouble
        # Without the device it is not known which table would hold.
        if self.device is not None and self.tables:
            try:
                # Called for its error only: no table holds on the device.
                select_table(self.script, self.tables, self.device)
            except LoadError as error:
                yield str(error)
        available = list_available_programs(self.script)
        chosen_programs = {*chain.from_iterable(table.programs for table in self.tables)}
        chosen_programs |= {rule.program for rule in self.script.rules}
        if self.script.default is not None:
            chosen_programs.add(self.script.default)
        refusal_reasons = explain_refusals(self.script.programs, self.refused)
        for program in sorted(chosen_programs):
            if program in refusal_reasons:
                why = refusal_reasons[program]
                yield f"program {program} is chosen, but refused: it was {why}"
                continue
            if program not in available:
                status = self.script.not_built.get(program, "not there")
                yield f"program {program} is chosen, but is {status}"
                continue
            try:
                meta = library.read_meta(self.script, program)
                digest = meta["files"][library.LIBRARY]["sha256"]
                library.check_library(self.script.get_library_path(program), digest)
            except LoadError as error:
                yield str(error)
        try:
            yield from self._find_unserved()
            module = load_dispatcher_module()
            has_dispatcher = os.path.isdir(os.path.join(self.script.path, DISPATCH))
            has_readable_tables = self.trouble is None
            if module is None or not has_dispatcher or not has_readable_tables:
                return
            if not module.is_current_dispatcher(self.script):
                yield f"the C dispatcher was built from other tables: {_MAKE} builds it again"
        except (LoadError, TilusbuildError) as error:
            yield str(error)


def _find_choice(
    chooser: Chooser, sizes: Mapping[str, Value], call_sizes: Mapping[str, Value], calls: int | None
) -> CoverageRow:
    """Return the row of `sizes`; `call_sizes` has all integers of the call."""
    try:
        choice = chooser.choose_program(call_sizes)
    except (LoadError, ValueError) as error:
        return CoverageRow(sizes, None, "none", str(error), calls)
    return CoverageRow(sizes, choice.program, choice.source, choice.why, calls)


def read_overviews(
    manifest: Manifest,
    cache: Setting[str],
    name: NamePattern,
    target: str | None,
    sizes_from: str | None = None,
) -> Iterator[DispatchOverview]:
    """Yield the dispatch of each built instance that a name matches, for one target or for all.
    `sizes_from` is a file of recorded calls. Raises `InputError` when none is built, and
    `LoadError` for a damaged tree."""
    script = find_script(manifest, name)
    pairs = select_script_targets(manifest, PlanSelection((name,), (target,) if target else ()))
    targets = {declared.name for _, declared in pairs}
    tune = manifest.scripts[script].tune
    sizes = tuple(dict(size) for size in tune.sizes) if tune else ()
    # The option names a tree as `where=` of `load` does: other projects' scripts in it count.
    is_named = cache.source == "--cache-dir"
    root = SearchRoot(cache.value, "where" if is_named else "the project's cache")
    is_built = False
    for path in root.list_instances(to_snake_case(script), manifest.root):
        instance = read_script(path)
        if instance.target in targets and name.matches_instance(
            instance.name, instance.params, instance.target
        ):
            is_built = True
            trouble: str | None = None
            table_file = TableFile()
            try:
                table_file = read_dispatch_table(instance)
            except LoadError as error:
                trouble = str(error)
            device = devices.get_cpu() if instance.kind == "cpu" else devices.find_first_gpu()
            yield DispatchOverview(
                script=instance,
                tables=table_file.tables,
                refused=table_file.refused,
                trouble=trouble,
                sizes=sizes,
                device=device,
                recorded=None
                if sizes_from is None
                else read_recorded_sizes(sizes_from, instance.name, instance.params),
            )
    if not is_built:
        hint = f"`{format_command('build', name)}` builds it"
        raise input_error(f"{name} is not built", hint=hint)
