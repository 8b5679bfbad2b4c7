"""Tilus' layout: `scripts/<name>/<constants>-<hash8>/` with links into `programs/<hash12>/`.

Programs are numbered as Tilus does, among those that were built, and the tables are renumbered to
that. `tilus.runtime.load_compiled_program` takes every program directory; `compile.sh` works in it,
since the headers that it reads come along.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator

from tilusbuild import __version__
from tilusbuild.interop.export.scripts import (
    ExportedProgram,
    ExportedScript,
    HardLink,
    Item,
    OwnFile,
    SymLink,
)
from tilusbuild.runtime.tables import Table
from tilusbuild.table import Cell, table

_SCRIPT_DIGITS, _PROGRAM_DIGITS = 8, 12
"""Of sha256 in hexadecimal, as Tilus shortens it."""


_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")


def layout(scripts: Iterable[ExportedScript]) -> Iterator[Item]:
    """Yield the items of the export."""
    shown: set[str] = set()
    for exported in scripts:
        yield from _script(exported)
        for program in (*exported.built, *exported.refused):
            if program.hash not in shown:
                shown.add(program.hash)
                yield from _program(program)
        for directory in sorted({path for program in exported.built for path in program.includes}):
            if directory not in shown:
                shown.add(directory)
                yield from _headers(directory)


def _script(exported: ExportedScript) -> Iterator[Item]:
    script = exported.script
    last = script.hash[:_SCRIPT_DIGITS]
    home = f"scripts/{exported.name}/{_file_name([*script.params.values(), last])}"
    yield OwnFile(f"{home}/meta.json", _json(_meta(exported)))
    yield OwnFile(f"{home}/schedule.txt", _schedules(exported).encode())
    for number, program in enumerate(exported.built):
        yield SymLink(f"{home}/programs/{number}", _link(program))
    for program in exported.refused:
        reason = str(program.meta.get("reason", ""))
        yield OwnFile(f"{home}/failed/building/{program.index}.txt", f"{reason}\n".encode())
        yield SymLink(f"{home}/failed/building/{program.index}", f"../{_link(program)}")
    if exported.tables:
        chosen = exported.tables[0]
        yield OwnFile(f"{home}/dispatch_table.json", _json(_dispatch(exported, chosen)))
        yield OwnFile(f"{home}/dispatch_table.txt", _choices(exported, chosen).encode())
    for key in exported.latency:
        report = f"latency/{key}/report.txt"
        yield HardLink(f"{home}/{report}", os.path.join(script.path, report))


def _program(program: ExportedProgram) -> Iterator[Item]:
    home = f"programs/{program.hash[:_PROGRAM_DIGITS]}"
    for name in program.files:
        yield HardLink(f"{home}/{name}", os.path.join(program.directory, name))


def _headers(directory: str) -> Iterator[Item]:
    for above, _, names in os.walk(directory):
        for name in sorted(names):
            path = os.path.join(above, name)
            yield HardLink(os.path.relpath(path, os.path.dirname(os.path.dirname(directory))), path)


def _link(program: ExportedProgram) -> str:
    return f"../../../../programs/{program.hash[:_PROGRAM_DIGITS]}"


def _meta(exported: ExportedScript) -> dict[str, object]:
    script = exported.script
    names = [argument.name for argument in script.arguments]
    return {
        "params": {
            "names": names,
            "types": [argument.type for argument in script.arguments],
            "const_params": list(script.params),
            "kernel_params": names,
            "tuning_params": list(script.keys),
        },
        "jit_key": [*script.params.values()],
        "jit_key_desc": ", ".join(f"{name}={value}" for name, value in script.params.items()),
    }


def _schedules(exported: ExportedScript) -> str:
    columns = exported.script.schedules
    rows: list[tuple[Cell, ...]] = [
        (number, *(column[program.index] for column in columns.values()))
        for number, program in enumerate(exported.built)
    ]
    return table(("index", *columns), rows)


def _renumbered(exported: ExportedScript, chosen: Table) -> Iterator[tuple[tuple[int, ...], int]]:
    numbers = {program.index: number for number, program in enumerate(exported.built)}
    for entry in chosen.entries:
        if entry.program in numbers:
            yield entry.key, numbers[entry.program]


def _choices(exported: ExportedScript, chosen: Table) -> str:
    rows = [(*key, number) for key, number in _renumbered(exported, chosen)]
    return table((*exported.script.keys, "choice"), rows)


def _dispatch(exported: ExportedScript, chosen: Table) -> dict[str, object]:
    """Return a table as later versions of Tilus read it.

    They ignore a table with a field of `_metadata` that differs from theirs; "*" never differs.
    """
    said, kind = chosen.fingerprint, exported.script.kind
    arch = said.get("arch", "*")
    number = arch.removeprefix("sm_").rstrip("af")
    metadata = {
        "tilus_version": "*",
        "target": "*" if arch == "*" or kind == "cpu" else f"nvgpu/{arch.replace('_', '')}",
        "gpu": said.get("device", "*"),
        "compute_capability": f"{number[:-1]}.{number[-1]}" if number.isdigit() else "*",
        "cuda_version": "*",
        "tilusbuild_version": __version__,
    }
    entries = [[list(key), choice] for key, choice in _renumbered(exported, chosen)]
    return {"_metadata": metadata, "entries": entries}


def _file_name(values: Iterable[object]) -> str:
    return _UNSAFE.sub("_", "-".join(map(str, values)))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=4, ensure_ascii=False) + "\n").encode()
