"""The layouts of Tilus and Hidet: pure functions from what was built to its export.

Each follows the names that its system documents. Only Tilus loads what is exported; see
docs/views.md for what Hidet does with it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from tilusbuild._version import __version__
from tilusbuild.cache import layout
from tilusbuild.interop.export.scripts import ExportedProgram, ExportedScript, ExportItem
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.tables import DeviceTable
from tilusbuild.state.files import sha256_bytes
from tilusbuild.table import Cell, format_table

# Tilus: `scripts/<name>/<constants>-<hash8>/` with links into `programs/<hash12>/`. Programs are
# numbered as Tilus does, among those that were built, and the tables are renumbered to that.
# `tilus.runtime.load_compiled_program` takes every program directory; `compile.sh` works in it,
# since the headers that it reads come along.

_TILUS_SCRIPT_DIGITS, _TILUS_PROGRAM_DIGITS = 8, 12
"""Of sha256 in hexadecimal, as Tilus shortens it."""


def lay_out_for_tilus(scripts: Iterable[ExportedScript]) -> Iterator[ExportItem]:
    """Yield the items of an export in Tilus' layout."""
    laid_out: set[str] = set()
    for exported in scripts:
        yield from _list_tilus_script(exported)
        for program in (*exported.built, *exported.refused):
            if program.hash not in laid_out:
                laid_out.add(program.hash)
                home = f"programs/{_make_tilus_name(program.directory)}"
                for name in program.files:
                    yield ExportItem(f"{home}/{name}", source=f"{program.directory}/{name}")
        for directory in sorted({path for program in exported.built for path in program.includes}):
            if directory not in laid_out:
                laid_out.add(directory)
                yield from _list_headers(directory)


def _list_tilus_script(exported: ExportedScript) -> Iterator[ExportItem]:
    script = exported.script
    # As Tilus does: the constants, and the beginning of the hash.
    key = "-".join(map(str, (*script.params.values(), script.hash[:_TILUS_SCRIPT_DIGITS])))
    home = f"scripts/{exported.name}/{re.sub('[^A-Za-z0-9_.+-]', '_', key)}"
    yield ExportItem(f"{home}/meta.json", _encode_json(_make_tilus_meta(exported)))
    yield ExportItem(f"{home}/schedule.txt", _format_schedules(exported).encode())
    for number, program in enumerate(exported.built):
        yield ExportItem(f"{home}/programs/{number}", leads_to=_make_program_link(program))
    for program in exported.refused:
        reason = str(program.meta.get("reason", ""))
        yield ExportItem(f"{home}/failed/building/{program.index}.txt", f"{reason}\n".encode())
        link = f"../{_make_program_link(program)}"
        yield ExportItem(f"{home}/failed/building/{program.index}", leads_to=link)
    if exported.tables:
        first_table = exported.tables[0]
        yield ExportItem(
            f"{home}/dispatch_table.json", _encode_json(_make_tilus_dispatch(exported, first_table))
        )
        yield ExportItem(
            f"{home}/dispatch_table.txt", _format_tilus_choices(exported, first_table).encode()
        )
    for key in exported.latency:
        report = f"{layout.LATENCY}/{key}/{layout.LATENCY_REPORT}"
        yield ExportItem(f"{home}/{report}", source=os.path.join(script.path, report))


def _list_headers(directory: str) -> Iterator[ExportItem]:
    home = f"{layout.INCLUDE}/{os.path.basename(directory)}"
    for name in layout.list_files_below(directory):
        yield ExportItem(f"{home}/{name}", source=os.path.join(directory, name))


def _make_program_link(program: ExportedProgram) -> str:
    return f"../../../../programs/{_make_tilus_name(program.directory)}"


@lru_cache(maxsize=1024)
def _make_tilus_name(directory: str) -> str:
    """Return a program's name in Tilus' layout: the start of sha256(options.txt + program.txt)."""
    texts = (os.path.join(directory, name) for name in (layout.OPTIONS_TXT, layout.PROGRAM_TXT))
    return sha256_bytes(b"".join(map(read_bytes, texts)))[:_TILUS_PROGRAM_DIGITS]


def _make_tilus_meta(exported: ExportedScript) -> dict[str, object]:
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


def _format_schedules(exported: ExportedScript) -> str:
    columns = exported.script.schedules
    rows: list[tuple[Cell, ...]] = [
        (number, *(column[program.index] for column in columns.values()))
        for number, program in enumerate(exported.built)
    ]
    return format_table(("index", *columns), rows)


