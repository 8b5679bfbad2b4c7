"""What the build loop's inbox gets, besides the numbers of signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from tilusbuild.engine.attempt import Answer
from tilusbuild.engine.base import W
from tilusbuild.engine.order import Ticket


@dataclass(frozen=True, slots=True)
class Began(Generic[W]):
    """A worker is about to compile."""

    ticket: Ticket[W]


@dataclass(frozen=True, slots=True)
class Through(Generic[W]):
    """A compiler is through; its worker publishes now."""

    ticket: Ticket[W]


@dataclass(frozen=True, slots=True)
class SlotFree:
    """There may be leave for one more compile."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[W]):
    """A worker is idle again."""

    ticket: Ticket[W]
    answer: Answer
