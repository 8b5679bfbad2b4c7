"""Programs of another build, cache or package beside those of a plan, schedule by schedule.

Matched are script, target, constants and schedule, so that a program that changed is still the same
row. The other side is a cache tree, a package, or the lines of an earlier `report --json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from tilusbuild.builder.costs import Cost
from tilusbuild.cache import layout
from tilusbuild.cache.entries import listed, read_meta
from tilusbuild.engine.history import History
from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.package.diff import side
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import FileList
from tilusbuild.package.read import texts
from tilusbuild.plan.planner import Plan
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.runtime.naming import value_text
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.sealed import CorruptFileError

Row: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Script, target, and `NAME=VALUE` of every constant and parameter."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a program on one side; null is not known."""

    hash: str
    status: str
    registers: int | None
    spills: int | None
    library: int | None
    seconds: float | None
    """Of its last compile."""


@dataclass(frozen=True, slots=True)
class ComparedLine(JsonLine):
    """A program on both sides; null where it is not."""

    event: ClassVar[str] = "compared"
    script: str
    target: str
    schedule: tuple[str, ...]
    """`NAME=VALUE` of each constant and parameter."""
    before: Figures | None
    after: Figures | None


def compared(
    plan: Plan, found: Sequence[Cost], other: str, *, whole: bool
) -> Iterator[ComparedLine]:
    """Yield every program of either side; unless the plan is of the `whole` project, only of its
    scripts and targets. Raises `InputError` and `PackageError`s for `other`."""
    pairs = {(each.script, each.target.name) for each in plan.instances}
    names = {each.label: (*each.params, *each.parameters) for each in plan.instances}
    after = {_row(cost, names[cost.instance]): _figures(cost) for cost in found}
    is_report = os.path.isfile(other) and _is_report(other)
    before = dict(_of_report(other, names) if is_report else _of_tree(other))
    for row in dict.fromkeys([*after, *before]):
        if whole or row[:2] in pairs:
            yield ComparedLine(*row, before.get(row), after.get(row))


def _row(cost: Cost, names: Sequence[str]) -> Row:
    return cost.script, cost.target, _texts({name: cost.values[name] for name in names})


def _texts(values: Mapping[str, Value]) -> tuple[str, ...]:
    return tuple(f"{name}={value_text(value)}" for name, value in values.items())


def _figures(cost: Cost) -> Figures:
    return Figures(cost.hash, cost.status, cost.registers, cost.spills, cost.library, cost.seconds)


def _is_report(path: str) -> bool:
    return read_bytes(path)[:10] == b'{"event": '


def _of_report(path: str, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[Row, Figures]]:
    for text in read_bytes(path).decode("utf-8", "replace").splitlines():
        try:
            line: dict[str, Any] = json.loads(text)
            if line["event"] != "program":
                continue
            usages = line["usages"]
            values = {n: line["values"][n] for n in names.get(line["instance"], line["values"])}
            figures = Figures(
                line["hash"],
                line["status"],
                max((int(usage["registers"]) for usage in usages), default=None),
                max((int(usage["spills"]) for usage in usages), default=None),
                line["library"],
                line["seconds"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise input_error(f"{path}: not what `report --json` prints: {error}") from None
        yield (line["script"], line["target"], _texts(values)), figures


def _wanted(listing: FileList) -> set[str]:
    metas = {f"{layout.PROGRAMS}/{program}/{layout.META}" for program in listing.programs}
    return texts(listing) | metas


def _of_tree(path: str) -> Iterator[tuple[Row, Figures]]:
    with side(path, Limits(), _wanted) as found:
        seconds = History(os.path.join(found.root, layout.STATE)).by_mark()
        for script in found.scripts.values():
            for number, program in enumerate(script.programs):
                try:
                    meta = read_meta(os.path.join(found.root, layout.PROGRAMS, program), program)
                except (FileNotFoundError, CorruptFileError):
                    continue
                usages = [u for archs in meta["kernels"].values() for u in archs.values()]
                sizes = {name: size for name, size, _ in listed(meta)}
                figures = Figures(
                    program,
                    meta["status"],
                    max((u["registers"] for u in usages), default=None),
                    max((u["spill_stores"] + u["spill_loads"] for u in usages), default=None),
                    sizes.get(layout.LIBRARY),
                    seconds.get(program[:12]),
                )
                values = {**script.params, **script.schedule(number)}
                yield (script.name, script.target, _texts(values)), figures
