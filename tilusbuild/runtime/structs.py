"""Structs that a kernel takes by value: parses their types, and packs a caller's value to bytes.

A type is written as in C with this project's element types:
`struct Params { f32 alpha; i32 n; i64 strides[3]; void* next }`. Members are laid out as in C. When
a kernel is compiled, an assertion compares its own type with that layout.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tilusbuild.runtime.dtypes import DTYPES, POINTER
from tilusbuild.runtime.semantics import to_python_number

_KEYWORD = re.compile(r"\s*struct\b")
# `struct Params { f32 alpha; i64 strides[3] }`
_STRUCT = re.compile(r"\s*struct\s+(?P<name>(?:::)?[A-Za-z_][\w:<>, ]*?)\s*\{(?P<body>[^{}]*)\}\s*")
# `i64 strides[3]`, `void* next`
_MEMBER = re.compile(
    r"\s*(?P<type>\w+(?:\s*\*)?)\s*\b(?P<name>[A-Za-z_]\w*)\s*(?:\[\s*(?P<count>\d+)\s*\])?\s*",
    re.ASCII,
)
# The limit of all parameters of a kernel since CUDA 12.1, from sm_70 on.
_MAX_BYTES = 32764


class StructMember(NamedTuple):
    """One member. `elements` is None unless it is an array. Offsets and sizes are bytes."""

    name: str
    dtype: str
    elements: int | None
    offset: int
    bytes: int
    """Of one element."""

    @property
    def size(self) -> int:
        return self.bytes * (1 if self.elements is None else self.elements)

    def format_member(self) -> str:
        return f"{self.dtype} {self.name}" + ("" if self.elements is None else f"[{self.elements}]")


class StructType(NamedTuple):
    """A struct's C++ name and its members in order."""

    name: str
    members: tuple[StructMember, ...]
    size: int
    align: int

    @property
    def scalars(self) -> tuple[tuple[StructMember, str], ...]:
        """Return each number of the struct, with its name: members, and `strides[0]` of arrays."""
        names: list[tuple[StructMember, str]] = []
        for member in self.members:
            count = member.elements
            suffixes = [""] if count is None else [f"[{i}]" for i in range(count)]
            names += [(member, member.name + suffix) for suffix in suffixes]
        return tuple(names)

    def format_struct(self) -> str:
        """Return the canonical spelling."""
        members = "; ".join(member.format_member() for member in self.members)
        return f"struct {self.name} {{ {members} }}"


def is_struct(dtype: str) -> bool:
    """Return whether a type is written as a struct, rightly or not."""
    return _KEYWORD.match(dtype) is not None


