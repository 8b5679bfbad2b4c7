"""Hidet's layout: `ops/<target>_space_<level>/<operator>/<hash16>/`, a directory for each program.

Hidet links all schedules of an operator into one library; here each has its own.
`dispatch_table.txt` is beside them and names the directories.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from tilusbuild.interop.export.scripts import ExportedScript, HardLink, Item, OwnFile

_DIGITS = 16
_FILES = {
    "lib.so": "module/lib.so",
    "source.cu": "module/source.cu",
    "nvcc_log.txt": "module/nvcc_output.txt",
    "task.txt": "program.txt",
    "meta.json": "meta.json",
}


def layout(scripts: Iterable[ExportedScript]) -> Iterator[Item]:
    """Yield the items of the export."""
    shown: set[str] = set()
    for exported in scripts:
        level = _level(exported)
        kind = "cpu" if exported.script.kind == "cpu" else "cuda"
        above = f"ops/{kind}_space_{level}/{exported.name}"
        for program in exported.built:
            home = f"{above}/{program.hash[:_DIGITS]}"
            if home in shown:
                continue
            shown.add(home)
            for name, original in _FILES.items():
                yield HardLink(f"{home}/{name}", os.path.join(program.directory, original))
        if exported.tables:
            name = f"{above}/{exported.script.hash[:_DIGITS]}.dispatch_table.txt"
            yield OwnFile(name, _choices(exported).encode())


def _level(exported: ExportedScript) -> int:
    """Return 0 for a single schedule, as Hidet does, and 2 for any other space."""
    return 0 if len(exported.programs) == 1 else 2


def _choices(exported: ExportedScript) -> str:
    """Write choices as Hidet does: the sizes, then which program, here by directory name."""
    lines = [" ".join((*exported.script.keys, "program"))]
    for entry in exported.tables[0].entries:
        digest = exported.programs[entry.program].hash[:_DIGITS]
        lines.append(" ".join((*map(str, entry.key), digest)))
    return "\n".join(lines) + "\n"
