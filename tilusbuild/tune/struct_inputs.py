"""Structs for a call of `run` and `tune`: a value for each member, and their bytes.

A member is what is given for it, as `p.alpha` or `p.strides[0]` among the sizes; else the size or
number of the call that has its name; else a number as other scalars get. An address is not an
argument's guess: it is given, as 0. The values are what the members hold, rounded to their types,
so that a reference computes with the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.runtime.dtypes import POINTER, integer_limits
from tilusbuild.runtime.structs import Member, struct_of
from tilusbuild.signature import Argument

Number = bool | int | float
StructInput = dict[str, Any]
"""The members' numbers; a list for an array."""
Convert = Callable[[float, str], Number]
"""From a number and an element type to what the type makes of it."""


def names_of(argument: Argument) -> list[str]:
    """Return what sizes may give of a struct: `p.alpha`, `p.strides[0]`."""
    return [name for _, name in _places(argument)]


def check(argument: Argument, sizes: Mapping[str, Value], rounded: Convert) -> None:
    """Raise `InputError` for a member that cannot be made of what is given."""
    for member, name in _places(argument):
        if name in sizes:
            _given(name, member.dtype, sizes[name], rounded)
        elif member.dtype == POINTER:
            raise input_error(
                f'"{name}" is an address, and nothing says which',
                hint=f"run and tune can pass null: give {name} = 0 in [script.….tune] sizes, or "
                f"as --size {name}=0; or call it from Python, as tilusbuild.load gives it",
            )


def made(
    argument: Argument,
    sizes: Mapping[str, Value],
    known: Mapping[str, object],
    rounded: Convert,
    any_number: Callable[[str], Number],
) -> StructInput:
    """Return a struct's members; `known` are the numbers of the call, `any_number` makes one of an
    element type. Raises `InputError`."""
    found: StructInput = {}
    for member, name in _places(argument):
        if name in sizes:
            number = _given(name, member.dtype, sizes[name], rounded)
        elif member.elements is None and isinstance(known.get(member.name), int | float):
            number = _given(name, member.dtype, known[member.name], rounded)
        else:
            number = rounded(any_number(member.dtype), member.dtype)
        if member.elements is None:
            found[member.name] = number
        else:
            found.setdefault(member.name, []).append(number)
    return found


def bytes_of(argument: Argument, value: StructInput, narrowed: Callable[[Any, str], Any]) -> bytes:
    """Return a struct's bytes; `narrowed` makes an array of an element type."""
    kind = struct_of(argument.dtype)
    data = bytearray(kind.size)
    for member in kind.members:
        if member.dtype == POINTER:
            elements = np.asarray(value[member.name], np.uint64)
        else:
            elements = narrowed(value[member.name], member.dtype)
        data[member.offset : member.offset + member.size] = elements.tobytes()
    return bytes(data)


def _places(argument: Argument) -> Iterator[tuple[Member, str]]:
    for member, name in struct_of(argument.dtype).places:
        yield member, f"{argument.name}.{name}"


def _given(name: str, dtype: str, value: object, rounded: Convert) -> Number:
    limits = (0, 1) if dtype == "bool" else (0, 0) if dtype == POINTER else integer_limits(dtype)
    if limits is None:
        if not isinstance(value, int | float):
            raise input_error(f"{name}={value} is not a number, which {dtype} needs")
        return rounded(value, dtype)
    if not isinstance(value, int) or not limits[0] <= value <= limits[1]:
        what = "null alone, 0" if dtype == POINTER else f"{limits[0]}..{limits[1]}"
        raise input_error(f"{name}={value} is none of {dtype}: run and tune can pass {what}")
    return bool(value) if dtype == "bool" else int(value)
