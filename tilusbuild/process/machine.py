"""The processors and memory that this process may use, and the pressure on memory.

The whole machine is only the outermost limit: affinity and control groups, of version 1 or 2, each
grant less, and the least counts. A container on a large machine often sees all of it and may use
two processors. A file that is missing or unreadable means no limit. Tests pass a directory of their
own for `/`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import TypeAlias

from tilusbuild.runtime.regular import try_read_text
from tilusbuild.state.directories import mounted

_UNLIMITED = 1 << 60
"""Bytes: version 1 writes such a large number for no limit."""

Group: TypeAlias = tuple[str, bool]
"""The directory of a control group of this process, or of one around it; and whether it is of
version 2, whose files have other names."""


class Machine:
    """Reads /proc and the control groups below `root`."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._meminfo = self._under("/proc/meminfo")
        self._pressure = [self._under("/proc/pressure/memory")]
        memory, cpu = (tuple(self._groups(name)) for name in ("memory", "cpu"))
        self._memory_groups = memory
        self._cpu_groups = cpu
        self._pressure += [
            os.path.join(directory, "memory.pressure") for directory, unified in memory if unified
        ]

    def cores(self) -> int:
        """Return how many processors may be used; at least 1."""
        try:
            cores = len(os.sched_getaffinity(0))
        except OSError:
            cores = os.cpu_count() or 1
        for group in self._cpu_groups:
            quota = _quota(group)
            if quota is not None:
                cores = min(cores, math.ceil(quota))
        return max(1, cores)

    def free_memory(self) -> int | None:
        """Return the bytes available now, with droppable page cache; None if unknown."""
        amounts = [_field(self._meminfo, "MemAvailable:", 1024)]
        amounts += [_room(group) for group in self._memory_groups]
        known = [amount for amount in amounts if amount is not None]
        return max(0, min(known)) if known else None

    def memory_pressure(self) -> float:
        """Return the share of the last ten seconds, 0 to 1, in which all tasks were stalled on
        memory, on the machine or in a group of this process."""
        return max(map(_stalled, self._pressure))

    def _under(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _groups(self, controller: str) -> Iterator[Group]:
        """Yield this process's group and those around it, innermost first, for a controller."""
        membership = _memberships(self._under("/proc/self/cgroup"))
        for mount in mounted(self._under("/proc/self/mountinfo")):
            if mount.kind == "cgroup2":
                path, unified = membership.get(""), True
            elif mount.kind == "cgroup" and controller in mount.options:
                path, unified = membership.get(controller), False
            else:
                continue
            if path is None:
                continue
            # In a container the mount may show only an inner part of the hierarchy.
            inside = os.path.relpath(path, mount.root) if path.startswith("/") else "."
            parts = [part for part in inside.split("/") if part not in ("", ".", "..")]
            if inside.startswith(".."):
                parts = []
            for depth in range(len(parts), -1, -1):
                yield os.path.join(self._under(mount.point), *parts[:depth]), unified


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return Machine().cores()


def _memberships(path: str) -> dict[str, str]:
    """Return this process's group by controller; "" for version 2."""
    found = {}
    for line in _lines(path):
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number and group:
            for controller in controllers.split(","):
                found[controller] = group
    return found


def _quota(group: Group) -> float | None:
    """Return the processors that a group's quota grants, or None for no limit."""
    directory, unified = group
    if unified:
        words = _text(directory, "cpu.max").split()
    else:
        words = [_text(directory, f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = (int(word) for word in words)
        return None if quota < 0 else max(1, quota) / period
    except (ValueError, ZeroDivisionError):
        return None


def _room(group: Group) -> int | None:
    """Return the bytes until a group's limit, or None if it has none."""
    # Above `memory.high` a group is not killed but throttled until it crawls: that is a limit too.
    directory, unified = group
    if unified:
        limits = [_number(directory, name) for name in ("memory.max", "memory.high")]
        used = _number(directory, "memory.current")
        droppable = "inactive_file"
    else:
        limits = [_number(directory, "memory.limit_in_bytes")]
        used = _number(directory, "memory.usage_in_bytes")
        droppable = "total_inactive_file"
    limits_set = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
    if not limits_set or used is None:
        return None
    cache = _field(os.path.join(directory, "memory.stat"), droppable, 1) or 0
    return min(limits_set) - used + cache


def _stalled(path: str) -> float:
    for line in _lines(path):
        words = line.split()
        if words[:1] == ["full"] and words[1:2] and words[1].startswith("avg10="):
            try:
                return float(words[1].removeprefix("avg10=")) / 100
            except ValueError:
                return 0.0
    return 0.0


def _number(directory: str, name: str) -> int | None:
    text = _text(directory, name)
    return int(text) if text.isdecimal() else None


def _field(path: str, name: str, unit: int) -> int | None:
    for line in _lines(path):
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1]) * unit
    return None


def _text(directory: str, name: str) -> str:
    return "\n".join(_lines(os.path.join(directory, name)))


def _lines(path: str) -> list[str]:
    return (try_read_text(path, "surrogateescape") or "").splitlines()
