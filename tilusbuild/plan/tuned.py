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
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from tilusbuild.errors import Place, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.runtime.regular import read_text

SCHEMA = 1
_Size = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class TunedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule that was chosen for some sizes of an instance on a device."""

    target: str
    device: str
    arch: str
    params: dict[str, Value]
    sizes: dict[str, _Size]
    """The sizes of the measured calls, by dispatch key."""
    schedule: dict[str, Value]
    seconds: Annotated[float, Meta(ge=0)]

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Return target, device, architecture, constants and sizes: no two rows of a file have the
        same."""
        return (
            self.target,
            self.device,
            self.arch,
            _format_values(self.params),
            _format_values(self.sizes),
        )

    @property
    def line(self) -> str:
        """Return the row as a line of the file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False)

    def is_of_instance(self, target: str, params: Mapping[str, Value]) -> bool:
        """Return whether the row is about this instance."""
        return self.target == target and _format_values(self.params) == _format_values(params)


def _format_values(values: Mapping[str, Value]) -> str:
    """Return values as a text that distinguishes `1` from `true`, and sorts whole numbers by
    size."""
    # Integers are padded to twenty digits, which hold any 64-bit number, so that texts sort as the
    # numbers do. A bool stays a bool: its type is not int.
    sortable_values = {
        name: f"{value:020}" if type(value) is int else value for name, value in values.items()
    }
    return json.dumps(sortable_values, sort_keys=True)


def read_tuned_rows(manifest: Manifest, script: str) -> tuple[TunedRow, ...]:
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
        place = manifest.locate_value("script", script, "dispatch", "measured")
        raise input_error(f"{name} cannot be read: {error.strerror}", place=place) from None
    rows: dict[tuple[str, ...], TunedRow] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        place = Place(name, number, 1, line)
        try:
            # The first line is not a row: it has the file's schema and script.
            if number == 1:
                _check_head(line, script)
                continue
            row = msgspec.json.decode(line, type=TunedRow)
        # msgspec's errors are `ValueError`s, too.
        except (ValueError, RecursionError) as error:
            message = f"not measurements of {script}: {error}"
            expected_head = _format_head(script)
            hint = f"the first line is {expected_head}, each other one a row with the keys {_KEYS}"
            raise input_error(message, place=place, hint=hint) from None
        if row.sort_key in rows:
            message = "another row has the same instance, device and sizes"
            raise input_error(message, place=place, hint="keep one of them")
        rows[row.sort_key] = row
    return tuple(rows.values())


_KEYS = ", ".join(TunedRow.__struct_fields__)


def _format_head(script: str) -> str:
    return json.dumps({"schema": SCHEMA, "script": script})


def _check_head(line: str, script: str) -> None:
    head = json.loads(line)
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise ValueError(f"this version of tilusbuild reads schema {SCHEMA}")
    if head.get("script") != script:
        raise ValueError(f"they are of {head.get('script')!r:.80}")


def format_tuned_rows(script: str, rows: Iterable[TunedRow]) -> str:
    """Return the content of the file with these rows."""
    lines = (row.line for row in sorted(rows, key=lambda row: row.sort_key))
    return "".join(f"{line}\n" for line in (_format_head(script), *lines))
