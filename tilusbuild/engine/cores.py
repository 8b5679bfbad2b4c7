"""How many processors this process may use: the smallest of affinity and cgroup quotas.

A container on a large machine often sees all of its processors and may use two; as many compiles as
it sees would run there at a fraction of their speed and all their memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator


def usable_cores(cgroup_root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int:
    """At least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except OSError:
        cores = os.cpu_count() or 1
    for folder in cgroup_folders(cgroup_root, membership):
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, math.ceil(quota))
    return max(1, cores)


def cgroup_folders(root: str, membership: str) -> Iterator[str]:
    """Our cgroup (version 2) and those around it, up to the root."""
    try:
        with open(membership, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            parts = [part for part in line[3:].split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                yield os.path.join(root, *parts[:depth])


def _quota(folder: str) -> float | None:
    """Processors that `cpu.max` grants, or None for no limit."""
    try:
        with open(os.path.join(folder, "cpu.max"), encoding="ascii") as file:
            quota, period = file.read().split()
        return None if quota == "max" else max(1, int(quota)) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
