"""Power failures: the file system under the project stops at some call of a command, and what was
not yet on the disk is gone. An ext4 image on a loop device is shut down as by the plug
(`FS_IOC_SHUTDOWN` without a flush of its log), mounted again, and judged."""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

from support.faults import injector, scenarios
from support.faults.commands import Ended, Running, is_over
from support.faults.group import NotTriedError
from support.faults.groups.calls import dry_runs
from support.faults.mounts import mount, sh, unmount
from support.faults.oracle import Finding, judge
from support.faults.world import World, entries

_SHUTDOWN = 0x8004587D
_NO_FLUSH = 2
_SCENARIOS = ("cold", "edit", "merge", "install-dir", "gc", "package-dir")


class Power:
    """The plug is pulled."""

    name = "power"
    sample = 1

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO CALL`."""
        for name, log in dry_runs(world, injector.CHANGES, _SCENARIOS):
            yield from (f"{name} {call_number}" for call_number in range(1, len(log) + 1))

    def run(self, world: World, fault: str) -> list[Finding]:
        name, call_number = fault.split()
        scenario = scenarios.scenarios(world)[name]
        image = world.directory / "image"
        shutil.copy(_empty_image(world.directory), image)
        mount(world, "-o", "loop", str(image))
        try:
            world.reset(scenario.base, scenario.edition)
            before = entries(world.cache)
            _sync(world.room)
            ended = _until_call(world, scenario.words, int(call_number))
            unmount(world)
            mount(world, "-o", "loop", str(image))
            return judge(world, scenario, before, ended, killed=True)
        finally:
            unmount(world)


def _empty_image(directory: Path) -> Path:
    path = directory / "empty-image"
    if not path.exists():
        if shutil.which("mkfs.ext4") is None:
            raise NotTriedError
        path.touch()
        os.truncate(path, 24 << 20)
        sh("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(path))
    return path


def _sync(path: Path) -> None:
    subprocess.run(["sync", "-f", str(path)], check=True)


def _until_call(world: World, words: tuple[str, ...], call_number: int) -> Ended:
    """Run a command to its `call_number`-th call; stop the file system there, then the command."""
    world.page.arm(injector.CHANGES, world.roots, call_number=call_number, signal=signal.SIGSTOP)
    environment = world.environment(join=True)
    running = world.server.start(words, world.project, environment, join=True)
    try:
        _wait_for(world, running)
        handle = os.open(world.room, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
        except OSError:
            raise NotTriedError from None
        finally:
            os.close(handle)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        ended = world.server.wait(running)
        world.page.disarm()
    return ended


def _wait_for(world: World, running: Running) -> None:
    deadline = time.monotonic() + 30
    while not world.page.fired:
        if is_over(running) or time.monotonic() > deadline:
            raise NotTriedError
        time.sleep(0.002)


POWER = Power()
