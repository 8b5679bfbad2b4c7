"""Every call that a command makes below its directories fails, one at a time or from one on.

A dry run counts the calls; a fault is a scenario, the number of the call in it, and the errno. The
process is killed at each of them in the same way: before it, and half way through a write."""

import errno
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from support.faults import injector, scenarios
from support.faults.commands import Ended
from support.faults.group import NotTriedError, attempt
from support.faults.oracle import Finding, Scenario
from support.faults.world import World

_PROCESS_SCENARIOS = ("cold", "edit", "bare", "watch", "tune")


@dataclass(frozen=True)
class Calls:
    """The calls of some kinds fail."""

    name: str
    kinds: frozenset[str]
    sample: int
    only: tuple[str, ...] = ()
    """The scenarios; () is all."""

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO NUMBER ERRNO once|on`."""
        for name, log in dry_runs(world, self.kinds, self.only):
            counted = (kind for kind in log if kind in self._kinds_of(name))
            for call_number, kind in enumerate(counted, 1):
                for error in injector.ERRORS[kind]:
                    for how in ("once", "on"):
                        yield f"{name} {call_number} {errno.errorcode[error]} {how}"

    def run(self, world: World, fault: str) -> list[Finding]:
        name, call_number, error, how = fault.split()
        scenario = scenarios.scenarios(world)[name]

        def command() -> Ended:
            number, kinds = getattr(errno, error), self._kinds_of(name)
            world.page.arm(
                kinds, world.roots, call_number=int(call_number), error=number, forever=how == "on"
            )
            return run_armed(world, scenario)

        return name_call(world, attempt(world, scenario, command))

    def _kinds_of(self, scenario: str) -> frozenset[str]:
        # A thread of watchdog polls too, and knows no errors.
        return self.kinds - {"poll"} if scenario == "watch" else self.kinds


@dataclass(frozen=True)
class Kills:
    """The process is killed at each call that changes something."""

    name: str = "kills"
    sample: int = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO NUMBER before|half`."""
        for name, log in dry_runs(world, injector.CHANGES):
            for call_number, kind in enumerate(log, 1):
                yield f"{name} {call_number} before"
                if kind == "write":
                    yield f"{name} {call_number} half"

    def run(self, world: World, fault: str) -> list[Finding]:
        name, call_number, how = fault.split()
        scenario = scenarios.scenarios(world)[name]

        def command() -> Ended:
            number = signal.SIGKILL
            world.page.arm(
                injector.CHANGES,
                world.roots,
                call_number=int(call_number),
                signal=number,
                half=how == "half",
            )
            return run_armed(world, scenario)

        return name_call(world, attempt(world, scenario, command, killed=True))


def dry_runs(
    world: World, kinds: frozenset[str], only: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Each scenario's calls of some kinds, when nothing fails."""
    if not world.calls:
        for name, scenario in scenarios.scenarios(world).items():
            world.reset(scenario.base, scenario.edition)
            world.page.arm(injector.KINDS, world.roots)
            run_armed(world, scenario)
            world.calls[name] = world.page.log
    for name, log in world.calls.items():
        if not only or name in only:
            yield name, [kind for kind in log if kind in kinds]


def run_armed(world: World, scenario: Scenario) -> Ended:
    """Run a scenario under the page, and disarm that."""
    try:
        return scenarios.run(world, scenario)
    finally:
        world.page.disarm()


def name_call(world: World, findings: list[Finding]) -> list[Finding]:
    """The findings, with the call that failed; raises where none did."""
    fired = world.page.fired
    if not fired:
        raise NotTriedError
    return [Finding(finding.column, f"[{fired}] {finding.what}") for finding in findings]


CHANGES = Calls("changes", injector.CHANGES, 8)
READS = Calls("reads", injector.READS, 4)
PROCESS = Calls("processes", injector.PROCESS, 3, _PROCESS_SCENARIOS)
KILLS = Kills()
