"""The plan as values: which programs a project consists of, and under which names they are kept.

A plan is pure: the same manifest, templates, headers and toolchain give the same plan, and making
it writes nothing. It holds no rendered source; a program is a hash and a place in its instance's
space, so that memory stays small with a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilusbuild.arch import Arch
from tilusbuild.expr import Value
from tilusbuild.runtime.names import instance_label


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for, as the manifest names it."""

    name: str
    archs: tuple[Arch, ...]
    ptx: bool
    facts: Mapping[str, Value]

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return "cpu" if self.archs[0].name == "cpu" else "cuda"

    @property
    def arch(self) -> str:
        """The architectures as one word: "sm_90a", or "sm_80+sm_90a", with "+ptx" when embedded."""
        return "+".join([*(arch.name for arch in self.archs), *(["ptx"] if self.ptx else [])])


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A script with its constants fixed, for one target: what one script directory describes."""

    script: str
    directory: str
    """The script's name in snake case, as its directory is called."""
    target: Target
    params: Mapping[str, Value]
    points: int
    """Valid points of the space, planned or not."""
    cartesian: int
    parameters: tuple[str, ...]
    schedules: tuple[int, ...]
    """Indices into the space's valid points, in plan order."""
    default: int | None
    """The position in `schedules` of the default schedule, when there is one."""
    programs: tuple[str, ...]
    """Program hashes, one a schedule."""
    script_txt: str
    hash: str
    """sha256 of `script_txt`."""

    @property
    def label(self) -> str:
        """What a person calls it: `matmul[dtype=f16] h100`."""
        return instance_label(self.script, self.params, self.target.name)
