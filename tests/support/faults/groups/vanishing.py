"""Directories that somebody deletes or moves away while a build runs: the cache, a part of it, the
home, `TMPDIR`. The build may end badly; what is gone stays gone, and the next build makes it."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from support.faults import scenarios
from support.faults.commands import Ended
from support.faults.group import NotTriedError, attempt
from support.faults.oracle import Finding
from support.faults.world import World
from support.nvcc_journal import misbehave

_CACHE = ("", "programs", "include", "scripts", "staging", "state", "locks")
_PLACES = (*(f"cache/{name}" for name in _CACHE), "home", "temporary")
_COMPILES = (1, 2)
"""In which of the compiles it goes."""
_AFTER = (0, 0.01, 0.05)
"""Seconds after the compiler has started, which takes `_SLOW` seconds."""
_SLOW = "0.04"


class Vanishing:
    """A directory is not there any more."""

    name = "vanishing"
    sample = 5

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`cold|bare PLACE deleted|moved|replaced COMPILE SECONDS`."""
        ways = itertools.product(
            ("cold", "bare"), _PLACES, ("deleted", "moved", "replaced"), _COMPILES, _AFTER
        )
        yield from (" ".join(map(str, way)) for way in ways)

    def run(self, world: World, fault: str) -> list[Finding]:
        scenario, place, how, number, after = fault.split()
        name, _, below = place.partition("/")
        path = getattr(world, name) / below

        def command() -> Ended:
            misbehave(world.nvcc, *[("slow", _SLOW)] * 9)
            running = world.server.start(("build", "-j1"), world.project, world.environment())
            reached = _soon(lambda: len(world.journal()) >= int(number))
            time.sleep(float(after))
            put_back = _vanish(path, how)
            ended = world.server.wait(running)
            put_back()
            world.home.mkdir(exist_ok=True)
            world.temporary.mkdir(exist_ok=True)
            if not reached:
                raise NotTriedError
            return ended

        # What was deleted is lost, and is compiled again; a build that did not need it ends well.
        found = replace(scenarios.scenarios(world)[scenario], removes=True)
        return [
            finding
            for finding in attempt(world, found, command)
            if not finding.what.startswith("it said that all was well")
        ]


def _soon(condition: Callable[[], bool], seconds: float = 5) -> bool:
    late = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > late:
            return False
        time.sleep(0.002)
    return True


def _vanish(path: Path, how: str) -> Callable[[], object]:
    """Let a directory vanish; return what sets right what no build has to."""
    aside = path.with_name(f"{path.name}.aside")
    with suppress(FileNotFoundError):
        path.rename(aside)
    if how == "replaced":
        with suppress(OSError):
            path.write_text("a file of somebody's")

    def put_back() -> None:
        if path.is_file() and how == "replaced":
            path.unlink()
        if how == "moved" and aside.exists():
            _remove(path)
            aside.rename(path)
        _remove(aside)

    if how == "deleted":
        _remove(aside)
    return put_back


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


VANISHING = Vanishing()
