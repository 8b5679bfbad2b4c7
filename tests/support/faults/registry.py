"""All groups, by name."""

from __future__ import annotations

from support.faults.group import Group
from support.faults.groups import (
    calls,
    clocks,
    compilers,
    damage,
    disks,
    limits,
    lives,
    power,
    traced,
)

_ALL: tuple[Group, ...] = (
    calls.CHANGES,
    calls.READS,
    calls.PROCESS,
    calls.KILLS,
    traced.TRACED,
    compilers.COMPILERS,
    disks.DISKS,
    power.POWER,
    clocks.CLOCKS,
    limits.LIMITS,
    lives.KEEPING,
    lives.REMOVING,
    damage.DAMAGE,
)
GROUPS = {group.name: group for group in _ALL}
