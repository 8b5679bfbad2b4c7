"""Clocks that are wrong: ours against the file system's, by libfaketime, and edits at any instant.

A script is edited and built; while its compilers run, a second script that was up to date is edited
too, to a text of the same length. Whatever the clocks say, the next build must see that."""

from __future__ import annotations

import glob
import time
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from support.faults.commands import Server
from support.faults.group import NotTriedError
from support.faults.oracle import Finding, Scenario, judge, of_command
from support.faults.world import AFTER, BEFORE, BETWEEN, World, entries
from support.nvcc_journal import misbehave

_OFFSETS = (0, 0.003, 0.05, 0.3, 1, 2, 5, 60, 3600, 86400, 40000000)
_TRIALS = 30


class Clocks:
    """Our clock goes wrong by some seconds."""

    name = "clocks"
    sample = 3

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`OFFSET SEED`: seconds by which our clock is ahead of the file system's."""
        for offset in (*_OFFSETS, *(-offset for offset in _OFFSETS if offset)):
            yield from (f"{offset:+} {chance.randrange(1 << 30)}" for _ in range(_TRIALS))

    def run(self, world: World, fault: str) -> list[Finding]:
        offset, seed = fault.split()
        chance = Random(seed)
        server = _server(world)
        world.reset("seeded", BEFORE)
        environment = {**world.environment(), "FAKETIME": f"{offset}"}
        clock = world.directory / "clock"
        clock.write_text(offset)
        ended = server.run(("build", "-j2"), world.project, environment)
        findings = list(of_command(ended, killed=False))
        if chance.random() < 0.5:
            server.run(("build",), world.project, environment)
        before = entries(world.cache)
        world.forget_journal()
        time.sleep(chance.choice((0, 0, chance.uniform(0, 0.05))))
        BETWEEN.write(world.project)
        misbehave(world.nvcc, *[("slow", "")] * 2)
        running = server.start(("build", "-j2"), world.project, environment)
        time.sleep(chance.uniform(0, 0.6))
        AFTER.write(world.project)
        ended = server.wait(running)
        findings += of_command(ended, killed=False)
        if chance.random() < 0.5:  # set right again
            clock.write_text("+0")
        for _ in range(chance.randint(0, 2)):
            findings += of_command(server.run(("build",), world.project, environment), killed=False)
        findings += [Finding("left over", f"process {words}") for words in server.settle()]
        scenario = Scenario("clocks", ("build",), edition=AFTER, removes=True)
        # What was built is not what is there now: that it ended well proves nothing.
        return findings + judge(world, scenario, before, replace(ended, status=1, err="edited"))


def _server(world: World) -> Server:
    """A server whose clock is `clock`'s; the times of files stay what they are."""
    if world.skewed is None:
        found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not found:
            raise NotTriedError
        clock = world.directory / "clock"
        clock.write_text("+0")
        variables = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        world.skewed = Server(variables, world.directory / "said-skewed")
    return world.skewed


CLOCKS = Clocks()
