"""TileLang's layout: `<version>/<system>/kernels/<hash>/` with a manifest of sizes and digests.

A folder holds the device source, the host source, the library, the parameters and `manifest.json`,
as TileLang's own do for its default backend; a script's programs are entries of their own. The
version names the writer: TileLang itself looks only below its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator

from tilusbuild import __version__
from tilusbuild.interop.export.model import Item, Linked, Program, Source, Written
from tilusbuild.runtime.script import ScriptArgument

LIBRARY = "executable.so"


def layout(sources: Iterable[Source]) -> Iterator[Item]:
    """The items of the view."""
    shown: set[str] = set()
    for source in sources:
        system = f"tilusbuild-{__version__}/linux-{source.script.machine}/kernels"
        for program in source.built:
            if program.hash not in shown:
                shown.add(program.hash)
                yield from _kernel(f"{system}/{program.hash}", source, program)


def _kernel(home: str, source: Source, program: Program) -> Iterator[Item]:
    params = _params(source, program)
    files = {
        "params.json": {"size": len(params), "sha256": hashlib.sha256(params).hexdigest()},
        "device_kernel.cu": program.meta["files"]["module/source.cu"],
        LIBRARY: program.meta["files"]["module/lib.so"],
    }
    yield Written(f"{home}/params.json", params)
    yield Linked(f"{home}/device_kernel.cu", os.path.join(program.folder, "module/source.cu"))
    yield Linked(f"{home}/{LIBRARY}", os.path.join(program.folder, "module/lib.so"))
    launcher = _launcher(program)
    if launcher is not None:
        files["host_kernel.cu"] = _facts(launcher)
        yield Linked(f"{home}/host_kernel.cu", launcher)
    manifest = {"version": 1, "files": dict(sorted(files.items()))}
    yield Written(f"{home}/manifest.json", json.dumps(manifest, indent=2).encode())


def _launcher(program: Program) -> str | None:
    """The generated host source; a program whose template has its own host code has none."""
    paths = (os.path.join(folder, "launcher.c") for folder in program.includes)
    return next((path for path in paths if os.path.isfile(path)), None)


def _facts(path: str) -> dict[str, object]:
    with open(path, "rb") as file:
        data = file.read()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _params(source: Source, program: Program) -> bytes:
    """The signature; TileLang's own file is a graph of its compiler, which nobody else has."""
    columns = source.script.schedules
    value = {
        "script": source.script.name,
        "constants": dict(source.script.params),
        "schedule": {name: column[program.index] for name, column in columns.items()},
        "params": [_param(argument) for argument in source.script.arguments],
    }
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _param(argument: ScriptArgument) -> dict[str, object]:
    return {
        "name": argument.name,
        "type": argument.type,
        "dtype": argument.dtype,
        "output": argument.out,
    }
