"""The layouts of Tilus and Hidet: functions from the scripts of a cache to the items of an export.

Each follows the names that its system documents; docs/views.md says what the systems do with them.
Everything is read through the checks of the runtime and of the cache: a corrupt file is an error
that names it, never silently missing from the export.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from tilusbuild._version import __version__
from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, get_product, lookup_entry
from tilusbuild.cache.garbage import read_header_digests
from tilusbuild.cache.index import find_projects_here
from tilusbuild.cache.tree import Tree
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes, try_list
from tilusbuild.runtime.script import CALLED, Script, read_script
from tilusbuild.runtime.tables import DeviceTable, read_dispatch_table
from tilusbuild.state.files import sha256_bytes
from tilusbuild.status import Status
from tilusbuild.table import Cell, format_table


class ExportedScript(Struct, frozen=True):
    """A script with everything that a layout needs. `name` is in snake case. `built` and `refused`
    have the entries of its programs, by their numbers in the plan. `headers` has the absolute paths
    of the directories in `include/` that the compile.sh of the built ones read, `latency` the names
    of the directories in `latency/`."""

    script: Script
    name: str
    tables: tuple[DeviceTable, ...]
    built: Mapping[int, Entry]
    refused: Mapping[int, Entry]
    headers: tuple[str, ...]
    latency: tuple[str, ...]


class ExportItem(Struct, frozen=True):
    """A file of an export: one with `data`, a file of the cache (`source`), or a symbolic link
    within the export (`leads_to`). `path` is relative to the export."""

    path: str
    data: bytes = b""
    source: str = ""
    leads_to: str = ""


def list_exported_scripts(cache: Tree) -> list[ExportedScript]:
    """Return the scripts of the last build that can be called, sorted by name and hash: of the
    project around the working directory, elsewhere of every one. Raises `TilusbuildError`."""
    projects = find_projects_here(cache).values()
    roots = {pair for project in projects for pair in project.scripts}
    scripts = (_read_exported_script(cache, *pair) for pair in sorted(roots))
    return [exported for exported in scripts if exported.script.form == CALLED]


def _read_exported_script(cache: Tree, name: str, digest: str) -> ExportedScript:
    """Return a script with the entries of its programs. Raises `TilusbuildError`."""
    path = cache.script_path(name, digest)
    try:
        script = read_script(path)
        tables = read_dispatch_table(script).tables
    except LoadError as error:
        raise TilusbuildError(str(error)) from None
    entries = {index: lookup_entry(cache, program) for index, program in script.programs.items()}
    present = {index: entry for index, entry in entries.items() if entry is not None}
    built = {index: entry for index, entry in present.items() if entry.status == Status.BUILT}
    digests = {digest for entry in built.values() for digest in read_header_digests(entry.path)}
    reports = [
        key
        for key in try_list(os.path.join(path, layout.LATENCY))
        if os.path.isfile(os.path.join(path, layout.LATENCY, key, layout.LATENCY_REPORT))
    ]
    return ExportedScript(
        script=script,
        name=name,
        tables=tables,
        built=built,
        refused={index: entry for index, entry in present.items() if index not in built},
        headers=tuple(map(cache.include_path, sorted(digests))),
        latency=tuple(reports),
    )


# Tilus: `scripts/<name>/<constants>-<hash8>/` with links into `programs/<hash12>/`. Programs are
# numbered as Tilus does, among those that were built, and the tables are renumbered to that.
# `tilus.runtime.load_compiled_program` takes every program directory; `compile.sh` works in it,
# since the headers that it reads come along.

_TILUS_SCRIPT_DIGITS, _TILUS_PROGRAM_DIGITS = 8, 12
"""Of sha256 in hexadecimal, as Tilus shortens it."""


def lay_out_for_tilus(scripts: Iterable[ExportedScript]) -> Iterator[ExportItem]:
    """Yield the items of an export in Tilus' layout."""
    exported_keys: set[str] = set()
    for exported in scripts:
        yield from _list_tilus_script(exported)
        # Scripts share programs, and programs their headers: each is laid out once.
        for entry in (*exported.built.values(), *exported.refused.values()):
            if entry.hash not in exported_keys:
                exported_keys.add(entry.hash)
                program_path = f"programs/{_make_tilus_name(entry.path)}"
                for name in sorted(entry.meta["files"]):
                    yield ExportItem(f"{program_path}/{name}", source=f"{entry.path}/{name}")
        for directory in exported.headers:
            if directory not in exported_keys:
                exported_keys.add(directory)
                headers_path = f"{layout.INCLUDE}/{os.path.basename(directory)}"
                for name in layout.list_files_below(directory):
                    yield ExportItem(f"{headers_path}/{name}", source=f"{directory}/{name}")