def _renumber_entries(
    exported: ExportedScript, dispatch_table: DeviceTable
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (key, number) for the rows of a table, with the numbers of the built programs."""
    numbers = {program.index: number for number, program in enumerate(exported.built)}
    for entry in dispatch_table.entries:
        if entry.program in numbers:
            yield entry.key, numbers[entry.program]


def _format_tilus_choices(exported: ExportedScript, dispatch_table: DeviceTable) -> str:
    rows = [(*key, number) for key, number in _renumber_entries(exported, dispatch_table)]
    return format_table((*exported.script.keys, "choice"), rows)


def _make_tilus_dispatch(
    exported: ExportedScript, dispatch_table: DeviceTable
) -> dict[str, object]:
    """Return a dispatch table as later versions of Tilus read it.

    Tilus ignores a table in which a field of `_metadata` differs from its own; "*" never differs.
    """
    fingerprint, kind = dispatch_table.fingerprint, exported.script.kind
    arch = fingerprint.get("arch", "*")
    number = arch.removeprefix("sm_").rstrip("af")
    metadata = {
        "tilus_version": "*",
        "target": "*" if arch == "*" or kind == "cpu" else f"nvgpu/{arch.replace('_', '')}",
        "gpu": fingerprint.get("device", "*"),
        "compute_capability": f"{number[:-1]}.{number[-1]}" if number.isdigit() else "*",
        "cuda_version": "*",
        "tilusbuild_version": __version__,
    }
    entries = [[list(key), choice] for key, choice in _renumber_entries(exported, dispatch_table)]
    return {"_metadata": metadata, "entries": entries}


def _encode_json(value: object) -> bytes:
    return (json.dumps(value, indent=4, ensure_ascii=False) + "\n").encode()


# Hidet: `ops/<target>_space_<level>/<operator>/<hash16>/`, a directory for each program. Hidet
# links all schedules of an operator into one library; here each has its own. `dispatch_table.txt`
# is beside them and names the directories.

_HIDET_DIGITS = 16
_HIDET_FILES = {
    "source.cu": layout.SOURCE,
    "task.txt": layout.PROGRAM_TXT,
    "meta.json": layout.META,
}


def lay_out_for_hidet(scripts: Iterable[ExportedScript]) -> Iterator[ExportItem]:
    """Yield the items of an export in Hidet's layout."""
    laid_out: set[str] = set()
    for exported in scripts:
        level = exported.script.level
        kind = "cpu" if exported.script.kind == "cpu" else "cuda"
        operator_path = f"ops/{kind}_space_{level}/{exported.name}"
        for program in exported.built:
            home = f"{operator_path}/{program.hash[:_HIDET_DIGITS]}"
            # Two instances may have the same program.
            if home in laid_out:
                continue
            laid_out.add(home)
            original_by_name = {os.path.basename(program.product): program.product, **_HIDET_FILES}
            # A program that is linked of objects has no source of its own.
            for name, original in original_by_name.items():
                if original in (*program.files, layout.META):
                    path = os.path.join(program.directory, original)
                    yield ExportItem(f"{home}/{name}", source=path)
            yield ExportItem(f"{home}/nvcc_log.txt", _write_hidet_log(program))
            yield ExportItem(
                f"{home}/summary.txt", _format_hidet_summary(exported, program).encode()
            )
        if exported.tables:
            name = f"{operator_path}/{exported.script.hash[:_HIDET_DIGITS]}.dispatch_table.txt"
            yield ExportItem(name, _format_hidet_choices(exported).encode())


def _write_hidet_log(program: ExportedProgram) -> bytes:
    """Return the log of a compile: the commands, as in Hidet's log, then the output."""
    script = read_bytes(os.path.join(program.directory, layout.COMPILE_SH))
    lines = script.splitlines(keepends=True)
    commands = [line.removeprefix(b"run ") for line in lines if line.startswith(b"run ")]
    return b"".join([*commands, read_bytes(os.path.join(program.directory, layout.LOG))])


def _format_hidet_summary(exported: ExportedScript, program: ExportedProgram) -> str:
    """Return a table of a program's schedule and of the resources of its code."""
    columns = exported.script.schedules
    facts: list[tuple[Cell, ...]] = [
        (name, column[program.index]) for name, column in columns.items()
    ]
    for kernel, by_arch in program.meta.get("kernels", {}).items():
        for arch, numbers in by_arch.items():
            facts += ((f"{kernel} {arch} {name}", number) for name, number in numbers.items())
    return format_table(("", "value"), facts)


def _format_hidet_choices(exported: ExportedScript) -> str:
    """Return the dispatch table as Hidet writes it: sizes, then the name of the program's
    directory."""
    lines = [" ".join((*exported.script.keys, "program"))]
    name_by_index = {program.index: program.hash[:_HIDET_DIGITS] for program in exported.programs}
    lines += (
        " ".join((*map(str, entry.key), name_by_index[entry.program]))
        for entry in exported.tables[0].entries
        if entry.program in name_by_index
    )
    return "\n".join(lines) + "\n"
