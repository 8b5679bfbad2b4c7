"""A script's dispatch as it stands in the cache: what is there, what is wrong, and which program
serves which sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from msgspec import Struct

from tilusbuild.cache.layout import DISPATCH
from tilusbuild.dispatch.refresh import can_make_dispatchers, has_current_dispatcher
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.model import PlanSelection, find_script, select_script_targets
from tilusbuild.runtime import device as devices
from tilusbuild.runtime import library
from tilusbuild.runtime.choose import Choice, Chooser
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.dtypes import WHOLE
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import list_available_programs, make_chooser
from tilusbuild.runtime.naming import NamePattern, format_command, to_snake_case
from tilusbuild.runtime.places import SearchRoot
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal, explain_refusals
from tilusbuild.runtime.tables import (
    DeviceTable,
    TableFile,
    read_serving_tables,
    select_table,
)

_MAKE = "`tilusbuild dispatch build`"


class DispatchOverview(Struct, frozen=True):
    """The dispatch of one built instance. `device` is the device here that would run it, or
    None."""

    script: Script
    tables: tuple[DeviceTable, ...]
    refused: tuple[Refusal, ...]
    trouble: str | None
    """Why the tables cannot be read."""
    sizes: tuple[Mapping[str, Value], ...]
    """The manifest's, of `tune`."""
    device: Device | None

    def make_chooser(self) -> Chooser:
        """Return the chooser for the device here: with its own table, or none."""
        table_file = TableFile(self.tables, self.refused)
        if self.device is not None:
            return make_chooser(self.script, table_file, self.device)[0]
        entries = self.tables[0].entries if len(self.tables) == 1 else ()
        refused = explain_refusals(self.script.programs, self.refused)
        return Chooser(self.script, entries, list_available_programs(self.script), refused)

    def list_coverage(self) -> list[tuple[Mapping[str, Value], Choice]]:
        """Return the manifest's sizes and all measured ones, each with the choice for it."""
        keys = self.script.keys
        measured = {e.sizes for t in self.tables for e in t.entries}
        all_sizes = [dict(size) for size in self.sizes if all(key in size for key in keys)]
        all_sizes += [dict(zip(keys, key, strict=True)) for key in sorted(measured)]
        chooser, seen = self.make_chooser(), set[tuple[Value, ...]]()
        choices: list[tuple[Mapping[str, Value], Choice]] = []
        for sizes in all_sizes:
            shown = {key: sizes[key] for key in keys}
            if tuple(shown.values()) in seen:
                continue
            seen.add(tuple(shown.values()))
            # Rules may also read integers besides the dispatch keys; a size of a table does not say
            # them.
            rules = {**dict.fromkeys(self._list_integers(), 1), **sizes}
            choices.append((shown, chooser.choose_program(rules)))
        return choices

    def _list_integers(self) -> list[str]:
        return [a.name for a in self.script.arguments if a.dims is None and a.dtype in WHOLE]

    def find_problems(self) -> Iterator[str]:
        """Yield a text for each thing that a call would fail on."""
        if self.trouble is not None:
            yield self.trouble
        if self.device is not None and self.tables:
            try:
                select_table(self.script, self.tables, self.device)
            except LoadError as error:
                yield str(error)
        available = list_available_programs(self.script)
        chosen = {entry.program for table in self.tables for entry in table.entries}
        chosen |= {rule.program for rule in self.script.rules}
        if self.script.default is not None:
            chosen.add(self.script.default)
        reasons = explain_refusals(self.script.programs, self.refused)
        for program in sorted(chosen):
            if program in reasons:
                yield f"program {program} is chosen, but refused: it was {reasons[program]}"
                continue
            if program not in available:
                why = self.script.not_built.get(program, "not there")
                yield f"program {program} is chosen, but is {why}"
                continue
            try:
                meta = library.read_meta(self.script, program)
                digest = meta["files"][library.LIBRARY]["sha256"]
                library.check_library(self.script.get_library_path(program), digest)
            except LoadError as error:
                yield str(error)
        try:
            self.list_coverage()
            has_dispatcher = os.path.isdir(os.path.join(self.script.path, DISPATCH))
            is_usable = self.trouble is None and has_dispatcher and can_make_dispatchers()
            if is_usable and not has_current_dispatcher(self.script):
                yield f"the C dispatcher was built from other tables: {_MAKE} builds it again"
        except (LoadError, TilusbuildError) as error:
            yield str(error)


def read_overviews(
    manifest: Manifest, cache: str, name: NamePattern, target: str | None
) -> Iterator[DispatchOverview]:
    """Yield the built instances that a name matches, for a target. Raises `InputError`, and
    `LoadError` for a damaged tree."""
    script = find_script(manifest, name)
    pairs = list(
        select_script_targets(manifest, PlanSelection((name,), (target,) if target else ()))
    )
    target_names = {each.name for _, each in pairs}
    tune = manifest.scripts[script].tune
    sizes = tuple(dict(size) for size in tune.sizes) if tune else ()
    place = SearchRoot(cache, "the project's cache")
    is_built = False
    for path in place.list_instances(to_snake_case(script), manifest.root):
        built_script = read_script(path)
        if built_script.target not in target_names or not name.matches_instance(
            built_script.name, built_script.params, built_script.target
        ):
            continue
        is_built = True
        trouble, table_file = None, TableFile()  # type: str | None, TableFile
        try:
            table_file = read_serving_tables(built_script)
        except LoadError as error:
            trouble = str(error)
        device = devices.get_cpu() if built_script.kind == "cpu" else devices.find_first_gpu()
        yield DispatchOverview(
            built_script, table_file.tables, table_file.refused, trouble, sizes, device
        )
    if not is_built:
        raise input_error(
            f"{name} is not built", hint=f"`{format_command('build', name)}` builds it"
        )
