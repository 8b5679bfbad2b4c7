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
    vanishing,
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
    vanishing.VANISHING,
)
GROUPS = {group.name: group for group in _ALL}
