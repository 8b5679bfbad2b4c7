"""The values that a generator, a Python function named by `generator`, gets and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct


@dataclass(frozen=True)
class Target:
    """What a program is compiled for."""

    kind: str
    """ "cuda" or "cpu"."""
    name: str
    """As in the manifest."""
    arch: str
    """The first architecture, such as "sm_90a"."""
    archs: tuple[str, ...]
    limits: Mapping[str, Any]
    """What expressions call `arch.*`, by name: `smem_per_block`."""


class Packed(Struct, frozen=True, tag=True, tag_field="class"):
    """A parameter of the kernel that is a struct of values of a call."""

    type: str
    """As `args` writes it: `struct Rows { void* data; i32 rows }`."""
    values: tuple[int | str, ...]
    """For each member an argument's name, or an expression."""


class TensorMap(Struct, frozen=True, tag=True, tag_field="class"):
    """A `CUtensorMap` by the arguments of cuTensorMapEncodeTiled: the innermost dimension first,
    strides in bytes, enumerations as numbers."""

    tensor: str
    """The argument whose address it has."""
    type: int
    sizes: tuple[int | str, ...]
    """Sizes and strides may be expressions over arguments."""
    strides: tuple[int | str, ...]
    """One fewer than sizes."""
    box: tuple[int | str, ...]
    element_strides: tuple[int | str, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The parts of a program that take precedence over the manifest. Sizes are numbers, or
    expressions as in `[script.X.launch]`."""

    symbol: str | None = None
    """The kernel's name."""
    parameters: tuple[str | Packed | TensorMap | None, ...] | None = None
    """The kernel's parameters in order: names of arguments, structs, tensor maps, and None for a
    null pointer."""
    grid: tuple[int | str, ...] | None = None
    block: tuple[int | str, ...] | None = None
    smem: int | str | None = None
    """Bytes of dynamic shared memory."""
    cluster: tuple[int | str, ...] | None = None
    cooperative: bool | None = None
    pdl: bool | None = None
    program: str = ""
    """The kernel as the language prints it, for `program.txt`."""
    ir: Mapping[str, str] = field(default_factory=dict)
    """For `--dump-ir`: texts by file name, each below `ir/` or `module/ir/`."""


@dataclass(frozen=True)
class Source(Generated):
    """A source in CUDA C++, for `cpu` in C++."""

    text: str


@dataclass(frozen=True)
class Cubin(Generated):
    """Device code for the one architecture of the target."""

    data: bytes
    compiler: str = ""
    """Its compiler's name, version and digest, for `program.txt`."""
    log: str = ""
    """The output of `ptxas -v`, which alone has the spills."""
