"""Measure the processors and the memory that this process may use, and the pressure on memory.

Affinity and control groups (version 1 or 2) limit a process to a part of the machine; the smallest
limit counts. A container on a large machine often sees all processors and may use two of them. A
missing or unreadable file means no limit. Tests use another directory for `/`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import TypeAlias

from tilusbuild.runtime.regular import try_read_text
from tilusbuild.state.directories import list_mounts

# Bytes. Version 1 of control groups writes such a large number for no limit.
_UNLIMITED = 1 << 60

ControlGroup: TypeAlias = tuple[str, bool]
"""The directory of a control group that contains this process, and whether it is of version 2,
whose files have other names."""


class Machine:
    """Reads /proc and the control groups below `root`."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._meminfo = self._resolve_path("/proc/meminfo")
        self._pressure = [self._resolve_path("/proc/pressure/memory")]
        self._memory_groups = tuple(self._list_groups("memory"))
        self._cpu_groups = tuple(self._list_groups("cpu"))
        self._pressure += [
            os.path.join(directory, "memory.pressure")
            for directory, unified in self._memory_groups
            if unified
        ]

    def count_cores(self) -> int:
        """Return the number of usable processors, at least 1: by affinity and by the quotas of the
        control groups, rounded up."""
        quotas = [_read_quota(group) for group in self._cpu_groups]
        limits = [math.ceil(quota) for quota in quotas if quota is not None]
        return max(1, min([len(os.sched_getaffinity(0)), *limits]))

    def measure_free_memory(self) -> int | None:
        """Return the available bytes, page cache that can be dropped included; None if unknown."""
        amounts = [_read_field(self._meminfo, "MemAvailable:", 1024)]
        amounts += [_read_free_memory(group) for group in self._memory_groups]
        known_amounts = [amount for amount in amounts if amount is not None]
        return max(0, min(known_amounts)) if known_amounts else None

    def measure_memory_pressure(self) -> float:
        """Return the share (0 to 1) of the last 10 s in which all tasks waited for memory.

        This is the largest value of the machine and of the groups of this process.
        """
        return max(map(_read_stalled_share, self._pressure))

    def _resolve_path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _list_groups(self, controller: str) -> Iterator[ControlGroup]:
        """Yield the groups of this process for a controller, from the innermost outwards."""
        group_paths = _read_group_paths(self._resolve_path("/proc/self/cgroup"))
        for mount in list_mounts(self._resolve_path("/proc/self/mountinfo")):
            if mount.kind == "cgroup2":
                path, unified = group_paths.get(""), True
            elif mount.kind == "cgroup" and controller in mount.options:
                path, unified = group_paths.get(controller), False
            else:
                continue
            if path is None:
                continue
            # A container may see a mount of a subtree only, whose root is `mount.root`. A group
            # outside of the subtree has no directory here: then the subtree's own limits count.
            relative_path = os.path.relpath(path, mount.root) if path.startswith("/") else "."
            is_outside = relative_path.startswith("..")
            parts = [] if is_outside or relative_path == "." else relative_path.split("/")
            top = self._resolve_path(mount.point)
            for depth in range(len(parts), -1, -1):
                yield os.path.join(top, *parts[:depth]), unified


def count_usable_cores() -> int:
    """Return the number of processors that this process may use."""
    return Machine().count_cores()


def _read_group_paths(path: str) -> dict[str, str]:
    """Return the path of this process's control group by controller, from `/proc/self/cgroup`. The
    key "" is the group of version 2."""
    group_paths = {}
    for line in _read_lines(path):
        # Version 1 has lines such as "4:cpu,cpuacct:/user.slice", version 2 the line "0::/job/1".
        number, _, rest = line.partition(":")
        controllers, _, group_path = rest.partition(":")
        if number and group_path:
            for controller in controllers.split(","):
                group_paths[controller] = group_path
    return group_paths


def _read_quota(group: ControlGroup) -> float | None:
    """Return the number of processors that a group's quota allows, such as 1.5; None without a
    limit."""
    directory, unified = group
    if unified:
        # The file is "150000 100000", quota and period in microseconds, or "max 100000".
        values = _read_text(directory, "cpu.max").split()
    else:
        values = [_read_text(directory, f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = (int(value) for value in values)
        # Version 1 writes -1 for no limit.
        return None if quota < 0 else max(1, quota) / period
    except (ValueError, ZeroDivisionError):
        return None


def _read_free_memory(group: ControlGroup) -> int | None:
    """Return the free bytes below a group's limit, page cache that can be dropped included; None
    without a limit."""
    directory, unified = group
    if unified:
        # Above `memory.high` a group is not killed, but is throttled almost to a stop. So this
        # counts as a limit, too.
        limits = [_read_number(directory, name) for name in ("memory.max", "memory.high")]
        used = _read_number(directory, "memory.current")
        droppable = "inactive_file"
    else:
        limits = [_read_number(directory, "memory.limit_in_bytes")]
        used = _read_number(directory, "memory.usage_in_bytes")
        droppable = "total_inactive_file"
    limits_set = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
    if not limits_set or used is None:
        return None
    cache = _read_field(os.path.join(directory, "memory.stat"), droppable, 1) or 0
    return min(limits_set) - used + cache


def _read_stalled_share(path: str) -> float:
    """Return the share (0 to 1) of the last 10 s in which all tasks waited, from a file of
    pressure; 0 if there is no such file."""
    # A line is "full avg10=0.12 avg60=… avg300=… total=…", in percent.
    match = re.search(r"^full avg10=([\d.]+)", "\n".join(_read_lines(path)), re.MULTILINE)
    try:
        return float(match[1]) / 100 if match else 0.0
    except ValueError:
        return 0.0


def _read_number(directory: str, name: str) -> int | None:
    text = _read_text(directory, name)
    return int(text) if text.isdecimal() else None


def _read_field(path: str, name: str, unit: int) -> int | None:
    """Return the number on the line of a file that begins with `name`, times `unit`; else None."""
    for line in _read_lines(path):
        fields = line.split()
        if len(fields) > 1 and fields[0] == name and fields[1].isdecimal():
            return int(fields[1]) * unit
    return None


def _read_text(directory: str, name: str) -> str:
    return "\n".join(_read_lines(os.path.join(directory, name)))


def _read_lines(path: str) -> list[str]:
    return (try_read_text(path, "surrogateescape") or "").splitlines()
