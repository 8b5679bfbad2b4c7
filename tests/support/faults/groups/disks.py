"""Disks of every size: the project's caches, home and output lie on a tmpfs that holds so many
bytes or files. A build that finds no room says so; with room, everything goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

from support.faults import scenarios
from support.faults.mounts import mounted, sh
from support.faults.oracle import Finding, judge
from support.faults.world import World, entries

_SCENARIOS = [
    "cold",
    "bare",
    "edit",
    "merge",
    "install-tar.zst",
    "package-wheel",
    "package-dir",
    "gc",
]
_PAGE = 4
"""KiB: what a tmpfs gives out."""
_MORE = {"bytes": 260, "files": 130}
"""So much more than the base takes: what any of the commands needs."""


class Disks:
    """Too little room."""

    name = "disks"
    sample = 6

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO bytes|files ROOM`: KiB, or files, besides those that are there."""
        for scenario in _SCENARIOS:
            yield from (f"{scenario} bytes {room}" for room in range(0, _MORE["bytes"], _PAGE))
            yield from (f"{scenario} files {room}" for room in range(_MORE["files"]))

    def run(self, world: World, fault: str) -> list[Finding]:
        name, what, room = fault.split()
        scenario = scenarios.scenarios(world)[name]
        with mounted(world, "-t", "tmpfs", "-o", "size=64m,nr_inodes=100000", "none"):
            world.reset(scenario.base, scenario.edition)
            before = entries(world.cache)
            kib, files = _used(world.room)
            size = f"size={kib + int(room)}k"
            limit = size if what == "bytes" else f"nr_inodes={files + int(room)}"
            sh("mount", "-o", f"remount,{limit}", str(world.room))
            ended = world.run(*scenario.words)
            sh("mount", "-o", "remount,size=64m,nr_inodes=100000", str(world.room))
            return judge(world, scenario, before, ended)


def _used(path: Path) -> tuple[int, int]:
    """Return KiB and inodes in use."""
    found = os.statvfs(path)
    blocks = (found.f_blocks - found.f_bfree) * found.f_frsize // 1024
    return blocks, found.f_files - found.f_ffree


DISKS = Disks()
