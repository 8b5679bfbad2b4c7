"""Writes a script's dispatch tables, as JSON for the runtime and as text, and `schedule.txt`.

Every script's directory has both dispatch tables, also before any measurement. Each file is
replaced by one rename, the JSON last. A device's measurements replace only its own. Of several
tables that hold on a device the first one decides, so the most specific table comes first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilusbuild.cache.layout import SCRIPT_TXT
from tilusbuild.cache.locks import lock_file
from tilusbuild.expr import Value
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import open_regular, try_read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.table_file import FILE, Refusal, explain_refusals, read_measured_keys
from tilusbuild.runtime.tables import (
    SCHEMA,
    DeviceTable,
    TableEntry,
    TableFile,
    add_committed_rows,
    read_dispatch_table,
)
from tilusbuild.state.directories import remove_tree
from tilusbuild.state.files import sweep_temporary_files, write_atomic
from tilusbuild.table import Cell, format_table, format_times

TEXT = "dispatch_table.txt"


def update_rows(
    script: Script,
    fingerprint: Mapping[str, str],
    entries: Iterable[TableEntry],
    removed_keys: Collection[tuple[int, ...]] = (),
) -> None:
    """Set rows in the table with this fingerprint, and remove its rows of `removed_keys`. Other
    rows and tables are kept.

    Raises `LoadError` when the present file is not a table, and `OSError`.
    """
    with lock_tables(script):
        table_file = read_dispatch_table(script)
        device_tables = [t for t in table_file.tables if dict(t.fingerprint) == dict(fingerprint)]
        earlier_rows = {entry.key: entry for table in device_tables for entry in table.entries}
        rows = {key: row for key, row in earlier_rows.items() if key not in removed_keys}
        rows |= {entry.key: entry for entry in entries}
        # Only a change is written: it costs two renames that are synced to the disk.
        if rows != earlier_rows:
            other_tables = [table for table in table_file.tables if table not in device_tables]
            ordered_rows = sorted(rows.values(), key=lambda entry: entry.key)
            new_table = DeviceTable(dict(fingerprint), tuple(ordered_rows))
            replace_tables(script, [*other_tables, new_table], table_file.refused)


def remove_tables_of_other_keys(script: Script) -> None:
    """Remove the tables that were made for other dispatch keys than the script's; refusals
    stay. An edit of `keys` leaves a script its directory. Raises as `update_rows`."""
    keys = read_measured_keys(script.path)
    if keys is not None and keys != script.keys:
        with lock_tables(script):
            # Read with the former keys: the file raises an error for a script with other keys. The
            # buckets' functions are not used.
            script_with_former_keys = script._replace(buckets=dict.fromkeys(keys, int))
            refused = read_dispatch_table(script_with_former_keys).refused
            replace_tables(script, (), refused)


def update_tables(script: Script) -> TableFile:
    """Write both table files again if they are not current; return the content of the JSON. Raises
    `OSError`, and `CorruptCacheError` for a damaged file, which may hold measurements."""
    table_file = read_dispatch_table(script)
    if not _is_current(script, table_file):
        with lock_tables(script):
            # Again: another process may have written between the reading and the lock.
            table_file = read_dispatch_table(script)
            replace_tables(script, table_file.tables, table_file.refused)
    return table_file


def has_entries(table_file: TableFile) -> bool:
    """Return whether a file has measurements, refusals, or rows by hand."""
    return bool(table_file.tables or table_file.refused)


def _is_current(script: Script, table_file: TableFile) -> bool:
    expected = format_tables(script, table_file.tables, table_file.refused)
    if table_file.tables:
        del expected[FILE]  # not compared: people edit it, and their layout stays
    current = {name: try_read_bytes(os.path.join(script.path, name)) for name in expected}
    return current == expected


@contextmanager
def lock_tables(script: Script) -> Iterator[None]:
    """Hold the lock of a script's tables and measurements: one on its script.txt, which
    packages have, too. The kernel frees it however the holder ends. Raises `OSError`."""
    handle = open_regular(os.path.join(script.path, SCRIPT_TXT), os.O_RDWR, follow=False)
    try:
        lock_file(handle)
        yield
    finally:
        os.close(handle)


def replace_tables(
    script: Script, tables: Iterable[DeviceTable], refused: Sequence[Refusal]
) -> None:
    """Replace both files; `refused` are programs that no table may choose. Raises `OSError`."""
    sweep_temporary_files(script.path)
    for name, data in format_tables(script, tables, refused).items():
        path = os.path.join(script.path, name)
        # A rename cannot replace a directory that another program put there.
        if os.path.isdir(path):
            remove_tree(path)
        write_atomic(path, data)


def format_tables(
    script: Script, tables: Iterable[DeviceTable], refused: Sequence[Refusal] = ()
) -> dict[str, bytes]:
    """Return the content of both files by name, in the order of writing."""
    # The first table that matches a device is used, so the most specific comes first.
    tables = sorted(tables, key=lambda table: list(table.fingerprint.values()).count("*"))
    served = add_committed_rows(script, TableFile(tuple(tables), tuple(refused)))
    return {
        TEXT: format_text(script, served, refused).encode(),
        FILE: format_json(script, tables, refused),
    }


def format_json(
    script: Script, tables: Sequence[DeviceTable], refused: Sequence[Refusal] = ()
) -> bytes:
    """Return `dispatch_table.json`, with an entry on each line so that people can read and
    compare it."""
    parts = []
    for table in tables:
        rows = ",\n".join(f"    {json.dumps(_format_row(entry))}" for entry in table.entries)
        body = f"[\n{rows}\n   ]" if rows else "[]"
        fingerprint = json.dumps(dict(sorted(table.fingerprint.items())), ensure_ascii=False)
        parts.append(f'  {{"fingerprint": {fingerprint},\n   "entries": {body}}}')
    tables_text = "[\n" + ",\n".join(parts) + "\n ]" if parts else "[]"
    keys = json.dumps(list(script.keys))
    text = f'{{"schema": {SCHEMA},\n "keys": {keys},\n "tables": {tables_text}'
    if refused:
        lines = (json.dumps(refusal.to_json(), ensure_ascii=False) for refusal in refused)
        text += ',\n "refused": [\n  ' + ",\n  ".join(lines) + "\n ]"
    return f"{text}\n}}\n".encode()


def _format_row(entry: TableEntry) -> list[Any]:
    """Return a row as `dispatch_table.json` has it, without the items at its end that are not
    known."""
    row: list[Any] = [list(entry.key), entry.program, entry.source]
    if entry.seconds is not None:
        row.append(entry.seconds)
        # The items have fixed positions: a row without seconds cannot have sizes.
        if entry.measured_sizes is not None:
            row.append(list(entry.measured_sizes))
    return row


def format_text(
    script: Script, tables: Sequence[DeviceTable], refused: Sequence[Refusal] = ()
) -> str:
    """Return `dispatch_table.txt`: a table for each device, and the refused programs."""
    parts = [] if tables else [f"nothing is measured yet: {format_command('tune', script.name)}\n"]
    for table in tables:
        fingerprint = ", ".join(f"{k} {v}" for k, v in sorted(table.fingerprint.items()))
        unit, times = format_times([entry.seconds for entry in table.entries])
        rows: list[tuple[Cell, ...]] = [
            (*entry.sizes, entry.program, entry.source + entry.origin_text, time)
            for entry, time in zip(table.entries, times, strict=True)
        ]
        heads = (*script.keys, "choice", "source", f"latency ({unit})")
        parts.append(f"{fingerprint}\n\n{format_table(heads, rows)}")
    if reasons := explain_refusals(script.programs, refused):
        rows = [
            (index, *script.get_schedule(index).values(), why) for index, why in reasons.items()
        ]
        heads = ("index", *script.schedules, "why")
        parts.append(f"not chosen until it is rebuilt\n\n{format_table(heads, rows)}")
    return "\n".join(parts)


_RESOURCES = ("registers", "stack", "spill_stores", "spill_loads", "static_smem")

ProgramMeta = Mapping[str, Any]


def list_schedule_columns(parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of `schedule.txt`."""
    return ("index", *parameters, "status", *_RESOURCES, "dynamic_smem", "program")


def make_schedule_rows(
    parameters: Sequence[str],
    schedules: Iterable[Mapping[str, Value]],
    programs: Mapping[int, str],
    metas: Sequence[ProgramMeta | None],
) -> list[tuple[Cell, ...]]:
    """Return a row of `schedule.txt` for each schedule. `programs` has the hashes by number,
    `metas` the programs' meta.json, or None. Of several kernels the greatest usage counts."""
    rows: list[tuple[Cell, ...]] = []
    for values, (index, program), meta in zip(schedules, programs.items(), metas, strict=True):
        kernels = meta.get("kernels", {}) if meta else {}
        usages = [usage for kernel in kernels.values() for usage in kernel.values()]
        rows.append(
            (
                index,
                *(values[name] for name in parameters),
                meta["status"] if meta else "missing",
                *(max((usage[name] for usage in usages), default=None) for name in _RESOURCES),
                meta.get("dynamic_smem") if meta else None,
                program,
            )
        )
    return rows
