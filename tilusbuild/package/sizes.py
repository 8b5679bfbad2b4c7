"""Who takes the space in a package: by script and target, and by program with its schedule.

A layer is packed as a whole, so what a program takes of it, packed, cannot be said; its files' own
sizes can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilusbuild.build.explain import sections
from tilusbuild.cache import layout
from tilusbuild.package.contents import Contents
from tilusbuild.package.formats.write_archive import write_layer
from tilusbuild.package.layers import Layer, named_layers
from tilusbuild.table import Cell, table


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A layer: how many programs it has, its files' bytes, and what it takes as a zstd frame."""

    layer: Layer
    programs: int
    files: int
    packed: int


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """A program: its files' bytes, and its constants and schedule as program.txt has them."""

    hash: str
    script: str
    target: str
    files: int
    schedule: Mapping[str, str]


def layer_sizes(contents: Contents) -> list[LayerSize]:
    """Every layer, the largest first. Packs them to know. Raises `CannotPack`."""
    found = []
    for layer in named_layers(contents.listed):
        counter = _Counter()
        write_layer(contents, layer, counter, time=0, end=False)
        files = sum(contents.listed.files[path].size for path in layer.paths)
        programs = {path.split("/")[1] for path in layer.paths if path.startswith(layout.PROGRAMS)}
        found.append(LayerSize(layer, len(programs), files, counter.size))
    return sorted(found, key=lambda each: (-each.packed, each.layer.label))


def program_sizes(contents: Contents) -> list[ProgramSize]:
    """Every program, the largest first. Raises `CannotPack`."""
    listed = contents.listed
    sizes = dict.fromkeys(listed.programs, 0)
    for path, file in listed.files.items():
        if path.startswith(f"{layout.PROGRAMS}/"):
            sizes[path.split("/")[1]] += file.size
    found = []
    for digest, program in listed.programs.items():
        text = contents.read(f"{layout.PROGRAMS}/{digest}/{layout.PROGRAM_TXT}")
        said = sections(text.decode("utf-8", "replace"))
        schedule = {**said.get("params", {}), **said.get("schedule", {})}
        found.append(ProgramSize(digest, program.script, program.target, sizes[digest], schedule))
    return sorted(found, key=lambda each: (-each.files, each.script, each.target, each.hash))


def layer_table(sizes: list[LayerSize]) -> str:
    """The layers for people."""
    rows: list[tuple[Cell, ...]] = [
        (each.layer.script or "headers", each.layer.target, each.programs, each.files, each.packed)
        for each in sizes
    ]
    counts = [(each.programs, each.files, each.packed) for each in sizes]
    rows.append(("all", "", *map(sum, zip(*counts, strict=True))))
    return table(("script", "target", "programs", "bytes", "packed"), rows)


def program_table(sizes: list[ProgramSize], most: int | None = None) -> str:
    """The programs for people, or the largest of them."""
    rows: list[tuple[Cell, ...]] = [
        (
            each.script,
            each.target,
            each.files,
            each.hash[:12],
            " ".join(f"{name}={value}" for name, value in each.schedule.items()),
        )
        for each in sizes[:most]
    ]
    return table(("script", "target", "bytes", "program", "schedule"), rows)


class _Counter:
    """Counts what is written to it."""

    size = 0

    def write(self, data: bytes, /) -> int:
        self.size += len(data)
        return len(data)
