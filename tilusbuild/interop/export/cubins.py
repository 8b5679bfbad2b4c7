"""The GPU code of scripts as cubins, for who launches kernels through the driver himself.

`<script>/<constants>-<8 digits>/` holds the cubins of an instance, `<program>.<arch>.cubin`, and
`kernels.json`, which says what a launch needs: the kernels' symbols and resources, the arguments in
their order, grid, block and shared memory, and of each program the values that these are over.
Cubins are taken out of the programs' libraries, so they are the bytes that `load` would run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator

from tilusbuild.binary import BinaryError, extract_cubins, read_cubin
from tilusbuild.binary.fatbin import Cubin
from tilusbuild.cache import layout
from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.interop.export.scripts import (
    ExportedProgram,
    ExportedScript,
    ExportItem,
    directory_of,
)
from tilusbuild.plan.identity import sections
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.state.files import sha256_bytes

_DIGITS = 8
SCHEMA = 1


def cubin_layout(scripts: Iterable[ExportedScript]) -> Iterator[ExportItem]:
    """Yield the items of an export of cubins. Raises `InputError` where no script has any, and
    `TilusbuildError`."""
    there = False
    for exported in scripts:
        if exported.script.kind != "cpu" and exported.built:
            there = True
            yield from _instance(exported)
    if not there:
        hint = "cubins are made for GPU targets"
        raise input_error("nothing that was built here has GPU code", hint=hint)


def _instance(exported: ExportedScript) -> Iterator[ExportItem]:
    script = exported.script
    home = f"{exported.name}/{directory_of(script, _DIGITS)}"
    programs: list[dict[str, object]] = []
    launch: dict[str, str] = {}
    for program in exported.built:
        text = sections(read_text(os.path.join(program.directory, layout.PROGRAM_TXT)))
        launch = text.get("launch", launch)
        try:
            cubins = [(name, cubin, _described(name, cubin)) for name, cubin in _named(program)]
        except BinaryError as error:
            where = os.path.join(program.directory, program.product)
            raise TilusbuildError(f"{where}: its GPU code cannot be read: {error}") from None
        for name, cubin, _ in cubins:
            yield ExportItem(f"{home}/{name}", cubin.data)
        columns = script.schedules
        programs.append(
            {
                "program": program.index,
                "hash": program.hash,
                "schedule": {name: column[program.index] for name, column in columns.items()},
                "derived": {name: _value(each) for name, each in text.get("derived", {}).items()},
                "dynamic_smem": program.meta.get("dynamic_smem"),
                "images": [described for *_, described in cubins],
            }
        )
    listing = {
        "schema": SCHEMA,
        "script": script.name,
        "target": script.target,
        "constants": dict(script.params),
        "args": [{"name": each.name, "type": each.type} for each in script.arguments],
        "launch": launch,
        "programs": programs,
    }
    text_of_all = json.dumps(listing, indent=1, ensure_ascii=False) + "\n"
    yield ExportItem(f"{home}/kernels.json", text_of_all.encode("utf-8", "surrogateescape"))


def _value(text: str) -> object:
    """Return a value of program.txt; as its text where JSON has no such number."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(program: ExportedProgram) -> Iterator[tuple[str, Cubin]]:
    """Yield the cubins of a program by the names of their files. A template with host code may
    have several for one architecture."""
    seen = Counter[str]()
    for cubin in extract_cubins(read_bytes(os.path.join(program.directory, program.product))):
        arch = cubin.image.arch
        seen[arch] += 1
        again = f".{seen[arch]}" if seen[arch] > 1 else ""
        yield f"{program.index}.{arch}{again}.cubin", cubin


def _described(name: str, cubin: Cubin) -> dict[str, object]:
    return {
        "file": name,
        "arch": cubin.image.arch,
        "sha256": sha256_bytes(cubin.data),
        "kernels": {
            each.name: {
                "registers": each.registers,
                "static_smem": each.static_smem,
                "stack": each.stack,
            }
            for each in read_cubin(cubin.data)
        },
    }
