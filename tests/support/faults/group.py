"""What a group of faults is: names that can be tried, each by itself and again."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from support.faults.commands import Ended
from support.faults.oracle import Finding, Scenario, judge
from support.faults.world import World, entries


class NotTriedError(Exception):
    """Nothing failed: the fault's place was not reached, or this machine does not allow it."""


class Group(Protocol):
    """One way to fail."""

    @property
    def name(self) -> str: ...

    @property
    def sample(self) -> int:
        """Return how many faults of it `make test` tries."""
        ...

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """Return the names of all faults, or of as many as make sense; `chance` is for those that
        are random."""
        ...

    def run(self, world: World, fault: str) -> list[Finding]:
        """Try one, and judge. Raises `NotTriedError`."""
        ...


def attempt(
    world: World, scenario: Scenario, command: Callable[[], Ended], *, killed: bool = False
) -> list[Finding]:
    """Run a scenario's command, in whatever way, from its base on, and judge what it left."""
    world.reset(scenario.base, scenario.edition)
    before = entries(world.cache)
    ended = command()
    return judge(world, scenario, before, ended, killed=killed)
