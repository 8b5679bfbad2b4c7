"""Limits of the kernel that a command and its compilers run under: files, memory, sizes, time,
processes of a control group. Whatever fails then, fails cleanly, and nothing of it is recorded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from random import Random

from support.faults import scenarios
from support.faults.commands import Ended
from support.faults.group import NotTriedError, attempt
from support.faults.oracle import NO_WORD, Finding
from support.faults.world import World

_SCENARIOS = ("cold", "bare", "edit", "merge", "install-tar.zst", "package-wheel")
_KIB, _MIB = 1 << 10, 1 << 20
_LIMITS = {
    "NOFILE": [*range(3, 40), 48, 64],
    "FSIZE": [500, *(n * _KIB for n in (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 64))],
    "AS": [n * _MIB for n in (30, 60, 90, 120, 150, 200, 300, 400, 500, 600, 800)],
    "STACK": [n * _KIB for n in (8, 16, 64, 128, 256, 1024)],
    "DATA": [n * _MIB for n in (1, 4, 8, 16, 32, 64, 100, 150, 200)],
    "CPU": [1],
    "NICE": [0],
    "MEMLOCK": [0],
    "SIGPENDING": [0],
    "pids": [*range(1, 16)],
}

_MEMORY = ("AS", "DATA", "STACK")


class Limits:
    """Too little of something that the kernel gives out."""

    name = "limits"
    sample = 6

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO LIMIT VALUE`."""
        for scenario in _SCENARIOS:
            for name, values in _LIMITS.items():
                yield from (f"{scenario} {name} {value}" for value in values)

    def run(self, world: World, fault: str) -> list[Finding]:
        scenario_name, name, value = fault.split()
        scenario = scenarios.scenarios(world)[scenario_name]

        def command() -> Ended:
            if name != "pids":
                return world.run(*scenario.words, limits={name: int(value)})
            with _group(world, int(value)) as group:
                return world.run(*scenario.words, group=group)

        # A limit may kill: SIGXFSZ and SIGXCPU are nobody's mistake.
        found = attempt(world, scenario, command, killed=name in (*_MEMORY, "CPU"))
        # Python without memory cannot say so.
        return [each for each in found if not (name in _MEMORY and each.what.endswith(NO_WORD))]


@contextmanager
def _group(world: World, most: int) -> Iterator[str]:
    """A control group with room for so many tasks. Raises where there can be none."""
    for top in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        path = os.path.join(top, f"tilusbuild-faults-{os.getpid()}")
        try:
            os.mkdir(path)
            with open(os.path.join(path, "pids.max"), "w") as file:
                file.write(str(most))
        except OSError:
            with suppress(OSError):
                os.rmdir(path)
            continue
        try:
            yield os.path.join(path, "cgroup.procs")
        finally:
            world.server.settle()
            os.rmdir(path)
        return
    raise NotTriedError


LIMITS = Limits()
