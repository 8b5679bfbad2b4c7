"""Whether memory has room for one more compile, so that a build never meets the OOM killer.

Each running compile is reckoned with its predicted peak, however little it holds yet. The sum must
stay within what was free when nothing of ours ran, and the newcomer must fit what is free now, so
that other programs on the machine count too. Free is the least of the machine's MemAvailable and of
the room that each cgroup around us has; page cache that can be dropped counts as free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from tilusbuild.engine.cores import cgroup_folders

UNKNOWN = 512 << 20
"""Bytes reckoned for a compile that nothing is known of; nvcc on a small kernel needs 200 MB."""
_MARGIN = 1.1
"""A compile may need this much more than the last time."""
_RESERVE = 0.05
"""The part of what is free that is left alone."""


class Admission(Protocol):
    """Decides whether one more compile may start."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        """`need` and `running` are predicted peaks in bytes (0 or None: unknown). Not asked when
        nothing runs: one compile may always."""
        ...


class Unlimited:
    """An admission that never refuses."""

    def admits(self, need: int | None, running: list[int], /) -> bool:
        return True


class Memory:
    """The real one. Make it before the build starts anything."""

    def __init__(
        self,
        meminfo: str = "/proc/meminfo",
        cgroup_root: str = "/sys/fs/cgroup",
        membership: str = "/proc/self/cgroup",
    ) -> None:
        self._meminfo = meminfo
        self._cgroups = tuple(cgroup_folders(cgroup_root, membership))
        self._at_start = self.free()

    def admits(self, need: int | None, running: list[int], /) -> bool:
        if self._at_start is None:
            return True
        wanted = _reckoned(need)
        free = self.free()
        total = wanted + sum(_reckoned(each) for each in running)
        return (
            total <= self._at_start * (1 - _RESERVE)
            and free is not None
            and wanted <= free * (1 - _RESERVE)
        )

    def free(self) -> int | None:
        """Bytes that could be had now; None where the system does not say."""
        known = [amount for amount in self._amounts() if amount is not None]
        return max(0, min(known)) if known else None

    def _amounts(self) -> Iterator[int | None]:
        yield _field(self._meminfo, "MemAvailable:", 1024)
        for folder in self._cgroups:
            yield _room(folder)


def _reckoned(need: int | None) -> float:
    return need * _MARGIN if need else UNKNOWN


def _room(cgroup: str) -> int | None:
    """Bytes until the cgroup's limit, or None when it has none."""
    limit = _number(os.path.join(cgroup, "memory.max"))
    used = _number(os.path.join(cgroup, "memory.current"))
    if limit is None or used is None:
        return None
    return limit - used + (_field(os.path.join(cgroup, "memory.stat"), "inactive_file", 1) or 0)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _field(path: str, name: str, unit: int) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words and words[0] == name:
                    return int(words[1]) * unit
    except (OSError, ValueError, IndexError):
        pass
    return None
