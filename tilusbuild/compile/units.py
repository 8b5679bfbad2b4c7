"""The steps that the programs of a unit share: made by the first of them, kept for the others.

What such a step makes follows from its command, the source, the headers and the tools, and its key
is the digest of all four. Kept is also that it failed for the whole unit, which is a result: then
each program makes its own. The store only saves work; it is held to a size, in memory to another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field

from tilusbuild.compile.model import Recipe
from tilusbuild.compile.steps import Step
from tilusbuild.compile.unit_ptx import Span
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.state.envelope import StepStore
from tilusbuild.state.files import sha256_text

MAX_KEPT = 1 << 30
MAX_IN_MEMORY = 64 << 20
"""Bytes: in the directory, and of what was used last. The programs of a unit are mostly built in
turn, and each would read and digest its PTX again, which can be tens of megabytes."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The output and the log of a step."""

    output: bytes | None
    """None: it does not compile for all programs together."""
    log: str
    kernels: Sequence[Span] = ()
    """Those of PTX that each program can do without, but for its own."""


@dataclass(slots=True)
class UnitSteps:
    """The shared steps of one program, in the store of its build."""

    store: StepStore
    tools: str
    """The lines of `options.txt` on the tools."""
    used: set[str] = field(default_factory=set)
    """The keys of what the program has had."""

    def get(self, recipe: Recipe, step: Step, make: Callable[[], Shared]) -> Shared:
        """Return what a step makes, made by `make` if it is not kept. Raises what `make` does."""
        parts = ("unit 2", *step.argv, recipe.source, recipe.include_digest or "", self.tools)
        parts += tuple(text for header in sorted(recipe.headers.items()) for text in header)
        key = sha256_text("\0".join(parts))
        self.used.add(key)
        data = self.store.get(key, lambda: _packed(make()))
        head, _, output = data.partition(b"\n")
        known = json.loads(head)
        kernels = [(str(name), int(start), int(end)) for name, start, end in known["kernels"]]
        return Shared(output if known["made"] else None, known["log"], kernels)

    def drop(self) -> None:
        """Have what the program was given made again by who asks next: something went wrong."""
        for key in self.used:
            self.store.drop(key)


def _packed(made: Shared) -> bytes:
    head = {"made": made.output is not None, "log": made.log, "kernels": made.kernels}
    return json.dumps(head).encode() + b"\n" + (made.output or b"")


def unit_store(directory: str) -> StepStore:
    """Return a store in `directory`, less the oldest of what is more than `MAX_KEPT`."""
    with suppress(OSError):
        found = [(each.stat(), each.path) for each in os.scandir(directory)]
        total = sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda each: each[0].st_mtime_ns):
            if total <= MAX_KEPT:
                break
            os.unlink(path)
            total -= stat.st_size
    return StepStore(directory, in_memory=MAX_IN_MEMORY)
