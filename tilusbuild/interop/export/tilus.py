"""Tilus' layout: `scripts/<name>/<constants>-<hash8>/` with links into `programs/<hash12>/`.

Programs are numbered as Tilus does, among those that were built, and the tables are renumbered to
that. `tilus.runtime.load_compiled_program` takes every program folder; `compile.sh` works in it,
since the headers that it reads come along.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator

from tilusbuild import __version__
from tilusbuild.interop.export.model import Item, Linked, Pointer, Program, Source, Written, name_of
from tilusbuild.runtime.tables import Table
from tilusbuild.table import Cell, table

_SCRIPT_DIGITS, _PROGRAM_DIGITS = 8, 12
"""Of sha256 in hexadecimal, as Tilus shortens it."""


def layout(sources: Iterable[Source]) -> Iterator[Item]:
    """The items of the view."""
    shown: set[str] = set()
    for source in sources:
        yield from _script(source)
        for program in (*source.built, *source.refused):
            if program.hash not in shown:
                shown.add(program.hash)
                yield from _program(program)
        for folder in sorted({path for program in source.built for path in program.includes}):
            if folder not in shown:
                shown.add(folder)
                yield from _headers(folder)


def _script(source: Source) -> Iterator[Item]:
    script = source.script
    last = script.hash[:_SCRIPT_DIGITS]
    home = f"scripts/{source.folder}/{name_of([*script.params.values(), last])}"
    yield Written(f"{home}/meta.json", _json(_meta(source)))
    yield Written(f"{home}/schedule.txt", _schedules(source).encode())
    for number, program in enumerate(source.built):
        yield Pointer(f"{home}/programs/{number}", _link(program))
    for program in source.refused:
        reason = str(program.meta.get("reason", ""))
        yield Written(f"{home}/failed/building/{program.index}.txt", f"{reason}\n".encode())
        yield Pointer(f"{home}/failed/building/{program.index}", f"../{_link(program)}")
    if source.tables:
        chosen = source.tables[0]
        yield Written(f"{home}/dispatch_table.json", _json(_dispatch(source, chosen)))
        yield Written(f"{home}/dispatch_table.txt", _choices(source, chosen).encode())
    for key in source.latency:
        report = f"latency/{key}/report.txt"
        yield Linked(f"{home}/{report}", os.path.join(script.path, report))


def _program(program: Program) -> Iterator[Item]:
    home = f"programs/{program.hash[:_PROGRAM_DIGITS]}"
    for name in program.files:
        yield Linked(f"{home}/{name}", os.path.join(program.folder, name))


def _headers(folder: str) -> Iterator[Item]:
    for above, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(above, name)
            yield Linked(os.path.relpath(path, os.path.dirname(os.path.dirname(folder))), path)


def _link(program: Program) -> str:
    return f"../../../../programs/{program.hash[:_PROGRAM_DIGITS]}"


def _meta(source: Source) -> dict[str, object]:
    script = source.script
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


def _schedules(source: Source) -> str:
    columns = source.script.schedules
    rows: list[tuple[Cell, ...]] = [
        (number, *(column[program.index] for column in columns.values()))
        for number, program in enumerate(source.built)
    ]
    return table(("index", *columns), rows)


def _renumbered(source: Source, chosen: Table) -> Iterator[tuple[tuple[int, ...], int]]:
    numbers = {program.index: number for number, program in enumerate(source.built)}
    for entry in chosen.entries:
        if entry.program in numbers:
            yield entry.key, numbers[entry.program]


def _choices(source: Source, chosen: Table) -> str:
    rows = [(*key, number) for key, number in _renumbered(source, chosen)]
    return table((*source.script.keys, "choice"), rows)


def _dispatch(source: Source, chosen: Table) -> dict[str, object]:
    """As later versions of Tilus read it: a field that is another one here makes the table void."""
    said, kind = chosen.fingerprint, source.script.kind
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
    entries = [[list(key), choice] for key, choice in _renumbered(source, chosen)]
    return {"_metadata": metadata, "entries": entries}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=4, ensure_ascii=False) + "\n").encode()
