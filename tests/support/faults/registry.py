"""All groups, by name."""

from support.faults.group import Group
from support.faults.groups import calls, clocks, compilers, damage, lives, power, traced

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
GROUPS = {group.name: group for group in _ALL}
