"""The table of schedules in a script's folder: each with its program and what that needs.

Of several kernels or architectures in one program, the greatest of each number is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilusbuild.expr import Value
from tilusbuild.table import Cell

_RESOURCES = ("registers", "stack", "spill_stores", "spill_loads", "static_smem")

Meta = Mapping[str, Any]


def columns_of(parameters: Sequence[str]) -> tuple[str, ...]:
    """The heads."""
    return ("index", *parameters, "status", *_RESOURCES, "dynamic_smem", "program")


def rows_of(
    parameters: Sequence[str],
    schedules: Iterable[Mapping[str, Value]],
    programs: Sequence[str],
    metas: Sequence[Meta | None],
) -> list[tuple[Cell, ...]]:
    """A row for each schedule. `metas` are the programs' meta.json, None where there is none."""
    rows: list[tuple[Cell, ...]] = []
    for index, (values, program, meta) in enumerate(zip(schedules, programs, metas, strict=True)):
        kernels = meta.get("kernels", {}) if meta else {}
        usages = [usage for kernel in kernels.values() for usage in kernel.values()]
        rows.append(
            (
                index,
                *(values[name] for name in parameters),
                meta["status"] if meta else "missing",
                *(max((usage[name] for usage in usages), default=None) for name in _RESOURCES),
                meta.get("dynamic_smem") if meta else None,
                program,
            )
        )
    return rows
