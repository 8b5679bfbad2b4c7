"""Hidet's layout: `ops/<target>_space_<level>/<operator>/<hash16>/`, a folder a program.

Hidet links all schedules of an operator into one library; here each has its own, so that a folder
is one program. `dispatch_table.txt` stands beside them and names the folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from tilusbuild.interop.export.model import Item, Linked, Source, Written

_DIGITS = 16
_FILES = {
    "lib.so": "module/lib.so",
    "source.cu": "module/source.cu",
    "nvcc_log.txt": "module/nvcc_output.txt",
    "task.txt": "program.txt",
    "meta.json": "meta.json",
}


def layout(sources: Iterable[Source]) -> Iterator[Item]:
    """The items of the view."""
    shown: set[str] = set()
    for source in sources:
        level = _level(source)
        kind = "cpu" if source.script.kind == "cpu" else "cuda"
        above = f"ops/{kind}_space_{level}/{source.folder}"
        for program in source.built:
            home = f"{above}/{program.hash[:_DIGITS]}"
            if home in shown:
                continue
            shown.add(home)
            for name, original in _FILES.items():
                yield Linked(f"{home}/{name}", os.path.join(program.folder, original))
        if source.tables:
            name = f"{above}/{source.script.hash[:_DIGITS]}.dispatch_table.txt"
            yield Written(name, _choices(source).encode())


def _level(source: Source) -> int:
    """0 is one schedule, as in Hidet; how large a space is beyond that, nobody can tell."""
    return 0 if len(source.programs) == 1 else 2


def _choices(source: Source) -> str:
    """Points as Hidet writes them: the sizes, then which one, here the folder's name."""
    lines = [" ".join((*source.script.keys, "program"))]
    for entry in source.tables[0].entries:
        digest = source.programs[entry.program].hash[:_DIGITS]
        lines.append(" ".join((*map(str, entry.key), digest)))
    return "\n".join(lines) + "\n"
