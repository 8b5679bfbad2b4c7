"""What a view is made of, and what it is made from, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import Table
from tilusbuild.status import Status

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a script, built or not."""

    index: int
    """In the plan's order."""
    hash: str
    folder: str
    """Its absolute path."""
    status: str
    """As in meta.json, or "missing"."""
    meta: Mapping[str, Any]
    """The whole of meta.json; empty when it is missing."""
    includes: tuple[str, ...]
    """Absolute paths of the folders in `include/` that its compile.sh reads."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names relative to the folder, sorted."""
        return tuple(sorted(self.meta.get("files", ())))


@dataclass(frozen=True, slots=True)
class Source:
    """A script with all that a view can show of it."""

    script: Script
    folder: str
    """The script's name in snake case."""
    tables: tuple[Table, ...]
    programs: tuple[Program, ...]
    latency: tuple[str, ...]
    """Names of the folders in `latency/`."""

    @property
    def built(self) -> tuple[Program, ...]:
        return tuple(program for program in self.programs if program.status == Status.BUILT)

    @property
    def refused(self) -> tuple[Program, ...]:
        return tuple(
            each for each in self.programs if each.status in (Status.FAILED, Status.PRUNED)
        )


@dataclass(frozen=True, slots=True)
class Linked:
    """A file of the cache under another name."""

    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Written:
    """A file that the view has of its own."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Pointer:
    """A symbolic link within the view."""

    path: str
    target: str


Item = Linked | Written | Pointer
"""Paths are relative to the view's folder."""


def name_of(values: Iterable[object]) -> str:
    """Values joined into one file name."""
    return _UNSAFE.sub("_", "-".join(map(str, values)))
