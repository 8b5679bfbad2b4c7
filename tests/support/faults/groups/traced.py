"""System calls that strace makes fail, in a command and in everything that it starts: the warden,
the compilers, the shells. The preloaded seam reaches tilusbuild alone; this one reaches all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

from support.faults import scenarios
from support.faults.commands import Ended
from support.faults.group import NotTriedError, attempt
from support.faults.oracle import NO_WORD, Finding, Scenario
from support.faults.world import World

_CALLS = {
    "openat": ("EMFILE", "ENOSPC", "EACCES", "EIO", "ENOMEM"),
    "write": ("ENOSPC", "EIO", "EDQUOT"),
    "read": ("EIO",),
    "rename": ("ENOSPC", "EXDEV", "EACCES"),
    "mkdir": ("ENOSPC", "EROFS"),
    "unlink": ("EACCES", "EIO"),
    "unlinkat": ("EACCES", "EIO"),
    "rmdir": ("EACCES",),
    "fsync": ("EIO", "ENOSPC"),
    "fcntl": ("ENOLCK", "EMFILE"),
    "execve": ("ENOENT", "EACCES", "ENOMEM", "ETXTBSY"),
    "clone,clone3,fork,vfork": ("EAGAIN", "ENOMEM"),
    "pipe2": ("EMFILE",),
    "getdents64": ("EIO",),
    "newfstatat": ("EACCES", "ENOMEM"),
    "poll": ("ENOMEM",),
    "sendto": ("ENOBUFS", "EPIPE"),
    "recvfrom": ("ECONNRESET", "ENOMEM"),
    "socketpair": ("EMFILE",),
    "mmap": ("ENOMEM",),
}
_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 28, 40)
_SCENARIOS = ("cold", "edit")
_PATIENCE = 10.0


class Traced:
    """Any process of a build."""

    name = "traced"
    sample = 3

    def faults(self, world: World, chance: Random) -> Iterable[str]:
        """`SCENARIO CALLS ERROR|KILL NUMBER once|on`; each process has a count of its own."""
        for scenario in _SCENARIOS:
            for calls, errors in _CALLS.items():
                for number in _NUMBERS:
                    yield f"{scenario} {calls} KILL {number} once"
                    for error in errors:
                        yield f"{scenario} {calls} {error} {number} once"
                        yield f"{scenario} {calls} {error} {number} on"

    def run(self, world: World, fault: str) -> list[Finding]:
        if shutil.which("strace") is None:
            raise NotTriedError
        name, calls, error, number, how = fault.split()
        scenario = scenarios.scenarios(world)[name]
        what = "signal=KILL" if error == "KILL" else f"error={error}"
        when = f"when={number}{'+' if how == 'on' else ''}"

        def command() -> Ended:
            return _traced(world, scenario, f"inject={calls}:{what}:{when}")

        found = attempt(world, scenario, command, killed=error == "KILL")
        # What it says is written, too.
        return [each for each in found if calls != "write" or not each.what.endswith(NO_WORD)]


def _traced(world: World, scenario: Scenario, injection: str) -> Ended:
    running = world.server.start(scenario.words, world.project, world.environment(), stopped=True)
    # Before it has stopped itself it is not yet the command, and a SIGCONT would be lost.
    _wait_until(lambda: _status_of(running.pid, "State").startswith("T"))
    tracer = subprocess.Popen(
        ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", injection, "-p", str(running.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _wait_until(lambda: tracer.poll() is not None or _status_of(running.pid, "TracerPid") != "0")
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGCONT)
    ended = world.server.wait(running)
    with suppress(subprocess.TimeoutExpired):
        tracer.wait(5)
    tracer.kill()
    if tracer.wait() not in (0, -9, 137):
        raise NotTriedError
    return ended


def _status_of(pid: int, name: str) -> str:
    """Return what the kernel says of a process; "T" when that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith(f"{name}:")).split()[1]
    return "T"


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


TRACED = Traced()
