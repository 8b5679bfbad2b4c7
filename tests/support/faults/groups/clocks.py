"""Clocks that are wrong: ours against the file system's, and edits at any instant.

A script is edited and built; while its compilers run, a second script that was up to date is edited
too, to a text of the same length. Whatever the clocks say, the next build must see that."""

import time
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from support.faults.commands import Running
from support.faults.oracle import Finding, Scenario, judge, of_command
from support.faults.world import AFTER, BEFORE, BETWEEN, World, entries
from support.nvcc_journal import misbehave

_OFFSETS = (0, 0.003, 0.05, 0.3, 1, 2, 5, 60, 3600, 86400, 40000000)
_TRIALS = 30
_SLOW, _MAX_LENGTH = "0.05", 0.3
"""Seconds of a compile, and until the edit: it may come before, in or after any step."""


class Clocks:
    """Our clock goes wrong by some seconds."""

    name = "clocks"
    sample = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`OFFSET SEED`: seconds by which our clock is ahead of the file system's."""
        for offset in (*_OFFSETS, *(-offset for offset in _OFFSETS if offset)):
            yield from (f"{offset:+} {chance.randrange(1 << 30)}" for _ in range(_TRIALS))

    def run(self, world: World, fault: str) -> list[Finding]:
        offset, seed = fault.split()
        world.reset("seeded", BEFORE)
        world.page.disarm()
        world.page.set_clock(float(offset))
        try:
            return _life(world, Random(seed))
        finally:
            world.page.set_clock(0)


def _life(world: World, chance: Random) -> list[Finding]:
    ended = world.run("build", "-j2", join=True)
    findings = list(of_command(ended, killed=False))
    if chance.random() < 0.5:
        world.run("build", join=True)
    before = entries(world.cache)
    world.forget_journal()
    time.sleep(chance.choice((0, 0, chance.uniform(0, 0.05))))
    BETWEEN.write(world.project)
    misbehave(world.nvcc, *[("slow", _SLOW)] * 2)
    running = _start(world)
    time.sleep(chance.uniform(0, _MAX_LENGTH))
    AFTER.write(world.project)
    ended = world.server.wait(running)
    findings += of_command(ended, killed=False)
    if chance.random() < 0.5:  # set right again
        world.page.set_clock(0)
    for _ in range(chance.randint(0, 2)):
        findings += of_command(world.run("build", join=True), killed=False)
    findings += [Finding("left over", f"process {words}") for words in world.server.settle()]
    scenario = Scenario("clocks", ("build",), edition=AFTER, removes=True)
    # What was built is not what is there now: that it ended well proves nothing.
    return findings + judge(world, scenario, before, replace(ended, status=1, err="edited"))


def _start(world: World) -> Running:
    environment = world.environment(join=True)
    return world.server.start(("build", "-j2"), world.project, environment, join=True)


CLOCKS = Clocks()
