"""The scripts of a cache to export, and the items of an export, as values.

Everything is read through the checks of the runtime and of the cache: a corrupt file is an error
that names it, never silently missing from the export.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.entries import get_product, lookup_entry
from tilusbuild.cache.garbage import read_header_digests
from tilusbuild.cache.index import read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import try_list
from tilusbuild.runtime.script import CALLED, Script, read_script
from tilusbuild.runtime.tables import DeviceTable, read_serving_tables
from tilusbuild.status import Status


class ExportedProgram(Struct, frozen=True):
    """One program of a script, built or not. `index` is its number in the plan. `status` is that of
    meta.json, or "missing". `meta` is the content of meta.json, empty if that is missing.
    `includes` has the absolute paths of the directories in `include/` that compile.sh reads."""

    index: int
    hash: str
    directory: str
    status: str
    meta: Mapping[str, Any]
    includes: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Return the sorted names of its files, relative to the directory."""
        return tuple(sorted(self.meta.get("files", ())))

    @property
    def product(self) -> str:
        """Return the name of its library or object, relative to the directory."""
        return get_product(self.meta).name


class ExportedScript(Struct, frozen=True):
    """A script with everything that a layout needs. `name` is in snake case. `latency` has the
    names of the directories in `latency/`."""

    script: Script
    name: str
    tables: tuple[DeviceTable, ...]
    programs: tuple[ExportedProgram, ...]
    latency: tuple[str, ...]

    @property
    def built(self) -> tuple[ExportedProgram, ...]:
        return tuple(program for program in self.programs if program.status == Status.BUILT)

    @property
    def refused(self) -> tuple[ExportedProgram, ...]:
        refusals = (Status.FAILED, Status.PRUNED)
        return tuple(program for program in self.programs if program.status in refusals)


class ExportItem(Struct, frozen=True):
    """A file of an export: one with `data`, a file of the cache (`source`), or a symbolic link
    within the export (`leads_to`). `path` is relative to the export."""

    path: str
    data: bytes = b""
    source: str = ""
    leads_to: str = ""


def list_exported_scripts(cache: Tree) -> list[ExportedScript]:
    """Return the scripts that can be called, of the last build of each project. Raises
    `TilusbuildError`."""
    roots = {pair for project in read_index(cache).values() for pair in project.scripts}
    scripts = (_read_exported_script(cache, *pair) for pair in sorted(roots))
    return [script for script in scripts if script.script.form == CALLED]


def _read_exported_script(cache: Tree, name: str, digest: str) -> ExportedScript:
    path = cache.script_path(name, digest)
    try:
        script = read_script(path)
        tables = read_serving_tables(script).tables
    except LoadError as error:
        raise TilusbuildError(str(error)) from None
    programs = tuple(
        _read_exported_program(cache, index, each) for index, each in script.programs.items()
    )
    return ExportedScript(script, name, tables, programs, tuple(_list_latency_reports(path)))


def _read_exported_program(cache: Tree, index: int, digest: str) -> ExportedProgram:
    entry, path = lookup_entry(cache, digest), cache.program_path(digest)
    if entry is None:
        return ExportedProgram(index, digest, path, Status.MISSING, {}, ())
    headers = tuple(map(cache.include_path, read_header_digests(path)))
    return ExportedProgram(index, digest, path, entry.status, entry.meta, headers)


def _list_latency_reports(path: str) -> Iterator[str]:
    for name in try_list(os.path.join(path, layout.LATENCY)):
        if os.path.isfile(os.path.join(path, layout.LATENCY, name, layout.LATENCY_REPORT)):
            yield name
