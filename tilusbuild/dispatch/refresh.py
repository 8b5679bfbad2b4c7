"""Keeps the tables and the C dispatcher of a script's directory current.

The C dispatcher is for callers that are not Python. An optional room makes it, at the point
"dispatcher". Without the room an earlier dispatcher is removed: it would choose by old tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.layout import DISPATCH
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.measurements import (
    CommittedRows,
    find_committed_rows,
    read_committed_rows_of_table,
    read_rows,
)
from tilusbuild.dispatch.tables import write_table_files
from tilusbuild.errors import TilusbuildError
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.process.base import Runner
from tilusbuild.rooms import find_contributions, import_value
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.toolchain import Toolchain


def refresh_script(
    cache: Tree,
    path: str,
    manifest: Manifest,
    instance: PlannedInstance,
    runner: Runner,
    rows: Sequence[MeasuredRow],
    *,
    dispatcher: bool,
) -> None:
    """Refresh the tables of the script directory `path`. With `dispatcher`, build its C dispatcher
    if the manifest declares `dispatch` or there are measurements. `rows` has those of the script in
    the cache. Raises as `refresh_dispatcher`, but `TilusbuildError` for `LoadError`."""
    has_dispatch = manifest.scripts[instance.script].dispatch is not None
    try:
        script = refresh_tables(
            path, rows, find_committed_rows(manifest, instance.script, instance)
        )
        if dispatcher and (has_dispatch or any(read_dispatch_table(script))):
            refresh_dispatcher(cache, script, lambda: instance.spec.toolchain, runner)
    except LoadError as error:
        raise TilusbuildError(str(error)) from None


def refresh_tables(path: str, rows: Sequence[MeasuredRow], committed: CommittedRows) -> Script:
    """Write the files that follow from the measurements of the script in the directory `path`, if
    they are not current. Return the script. Raises `CacheError`, and `LoadError` for a damaged
    description."""
    with wrap_oserror(path):
        script = read_script(path)
        write_table_files(script, rows, committed)
        return script


def refresh_merged_tables(cache: Tree, paths: Iterable[str]) -> None:
    """Refresh the tables of scripts whose measurements came from another cache. Rows of a
    repository stay as the tables have them. Damaged scripts are skipped. Raises `CacheError`."""
    for path in paths:
        with suppress(LoadError), wrap_oserror(path):
            script = read_script(path)
            rows = read_rows(cache, os.path.basename(os.path.dirname(path)))
            write_table_files(script, rows, read_committed_rows_of_table(script, rows))


def refresh_dispatcher(
    cache: Tree, script: Script, find_toolchain: Callable[[], Toolchain], runner: Runner
) -> str | None:
    """Build the C dispatcher of a script unless it is current. Return its path; None if the script
    or this installation can have none. An installation without the part that makes dispatchers
    removes an earlier one. `find_toolchain` is called before a compile.

    Raises `LoadError` for damaged tables, `CacheError`, `TilusbuildError` when the compiler
    refuses, and the errors of `find_toolchain`.
    """
    module = load_dispatcher_module()
    if module is None:
        directory = os.path.join(script.path, DISPATCH)
        if os.path.isdir(directory):
            cache.remove_entry(directory)
        return None
    path: str | None = module.build_if_outdated(cache, script, find_toolchain, runner)
    return path


def load_dispatcher_module() -> Any:
    """Return the module of the optional room that makes C dispatchers; None without the room."""
    modules = find_contributions("dispatcher")
    return import_value(modules["c"]) if modules else None