def _list_tilus_script(exported: ExportedScript) -> Iterator[ExportItem]:
    """Yield the items of a script's directory: its description, its schedules, links to its
    programs, its dispatch table and its measurements."""
    script = exported.script
    # As Tilus does: the constants, and the beginning of the hash.
    key = "-".join(map(str, (*script.params.values(), script.hash[:_TILUS_SCRIPT_DIGITS])))
    script_path = f"scripts/{exported.name}/{re.sub('[^A-Za-z0-9_.+-]', '_', key)}"
    yield ExportItem(f"{script_path}/meta.json", _encode_json(_make_tilus_meta(exported)))
    yield ExportItem(f"{script_path}/schedule.txt", _format_schedules(exported).encode())
    programs = "../../../../programs"
    for number, entry in enumerate(exported.built.values()):
        link = f"{programs}/{_make_tilus_name(entry.path)}"
        yield ExportItem(f"{script_path}/programs/{number}", leads_to=link)
    for index, entry in exported.refused.items():
        failure = f"{script_path}/failed/building/{index}"
        yield ExportItem(f"{failure}.txt", f"{entry.reason}\n".encode())
        yield ExportItem(failure, leads_to=f"../{programs}/{_make_tilus_name(entry.path)}")
    if exported.tables:
        # Tilus has one table for a script.
        rows = _renumber_entries(exported, exported.tables[0])
        table = _make_tilus_dispatch(exported, exported.tables[0], rows)
        yield ExportItem(f"{script_path}/dispatch_table.json", _encode_json(table))
        choices = format_table((*script.keys, "choice"), [(*key, number) for key, number in rows])
        yield ExportItem(f"{script_path}/dispatch_table.txt", choices.encode())
    for key in exported.latency:
        report = f"{layout.LATENCY}/{key}/{layout.LATENCY_REPORT}"
        yield ExportItem(f"{script_path}/{report}", source=os.path.join(script.path, report))


# A program is asked for by each of its scripts, and as it is laid out itself.
@lru_cache(maxsize=1024)
def _make_tilus_name(directory: str) -> str:
    """Return a program's name in Tilus' layout: the start of sha256(options.txt + program.txt)."""
    texts = (os.path.join(directory, name) for name in (layout.OPTIONS_TXT, layout.PROGRAM_TXT))
    return sha256_bytes(b"".join(map(read_bytes, texts)))[:_TILUS_PROGRAM_DIGITS]


def _make_tilus_meta(exported: ExportedScript) -> dict[str, object]:
    """Return the content of a script's `meta.json`, as Tilus has it."""
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
    """Return a table of the built programs' schedules, numbered as Tilus numbers them."""
    columns = exported.script.schedules
    rows: list[tuple[Cell, ...]] = [
        (number, *(column[index] for column in columns.values()))
        for number, index in enumerate(exported.built)
    ]
    return format_table(("index", *columns), rows)


def _renumber_entries(
    exported: ExportedScript, table: DeviceTable
) -> list[tuple[tuple[int, ...], int]]:
    """Return (key, number) for the rows of a table whose program was built. `number` counts the
    built programs, as Tilus does."""
    numbers = {index: number for number, index in enumerate(exported.built)}
    rows = (row for row in table.entries if row.program in numbers)
    return [(row.key, numbers[row.program]) for row in rows]


def _make_tilus_dispatch(
    exported: ExportedScript, table: DeviceTable, rows: list[tuple[tuple[int, ...], int]]
) -> dict[str, object]:
    """Return a dispatch table as later versions of Tilus read it.

    Tilus ignores a table in which a field of `_metadata` differs from its own; "*" never differs.
    """
    fingerprint, kind = table.fingerprint, exported.script.kind
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
    return {"_metadata": metadata, "entries": [[list(key), number] for key, number in rows]}


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
    program_paths: set[str] = set()
    for exported in scripts:
        level = exported.script.level
        kind = "cpu" if exported.script.kind == "cpu" else "cuda"
        operator_path = f"ops/{kind}_space_{level}/{exported.name}"
        for index, entry in exported.built.items():
            program_path = f"{operator_path}/{entry.hash[:_HIDET_DIGITS]}"
            # Two instances may have the same program.
            if program_path in program_paths:
                continue
            program_paths.add(program_path)
            product = get_product(entry.meta).name
            original_by_name = {os.path.basename(product): product, **_HIDET_FILES}
            # A program that is linked of objects has no source of its own.
            for name, original in original_by_name.items():
                if original in (*entry.meta["files"], layout.META):
                    path = os.path.join(entry.path, original)
                    yield ExportItem(f"{program_path}/{name}", source=path)
            yield ExportItem(f"{program_path}/nvcc_log.txt", _make_hidet_log(entry))
            summary = _format_hidet_summary(exported.script, index, entry)
            yield ExportItem(f"{program_path}/summary.txt", summary.encode())
        if exported.tables:
            name = f"{operator_path}/{exported.script.hash[:_HIDET_DIGITS]}.dispatch_table.txt"
            yield ExportItem(name, _format_hidet_choices(exported).encode())


def _make_hidet_log(entry: Entry) -> bytes:
    """Return the log of a compile: the commands, as in Hidet's log, then the output."""
    lines = read_bytes(os.path.join(entry.path, layout.COMPILE_SH)).splitlines(keepends=True)
    commands = [line.removeprefix(b"run ") for line in lines if line.startswith(b"run ")]
    return b"".join([*commands, read_bytes(os.path.join(entry.path, layout.LOG))])


def _format_hidet_summary(script: Script, index: int, entry: Entry) -> str:
    """Return a table of a program's schedule and of the resources of its code."""
    facts: list[tuple[Cell, ...]] = [
        (name, column[index]) for name, column in script.schedules.items()
    ]
    for kernel, by_arch in entry.meta.get("kernels", {}).items():
        for arch, numbers in by_arch.items():
            facts += ((f"{kernel} {arch} {name}", number) for name, number in numbers.items())
    return format_table(("", "value"), facts)


def _format_hidet_choices(exported: ExportedScript) -> str:
    """Return the dispatch table as Hidet writes it: sizes, then a program's directory."""
    rows = [(*exported.script.keys, "program")]
    for row in exported.tables[0].entries:
        directory = exported.script.programs[row.program][:_HIDET_DIGITS]
        rows.append((*map(str, row.key), directory))
    return "".join(" ".join(row) + "\n" for row in rows)
