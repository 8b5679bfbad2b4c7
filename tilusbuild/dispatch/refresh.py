"""Keeps the tables and the C dispatcher of a script's directory current.

The C dispatcher is for callers that are not Python. An optional room makes it, at the point
"dispatcher". Without the room an earlier dispatcher is removed: it would choose by old tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.layout import DISPATCH
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.latency import adopt_refusals
from tilusbuild.dispatch.tables import has_entries, remove_tables_of_other_keys, update_tables
from tilusbuild.errors import TilusbuildError
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.process.base import Runner
from tilusbuild.rooms import find_contributions, import_value
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.table_file import Refusal
from tilusbuild.runtime.tables import TableFile
from tilusbuild.toolchain import Toolchain


def refresh_script(
    cache: Tree,
    path: str,
    manifest: Manifest,
    instance: PlannedInstance,
    runner: Runner,
    refused: Mapping[str, Refusal],
) -> None:
    """Refresh the tables of the script directory `path`. Build its C dispatcher if the manifest
    declares `dispatch` or the tables have entries. `refused` has the refusals of the script's other
    directories, by program hash. Raises as `refresh_dispatcher`, but `TilusbuildError` for
    `LoadError`."""
    try:
        script, tables = refresh_tables(path, refused)
        if manifest.scripts[instance.script].dispatch is not None or has_entries(tables):
            refresh_dispatcher(cache, script, lambda: instance.spec.toolchain, runner)
    except LoadError as error:
        raise TilusbuildError(str(error)) from None


def refresh_tables(
    path: str, refused: Mapping[str, Refusal] = MappingProxyType({})
) -> tuple[Script, TableFile]:
    """Remove the tables of other dispatch keys from a script's directory, add `refused`, and write
    the files again if they are not current. Return the script and its tables. Raises `CacheError`,
    and `TilusbuildError` for damaged tables."""
    try:
        with wrap_oserror(path):
            script = read_script(path)
            # First, since tables of other keys cannot be read as those of the script.
            remove_tables_of_other_keys(script)
            adopt_refusals(script, refused)
            return script, update_tables(script)
    except LoadError as error:
        raise TilusbuildError(str(error)) from None


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
