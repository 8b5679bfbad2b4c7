"""What was measured, by schedule: a file that a repository keeps, so that other checkouts choose by
it.

A program's hash changes with its compiler, and its number with the space; its schedule does not. A
line of JSON says what the file is, then each line is a row (folded here), in order, so that a diff
shows what changed:

    {"schema": 1, "script": "matmul"}
    {"target": "h100", "device": "NVIDIA H100 80GB HBM3", "arch": "sm_90",
     "params": {"dtype": "f16"}, "sizes": {"m": 16}, "schedule": {"block_m": 64},
     "seconds": 1.187e-05}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.expr import Value
from tilusbuild.runtime.regular import read_text

if TYPE_CHECKING:
    from tilusbuild.manifest.model import Manifest

SCHEMA = 1
_DIGITS = 4
"""Of the seconds: the rest is noise, which a diff need not show."""
_Size = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class TunedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule that was chosen for some sizes of an instance on a device."""

    target: str
    device: str
    arch: str
    params: dict[str, Value]
    sizes: dict[str, _Size]
    """Of the calls that were measured, by dispatch key."""
    schedule: dict[str, Value]
    seconds: Annotated[float, Meta(ge=0)]

    @property
    def place(self) -> tuple[str, ...]:
        """What no two rows have in common, in the order of the file."""
        return (self.target, self.device, self.arch, _text(self.params), _text(self.sizes))

    def is_of(self, target: str, params: Mapping[str, Value]) -> bool:
        """Return whether it speaks of this instance."""
        return self.target == target and _text(self.params) == _text(params)


class _Head(Struct, frozen=True):
    schema: int
    script: str


def _text(values: Mapping[str, Value]) -> str:
    """Return a text for each values, another for `1` and `true`; whole numbers sort by size."""
    shown = {n: f"{v:020}" if type(v) is int else v for n, v in values.items()}
    return json.dumps(shown, sort_keys=True)


def read_rows(manifest: Manifest, script: str) -> tuple[TunedRow, ...]:
    """Return the rows of a script's file; none without one, or while there is none yet. Raises
    `InputError` for a file of another kind, at its line."""
    dispatch = manifest.scripts[script].dispatch
    name = None if dispatch is None else dispatch.measured
    if name is None:
        return ()
    try:
        text = read_text(os.path.join(manifest.root, name))
    except FileNotFoundError:
        return ()
    except OSError as error:
        place = manifest.place_of_value("script", script, "dispatch", "measured")
        raise input_error(f"{name} cannot be read: {error.strerror}", place=place) from None
    lines = text.splitlines() or [""]
    _check_head(name, lines[0], script)
    found: dict[tuple[str, ...], TunedRow] = {}
    for number, line in enumerate(lines[1:], 2):
        row: TunedRow = _decoded(name, number, line, TunedRow, _ROW)
        if row.place in found:
            what = "another row has the same instance, device and sizes"
            raise _wrong(name, number, line, what, "keep one of the rows")
        found[row.place] = row
    return tuple(found.values())


_ROW = "`tilusbuild dispatch export` writes a row a line, with the keys " + ", ".join(
    TunedRow.__struct_fields__
)


def _check_head(name: str, line: str, script: str) -> None:
    hint = f'the first line is {{"schema": {SCHEMA}, "script": "{script}"}}'
    head: _Head = _decoded(name, 1, line, _Head, hint)
    if head.schema != SCHEMA:
        what = f"it is of schema {head.schema}, and this version of tilusbuild reads {SCHEMA}"
        raise _wrong(name, 1, line, what, hint)
    if head.script != script:
        what = f"these are measurements of {head.script}, not of {script}"
        raise _wrong(name, 1, line, what, "give each script a file of its own")


def _decoded(name: str, number: int, line: str, kind: type[Any], hint: str) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise _wrong(name, number, line, f"this is not a measurement: {error}", hint) from None


def _wrong(name: str, number: int, line: str, what: str, hint: str) -> InputError:
    return InputError(Diagnostic(what, Place(name, number, 1, line), hint))


def rows_text(script: str, rows: Iterable[TunedRow]) -> str:
    """Return the file of a script's rows."""
    head = {"schema": SCHEMA, "script": script}
    ordered = sorted(rows, key=lambda row: row.place)
    values = [head, *(msgspec.to_builtins(row) for row in ordered)]
    return "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)


def rounded(seconds: float) -> float:
    """Return seconds as a row has them."""
    return float(f"{seconds:.{_DIGITS}g}")
