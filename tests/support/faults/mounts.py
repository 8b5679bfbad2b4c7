"""Disks in the room of a world, in a mount namespace of the process that has the world."""

import ctypes
import subprocess
import time

from support.faults.group import NotTriedError
from support.faults.world import World

_CLONE_NEWNS = 0x00020000


def own_mounts() -> bool:
    """Give this process a mount namespace of its own; returns whether it has one."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        return False
    result = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    return result.returncode == 0


def sh(*words: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(words, check=True, capture_output=True)


def mount(world: World, *words: str) -> None:
    """Mount a disk over the room. Raises `NotTriedError`."""
    ran = subprocess.run(["mount", *words, str(world.room)], capture_output=True)
    if ran.returncode:
        raise NotTriedError


def unmount(world: World) -> None:
    """Take the disk away, when nothing uses it any more."""
    world.server.settle()
    for _ in range(500):
        if not subprocess.run(["umount", str(world.room)], capture_output=True).returncode:
            return
        time.sleep(0.01)
    sh("umount", "-l", str(world.room))
