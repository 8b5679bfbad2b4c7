"""State files whose bytes are flipped, and which are cut, at every place; also emptied, grown,
exchanged with each other, and replaced by what is not a file.

A file that only saves work may cost time and nothing else. A file of an entry is found by
`cache verify`, whose advice (`--repair`) makes the cache whole again; a build takes nothing of it
that its own promise (docs/cache.md) does not allow."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random

from support.faults.group import NotTriedError
from support.faults.oracle import Finding, Scenario, judge_repaired
from support.faults.world import World

_STRIDE = 7
"""Every so-manieth byte of a large file; small files at every byte."""
_SMALL = 600
_OTHER = ("empty", "grown", "zeros", "directory", "fifo", "dangling", "unreadable", "missing")


class Damage:
    """Bytes that rot."""

    name = "damage"
    sample = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`FILE flip|cut AT`, `FILE KIND`; files relative to cache or home."""
        world.reset("built")
        for name, path in _files(world).items():
            size = path.stat().st_size
            first = chance.randrange(_STRIDE)
            places = range(size) if size <= _SMALL else range(first, size, _STRIDE)
            for how in ("flip", "cut"):
                yield from (f"{name} {how} {offset}" for offset in places)
            yield from (f"{name} {how} 0" for how in _OTHER)

    def run(self, world: World, fault: str) -> list[Finding]:
        name, how, offset = fault.rsplit(" ", 2)
        world.reset("built")
        path = _files(world).get(name)
        if path is None:
            raise NotTriedError
        damage(path, how, int(offset))
        scenario = Scenario("damage", ("build", "-j2"))
        return judge_repaired(world, scenario, name, gc_first=int(offset) % 3 == 2)


def _files(world: World) -> dict[str, Path]:
    """The files by names that are the same in every world: home's are named by what they are."""
    path_by_name = {}
    for top in (world.cache, world.home):
        for where, _, names in os.walk(top):
            for name in sorted(names):
                path = Path(where, name)
                if not path.is_symlink():
                    path_by_name[f"{top.name}/{path.relative_to(top)}"] = path
    return path_by_name


def damage(path: Path, how: str, offset: int) -> None:
    """Damage a file in one of the ways."""
    data = path.read_bytes()
    if how == "flip":
        path.write_bytes(
            data[:offset] + bytes([data[offset] ^ (1 << offset % 8)]) + data[offset + 1 :]
        )
    elif how == "cut":
        os.truncate(path, offset)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "grown":
        path.write_bytes(data + b"\n" + data)
    elif how == "zeros":
        path.write_bytes(bytes(len(data)))
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
            shutil.copy(__file__, path / "file")
        elif how == "fifo":
            os.mkfifo(path)
        elif how == "dangling":
            path.symlink_to("nowhere")
        elif how == "unreadable":
            path.symlink_to(path.name)  # even root cannot follow this one


DAMAGE = Damage()
