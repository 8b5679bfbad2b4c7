"""TileLang's layout: `<version>/<system>/kernels/<hash>/` with a manifest of sizes and digests.

A directory holds device source, host source, library, parameters and `manifest.json`,
as TileLang's own do for its default backend; a script's programs are entries of their own. The
version names the writer: TileLang itself looks only below its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator

from tilusbuild import __version__
from tilusbuild.interop.export.scripts import (
    ExportedProgram,
    ExportedScript,
    HardLink,
    Item,
    OwnFile,
)
from tilusbuild.runtime.script import ScriptArgument

LIBRARY = "executable.so"


def layout(scripts: Iterable[ExportedScript]) -> Iterator[Item]:
    """Yield the items of the export."""
    shown: set[str] = set()
    for exported in scripts:
        system = f"tilusbuild-{__version__}/linux-{exported.script.machine}/kernels"
        for program in exported.built:
            if program.hash not in shown:
                shown.add(program.hash)
                yield from _kernel(f"{system}/{program.hash}", exported, program)


def _kernel(home: str, exported: ExportedScript, program: ExportedProgram) -> Iterator[Item]:
    params = _params(exported, program)
    files = {
        "params.json": {"size": len(params), "sha256": hashlib.sha256(params).hexdigest()},
        "device_kernel.cu": program.meta["files"]["module/source.cu"],
        LIBRARY: program.meta["files"]["module/lib.so"],
    }
    yield OwnFile(f"{home}/params.json", params)
    yield HardLink(f"{home}/device_kernel.cu", os.path.join(program.directory, "module/source.cu"))
    yield HardLink(f"{home}/{LIBRARY}", os.path.join(program.directory, "module/lib.so"))
    launcher = _launcher(program)
    if launcher is not None:
        files["host_kernel.cu"] = _facts(launcher)
        yield HardLink(f"{home}/host_kernel.cu", launcher)
    manifest = {"version": 1, "files": dict(sorted(files.items()))}
    yield OwnFile(f"{home}/manifest.json", json.dumps(manifest, indent=2).encode())


def _launcher(program: ExportedProgram) -> str | None:
    """Return the generated host source; None for a template with host code of its own."""
    paths = (os.path.join(directory, "launcher.c") for directory in program.includes)
    return next((path for path in paths if os.path.isfile(path)), None)


def _facts(path: str) -> dict[str, object]:
    with open(path, "rb") as file:
        data = file.read()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _params(exported: ExportedScript, program: ExportedProgram) -> bytes:
    """Return the signature; what TileLang itself writes here is a graph of its compiler."""
    columns = exported.script.schedules
    value = {
        "script": exported.script.name,
        "constants": dict(exported.script.params),
        "schedule": {name: column[program.index] for name, column in columns.items()},
        "params": [_param(argument) for argument in exported.script.arguments],
    }
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _param(argument: ScriptArgument) -> dict[str, object]:
    return {
        "name": argument.name,
        "type": argument.type,
        "dtype": argument.dtype,
        "output": argument.out,
    }
