"""The values that a generator, a Python function named by `generator`, gets and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class Source:
    """A source, and the parts of the launch in which it differs from the manifest. Sizes are
    numbers, or expressions as in `[script.X.launch]`."""

    text: str
    grid: tuple[int | str, ...] | None = None
    block: tuple[int | str, ...] | None = None
    smem: int | str | None = None
    """Bytes of dynamic shared memory."""
    cluster: tuple[int | str, ...] | None = None