@lru_cache(maxsize=1024)
def parse_struct(dtype: str) -> StructType:
    """Return the struct that a type's text describes. Raises `ValueError` with a message for the
    author of the text."""
    match = _STRUCT.fullmatch(dtype)
    if match is None:
        raise ValueError(f'"{dtype.strip()}" is not a struct type')
    members: list[StructMember] = []
    end, align = 0, 1
    for text in match["body"].rstrip().removesuffix(";").split(";"):
        member = _MEMBER.fullmatch(text)
        kind = re.sub(r"\s", "", member["type"]) if member else ""
        if member is None or (kind not in DTYPES and kind != POINTER):
            raise ValueError(f'"{text.strip()}" is not a member of a struct')
        if any(member["name"] == earlier.name for earlier in members):
            raise ValueError(f'two members are called "{member["name"]}"')
        size = 8 if kind == POINTER else DTYPES[kind].bytes
        # Cut to six digits, which exceed the limit below: Python refuses to parse thousands.
        count = None if member["count"] is None else int(member["count"][:6])
        if count == 0:
            raise ValueError(f'"{text.strip()}" has no elements')
        # Each element type is aligned to its size: the offset is the end of the member before,
        # rounded up to a multiple.
        offset = -(-end // size) * size
        members.append(StructMember(member["name"], kind, count, offset, size))
        end = offset + members[-1].size
        align = max(align, size)
    if end > _MAX_BYTES:
        raise ValueError(f"a struct of {end} bytes; a kernel takes {_MAX_BYTES} at most")
    struct_size = -(-end // align) * align  # as in C: rounded up, for arrays of the struct
    return StructType(match["name"], tuple(members), struct_size, align)


def pack_struct(struct_type: StructType, value: Any) -> bytes:
    """Return the bytes of a value for a call. The value is a mapping of the members, a NumPy scalar
    of a structured type, a ctypes structure, or bytes. Raises `TypeError` for any other value,
    `ValueError` for another layout."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _check_size(struct_type, bytes(value))
    # Loaded if the caller has a structure. Importing it would cost milliseconds.
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None and isinstance(value, ctypes.Structure):
        # A subclass' `_fields_` does not have those of its base classes.
        bases = reversed(type(value).__mro__)
        names = [name for base in bases for name, *_ in vars(base).get("_fields_", ())]
        fields = ((name, getattr(type(value), name)) for name in names)
        _check_layout(struct_type, [(name, field.offset, field.size) for name, field in fields])
        return _check_size(struct_type, bytes(value))
    if isinstance(value, Mapping):
        return _pack_mapping(struct_type, value)
    dtype: Any = getattr(value, "dtype", None)
    if getattr(dtype, "names", None) and getattr(value, "shape", None) == ():
        members = ((name, *dtype.fields[name][:2]) for name in dtype.names)
        _check_layout(
            struct_type, [(name, offset, field.itemsize) for name, field, offset in members]
        )
        return _check_size(struct_type, value.tobytes())
    name = type(value).__name__
    raise TypeError(f"got {name}: give a mapping, a NumPy record, a ctypes structure or bytes")


def _check_size(struct_type: StructType, data: bytes) -> bytes:
    if len(data) != struct_type.size:
        raise ValueError(f"got {len(data)} bytes; it has {struct_type.size}")
    return data


def _check_layout(struct_type: StructType, fields: Sequence[tuple[str, int, int]]) -> None:
    """Raise `ValueError` unless `fields`, each (name, offset, size), are the members."""
    # Not strict: the first member that differs says more than the number of members.
    for member, (name, offset, size) in zip(struct_type.members, fields, strict=False):
        if (member.name, member.offset, member.size) != (name, offset, size):
            expected = f'"{member.name}" is {member.size} bytes at {member.offset}'
            hint = " (NumPy: align=True)" if name == member.name and offset < member.offset else ""
            raise ValueError(f'got "{name}" of {size} bytes at {offset}, where {expected}{hint}')
    if len(fields) != len(struct_type.members):
        raise ValueError(f"got {len(fields)} members; it has {len(struct_type.members)}")


def _pack_mapping(struct_type: StructType, value: Mapping[Any, Any]) -> bytes:
    """Return the bytes of a struct with these members. Raises `ValueError` for missing, unknown and
    unsuitable members, `TypeError` for a type that Python has no number of."""
    names = [member.name for member in struct_type.members]
    missing = [name for name in names if name not in value]
    unknown = [str(name) for name in value if name not in names]
    if missing or unknown:
        difference = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise ValueError(f"got a mapping {difference}; its members are {', '.join(names)}")
    data = bytearray(struct_type.size)
    for member in struct_type.members:
        member_value = value[member.name]
        elements = [member_value] if member.elements is None else list(member_value)
        if len(elements) != (1 if member.elements is None else member.elements):
            raise ValueError(f"got {len(elements)} elements for {member.format_member()}")
        is_pointer = member.dtype == POINTER
        letter = "Q" if is_pointer else DTYPES[member.dtype].struct
        if not letter:
            raise TypeError(f"got a mapping; Python has no {member.dtype} number: give bytes")
        # None is a null pointer.
        numbers = [0 if is_pointer and e is None else _to_member_number(e) for e in elements]
        try:
            struct.pack_into(f"<{len(elements)}{letter}", data, member.offset, *numbers)
        except (struct.error, OverflowError) as error:
            label = f"got {member_value!r:.60} for {member.format_member()}"
            raise ValueError(f"{label}: {error}") from None
    return bytes(data)


def _to_member_number(value: Any) -> Any:
    """Return Python's own number for a NumPy scalar, and the address for a ctypes pointer."""
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None and isinstance(value, ctypes.c_void_p):
        return value.value or 0
    return to_python_number(value)
