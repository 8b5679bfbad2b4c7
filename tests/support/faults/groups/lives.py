"""Random lives of one cache: several builders, gc, verify, install, merge and clear at once, edits
between them, and any of them killed at any instant. A life is its seed.

While it goes on no command may fail but for what it was given (a signal, a cache that is busy), and
each program is compiled once for as long as nobody removes it. At the end the oracle judges."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from support.faults.commands import Ended, Running
from support.faults.oracle import Finding, Scenario, has_not_begun, judge, of_command
from support.faults.world import EDITIONS, FIRST, FORMATS, World, entries

_LIVES = 300
_ROUNDS = 5
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BUSY = ("is using", "try again", "busy", "changed while", "build again")
_NO_INDEX = "says what is in use: nothing was removed"
"""gc's word of a cache that was cleared, and whose next build was killed before it had one."""


@dataclass(frozen=True)
class Lives:
    """Lives in which programs are removed, or not."""

    name: str
    removes: bool
    sample: int = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`NUMBER`, the life's seed."""
        return [str(chance.randrange(1 << 32)) for _ in range(_LIVES)]

    def run(self, world: World, fault: str) -> list[Finding]:
        chance = Random(f"{self.name} {fault}")
        world.reset(chance.choice(("seeded", "built", "garbage")))
        before = entries(world.cache)
        findings: list[Finding] = []
        killed = False
        for _ in range(chance.randint(1, _ROUNDS)):
            words = [self._command(world, chance) for _ in range(chance.randint(2, 5))]
            signals = {
                n: chance.choice(_SIGNALS) for n in range(len(words)) if chance.random() < 0.3
            }
            instants = {number: chance.uniform(0, 0.6) for number in signals}
            killed |= bool(signals)
            edition = chance.choice(EDITIONS)
            for command, ended in self._together(world, words, signals, instants):
                findings += _of_one(command, ended)
            edition.write(world.project)
        FIRST.write(world.project)
        programs = world.whole_programs(entries(world.cache))
        if not self.removes and not killed:
            compiled = world.journal()
            findings += [
                Finding("twice", f"{program} was compiled {compiled.count(program)} times")
                for program in sorted(programs)
                if compiled.count(program) > 1
            ]
        world.forget_journal()
        scenario = Scenario("life", ("build", "-j2"), removes=self.removes)
        return findings + judge(world, scenario, before, Ended(1, "", "a life"))

    def _command(self, world: World, chance: Random) -> tuple[str, ...]:
        package = str(world.package(chance.choice(FORMATS)))
        words = [
            ("build", "-j1"),
            ("build", "-j2"),
            ("build", "-j3"),
            ("build", "-j2", "--json"),
            ("cache", "verify"),
            ("cache", "merge", str(world.library / ".cache")),
            ("install", package),
            ("plan",),
            ("explain",),
            ("cache", "ls"),
        ]
        if self.removes:
            words += [("cache", "gc"), ("cache", "gc"), ("cache", "clear")]
        return chance.choice(words)

    def _together(
        self,
        world: World,
        words: list[tuple[str, ...]],
        signals: dict[int, signal.Signals],
        instants: dict[int, float],
    ) -> list[tuple[tuple[str, ...], Ended]]:
        """Run commands at once; send these signals at these instants."""
        start = time.monotonic()
        running = [world.server.start(one, world.project, world.environment()) for one in words]
        for number, instant in sorted(instants.items(), key=lambda item: item[1]):
            time.sleep(max(0.0, start + instant - time.monotonic()))
            _send(running[number], signals[number])
        return [(one, world.server.wait(it)) for one, it in zip(words, running, strict=True)]


def _send(running: Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(running.pid, number)


def _of_one(words: tuple[str, ...], ended: Ended) -> list[Finding]:
    """What is wrong with how a command of a life ended."""
    ended_by_us = -ended.status in (*_SIGNALS,)
    if ended_by_us or ended.status in (0, 129, 130, 143):
        return [
            Finding(finding.column, f"{' '.join(words)}: {finding.what}")
            for finding in of_command(ended, killed=ended_by_us)
        ]
    findings = list(of_command(ended, killed=False))
    output = ended.err + ended.out
    excused = has_not_begun(ended) or any(text in output for text in (*_BUSY, _NO_INDEX))
    if not findings and not excused:
        findings.append(Finding("stuck", f"{' '.join(words)} ends {ended.status}: {output[-800:]}"))
    return findings


KEEPING = Lives("lives", removes=False)
REMOVING = Lives("removals", removes=True, sample=0)
