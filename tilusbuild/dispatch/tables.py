"""Writes the files that follow from a script's measurements: the dispatch tables, as JSON for the
runtime and as text, and a report for each bucket. Formats `schedule.txt`.

Every script's directory has both dispatch tables, also before any measurement. `latency/<key>/` has
the times of all programs in a bucket, where `<key>` is the buckets of the dispatch keys joined by
`-`. Each file is replaced by one rename, the JSON last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilusbuild.cache.layout import LATENCY, LATENCY_REPORT, SCRIPT_TXT
from tilusbuild.cache.locks import lock_file
from tilusbuild.dispatch.measurements import (
    CommittedRows,
    Measurement,
    derive_tables,
    fold_refusals,
    group_measurements,
)
from tilusbuild.dispatch.model import RESOURCES
from tilusbuild.expr import Value
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import open_regular, try_list, try_read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.table_file import Refusal, explain_refusals
from tilusbuild.runtime.tables import FILE, SCHEMA, DeviceTable, TableFile
from tilusbuild.state.directories import make_directories_below, remove_tree
from tilusbuild.state.files import sweep_temporary_files, write_atomic
from tilusbuild.table import Cell, format_table, format_times

TEXT = "dispatch_table.txt"


def make_table_files(
    script: Script, rows: Sequence[MeasuredRow], committed: CommittedRows
) -> dict[str, bytes]:
    """Return the files that follow from the measurements of a script, by name, in the order of
    writing."""
    refusals = fold_refusals(rows)
    measurements = group_measurements(script, rows, refusals)
    table_file = derive_tables(script, rows, measurements, refusals, committed)
    reports: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        key = "-".join(map(str, measurement.key)) or "all"
        reports.setdefault(f"{LATENCY}/{key}/{LATENCY_REPORT}", []).append(measurement)
    return {
        **{name: _format_report(script, group).encode() for name, group in reports.items()},
        TEXT: format_text(script, table_file.tables, table_file.refused).encode(),
        FILE: format_json(script, table_file),
    }


def write_table_files(
    script: Script, rows: Sequence[MeasuredRow], committed: CommittedRows
) -> None:
    """Write the files that follow from the measurements of a script, if they are not current.
    Remove the reports of other buckets. Raises `OSError`."""
    files = make_table_files(script, rows, committed)
    reports = {name.split("/")[1] for name in files if name.startswith(f"{LATENCY}/")}
    outdated = [key for key in try_list(os.path.join(script.path, LATENCY)) if key not in reports]
    current = {name: try_read_bytes(os.path.join(script.path, name)) for name in files}
    # Most builds change nothing: then no lock is taken, and nothing is written.
    if current == files and not outdated:
        return
    with _lock_tables(script):
        sweep_temporary_files(script.path)
        for key in outdated:
            remove_tree(os.path.join(script.path, LATENCY, key))
        for name, data in files.items():
            path = os.path.join(script.path, name)
            make_directories_below(script.path, *name.split("/")[:-1])
            # A rename cannot replace a directory that another program put there.
            if os.path.isdir(path):
                remove_tree(path)
            write_atomic(path, data)


@contextmanager
def _lock_tables(script: Script) -> Iterator[None]:
    """Hold the lock of a script's tables: one on its script.txt, which packages have, too. The
    kernel frees it however the holder ends. Raises `OSError`."""
    handle = open_regular(os.path.join(script.path, SCRIPT_TXT), os.O_RDWR, follow=False)
    try:
        lock_file(handle)
        yield
    finally:
        os.close(handle)


def format_json(script: Script, table_file: TableFile) -> bytes:
    """Return `dispatch_table.json`, with an entry on each line so that people can read and
    compare it."""
    parts = []
    for table in table_file.tables:
        rows = ",\n".join(f"    {json.dumps(list(entry))}" for entry in table.entries)
        body = f"[\n{rows}\n   ]" if rows else "[]"
        fingerprint = json.dumps(dict(sorted(table.fingerprint.items())), ensure_ascii=False)
        costs = [
            json.dumps({"source": cost.source, "cost": cost.tree, "program": cost.program})
            for cost in table.fitted
        ]
        fitted = ',\n   "fitted": [\n    ' + ",\n    ".join(costs) + "\n   ]" if costs else ""
        parts.append(f'  {{"fingerprint": {fingerprint},\n   "entries": {body}{fitted}}}')
    tables_text = "[\n" + ",\n".join(parts) + "\n ]" if parts else "[]"
    keys = json.dumps(list(script.keys))
    text = f'{{"schema": {SCHEMA},\n "keys": {keys},\n "tables": {tables_text}'
    if table_file.refused:
        lines = (json.dumps(r.to_json(), ensure_ascii=False) for r in table_file.refused)
        text += ',\n "refused": [\n  ' + ",\n  ".join(lines) + "\n ]"
    return f"{text}\n}}\n".encode()


def format_text(
    script: Script, tables: Sequence[DeviceTable], refused: Sequence[Refusal] = ()
) -> str:
    """Return `dispatch_table.txt`: a table for each device, and the refused programs."""
    parts = [] if tables else [f"nothing is measured yet: {format_command('tune', script.name)}\n"]
    for table in tables:
        fingerprint = ", ".join(f"{k} {v}" for k, v in sorted(table.fingerprint.items()))
        unit, times = format_times([entry.seconds for entry in table.entries])
        rows: list[tuple[Cell, ...]] = [
            (*entry.sizes, entry.program, "measured" + entry.origin_text, time)
            for entry, time in zip(table.entries, times, strict=True)
        ]
        heads = (*script.keys, "choice", "source", f"latency ({unit})")
        fitted = "".join(
            f"fitted: program {cost.program} costs {cost.source}\n" for cost in table.fitted
        )
        parts.append(f"{fingerprint}\n\n{format_table(heads, rows)}{fitted}")
    if reasons := explain_refusals(script.programs, refused):
        rows = [
            (index, *script.get_schedule(index).values(), why) for index, why in reasons.items()
        ]
        heads = ("index", *script.schedules, "why")
        parts.append(f"not chosen until it is rebuilt\n\n{format_table(heads, rows)}")
    return "\n".join(parts)


def _format_report(script: Script, measurements: Sequence[Measurement]) -> str:
    """Return a table for people of each measurement: the fastest program first, the refused ones
    last."""
    parts = []
    for measurement in measurements:
        times = sorted(measurement.seconds.items(), key=lambda item: item[1])
        unit, texts = format_times([seconds for _, seconds in times])
        cells = [
            (program, text, "earlier code" if program in measurement.earlier else "")
            for (program, _), text in zip(times, texts, strict=True)
        ]
        cells += [(program, None, why) for program, why in sorted(measurement.refused.items())]
        rows: list[tuple[Cell, ...]] = [
            (program, *script.get_schedule(program).values(), text, why)
            for program, text, why in cells
        ]
        heads = ("index", *script.schedules, f"latency ({unit})", "note")
        device = f"arch {measurement.arch}, device {measurement.device}"
        parts.append(f"{device}\n\n{format_table(heads, rows)}")
    return "\n".join(parts)


ProgramMeta = Mapping[str, Any]


def list_schedule_columns(parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of `schedule.txt`."""
    return ("index", *parameters, "status", *RESOURCES, "dynamic_smem", "program")


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
                *(max((usage[name] for usage in usages), default=None) for name in RESOURCES),
                meta.get("dynamic_smem") if meta else None,
                program,
            )
        )
    return rows
