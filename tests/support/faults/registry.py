"""All groups, by name."""

from support.faults.group import Group
from support.faults.groups import calls, clocks, compilers, damage, lives, power, traced
from support.hostile.classes import CLASSES

_ALL: tuple[Group, ...] = (
    calls.CHANGES,
    calls.READS,
    calls.PROCESS,
    calls.KILLS,
    traced.TRACED,
    compilers.COMPILERS,
    power.POWER,
    clocks.CLOCKS,
    lives.KEEPING,
    lives.REMOVING,
    damage.DAMAGE,
)
FAULTS = tuple(group.name for group in _ALL)
INPUTS = tuple(group.name for group in CLASSES)
GROUPS: dict[str, Group] = {group.name: group for group in (*_ALL, *CLASSES)}
