"""Rows of measurements: the form in which a cache keeps them (`dispatch/measurements.py`), and a
repository a choice of them, so that other checkouts choose by it.

A program's hash changes with its code and its compiler, and its number with the space; its schedule
does not. A row has the hash and the schedule. In a repository's file a line of JSON says what the
file is, then each line is a row (folded here), in order, so that a diff shows what changed:

    {"schema": 1, "script": "matmul"}
    {"target": "h100", "device": "NVIDIA H100 80GB HBM3", "arch": "sm_90",
     "params": {"dtype": "f16"}, "sizes": {"m": 16}, "schedule": {"block_m": 64},
     "seconds": 1.187e-05, "program": "5f1c…"}

A row with `cost` in place of sizes and a time is of `dispatch fit`: an expression over the keys
for the time of a schedule, of which the least serves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tilusbuild.errors import Location, input_error
from tilusbuild.expr import ExprError, Value, parse_expression
from tilusbuild.manifest.model import Manifest
from tilusbuild.runtime.regular import read_text

SCHEMA = 1
_Size = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class MeasuredRow(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The time of a program of an instance at some sizes on a device, or why it has none; or its
    fitted cost at any sizes."""

    target: str
    device: str
    arch: str
    params: dict[str, Value]
    cost: str = ""
    """The fitted cost; "" for a measurement."""
    sizes: dict[str, _Size | float | bool] = {}
    """The numbers of the measured calls by name, with at least the dispatch keys."""
    schedule: dict[str, Value]
    seconds: Annotated[float, Meta(ge=0)] | None = None
    program: str = ""
    """The program's hash; "" if it is not known: the row holds for any code of the schedule."""
    status: str = ""
    """How the program failed; "" for one with a time."""
    why: str = ""
    rejected: bool = False
    """Whether the program is to be chosen at no size: it computed wrong, or crashed."""
    judge: str = ""
    """The digest of the reference; "" if it is not known."""
    time: str = ""
    """The time of the tuning in UTC, as 2026-05-04T10:20:30Z. Rows of one tuning share it."""

    def __post_init__(self) -> None:
        if [self.seconds is not None, self.status != "", self.cost != ""].count(True) != 1:
            raise ValueError('a row has "seconds", a "status" that says why it has none, or "cost"')
        if self.cost:
            try:
                parse_expression(self.cost)
            except ExprError as error:
                raise ValueError(f"{self.cost!r:.80}: {error.message}") from None

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Return target, device, architecture, constants and sizes, of a cost the schedule: no two
        rows of a repository's file have the same."""
        device, arch, sizes = self.case_key
        final_key = f" {format_values(self.schedule)}" if self.cost else sizes  # costs come first
        return (self.target, device, arch, format_values(self.params), final_key)

    @property
    def case_key(self) -> tuple[str, str, str]:
        """Return device, architecture and sizes, which all programs of a tuning's case share, or
        all costs of a fit, whose sizes are ""."""
        return (self.device, self.arch, "" if self.cost else format_values(self.sizes))

    @property
    def line(self) -> str:
        """Return the row as a line of a file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False)

    def is_of_instance(self, target: str, params: Mapping[str, Value]) -> bool:
        """Return whether the row is about this instance."""
        return self.target == target and format_values(self.params) == format_values(params)


def select_numbers(sizes: Mapping[str, Value]) -> dict[str, int | float | bool]:
    """Return the sizes of a call that a row has: its numbers."""
    return {name: size for name, size in sizes.items() if not isinstance(size, str)}


def format_values(values: Mapping[str, Value]) -> str:
    """Return values as a text that distinguishes `1` from `true`, and sorts whole numbers by
    size."""
    # Integers are padded to twenty digits, which hold any 64-bit number, so that texts sort as the
    # numbers do. A bool stays a bool: its type is not int.
    sortable_values = {
        name: f"{value:020}" if type(value) is int else value for name, value in values.items()
    }
    return json.dumps(sortable_values, sort_keys=True)


def read_committed_rows(manifest: Manifest, script: str) -> tuple[MeasuredRow, ...]:
    """Return the rows of a script's file; none if the manifest names no file, or there is no
    file yet. Raises `InputError` for a malformed file, at its line."""
    dispatch = manifest.scripts[script].dispatch
    name = None if dispatch is None else dispatch.measured
    if name is None:
        return ()
    try:
        text = read_text(os.path.join(manifest.root, name))
    except FileNotFoundError:
        return ()
    except OSError as error:
        location = manifest.locate_value("script", script, "dispatch", "measured")
        raise input_error(f"{name} cannot be read: {error.strerror}", location=location) from None
    rows: dict[tuple[str, ...], MeasuredRow] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        location = Location(name, number, 1, line)
        try:
            # The first line is not a row: it has the file's schema and script.
            if number == 1:
                _check_head(line, script)
                continue
            row = msgspec.json.decode(line, type=MeasuredRow)
        # msgspec's errors are `ValueError`s, too.
        except (ValueError, RecursionError) as error:
            message = f"not measurements of {script}: {error}"
            expected_head = _format_head(script)
            hint = f"the first line is {expected_head}, each other one a row with the keys {_KEYS}"
            raise input_error(message, location=location, hint=hint) from None
        if row.sort_key in rows:
            message = "another row has the same instance, device and sizes"
            raise input_error(message, location=location, hint="keep one of them")
        rows[row.sort_key] = row
    return tuple(rows.values())


_KEYS = "target, device, arch, params, sizes, schedule, seconds"


def _format_head(script: str) -> str:
    return json.dumps({"schema": SCHEMA, "script": script})


def _check_head(line: str, script: str) -> None:
    head = json.loads(line)
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise ValueError(f"this version of tilusbuild reads schema {SCHEMA}")
    if head.get("script") != script:
        raise ValueError(f"they are of {head.get('script')!r:.80}")


def format_rows(script: str, rows: Iterable[MeasuredRow]) -> str:
    """Return the content of the file with these rows."""
    lines = (row.line for row in sorted(rows, key=lambda row: row.sort_key))
    return "".join(f"{line}\n" for line in (_format_head(script), *lines))
