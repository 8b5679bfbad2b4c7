"""System calls that strace makes fail, in a command and in everything that it starts: the warden,
the compilers, the shells. The preloaded seam reaches tilusbuild alone; this one reaches all."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.faults import scenarios
from support.faults.commands import Ended, Running, status_of
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
}
"""Not mmap: a thread that has no memory to begin with ends before Python knows that it has started,
and `Thread.start` of this Python then waits for ever."""
_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 28, 40)
_SCENARIOS = ("cold", "edit")
_PATIENCE = 10.0
_STRACE = ("strace", "-ff", "-y", "-qqq", "-o")


class Traced:
    """Any process of a build."""

    name = "traced"
    sample = 1

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
        injection = Injection(calls, error, int(number), forever=how == "on")

        def command() -> Ended:
            return _traced(world, scenario, injection)

        findings = attempt(world, scenario, command, killed=error == "KILL")
        if not injection.fired or injection.impossible:
            raise NotTriedError
        return [
            finding
            for finding in findings
            if not (injection.muted and finding.what.endswith(NO_WORD))
        ]


@dataclass
class Injection:
    """What strace does to each process, and what came of it."""

    calls: str
    error: str
    number: int
    forever: bool
    fired: bool = False
    muted: bool = False
    """What the command said was itself a write that failed."""
    impossible: bool = False
    """A tool's write to the pipe of its output failed: no disk is there to fail, and tools do not
    look."""

    @property
    def words(self) -> tuple[str, ...]:
        """Return strace's arguments."""
        what = "signal=KILL" if self.error == "KILL" else f"error={self.error}"
        when = f"when={self.number}{'+' if self.forever else ''}"
        return ("-e", f"trace={self.calls}", "-e", f"inject={self.calls}:{what}:{when}")

    def learn(self, journals: Iterable[Path], running: Running) -> None:
        """Read what strace wrote of each process."""
        prefixes = tuple(f"write({number}<{path}>" for number, path in _streams(running))
        for path in journals:
            lines = path.read_text(errors="replace").splitlines()
            if self.error == "KILL":
                calls = sum(_CALL.match(line) is not None for line in lines)
                killed = lines[-1:] == ["+++ killed by SIGKILL +++"]
                self.fired |= killed and calls >= self.number
            failed = [line for line in lines if line.endswith("(INJECTED)")]
            self.fired |= bool(failed)
            self.muted |= any(line.startswith(prefixes) for line in failed)
            self.impossible |= any(line.startswith(_OUTPUT) for line in failed)


def _streams(running: Running) -> list[tuple[int, Path]]:
    return [(1, running.out), (2, running.err)]


_CALL = re.compile(r"\w+\(")
_OUTPUT = ("write(1<pipe:", "write(2<pipe:")


def _traced(world: World, scenario: Scenario, injection: Injection) -> Ended:
    running = world.server.start(scenario.words, world.project, world.environment(), stopped=True)
    # Before it has stopped itself it is not yet the command, and a SIGCONT would be lost.
    _wait_until(lambda: status_of(running.pid) in ("T", ""))
    journals = world.directory / "traced"
    shutil.rmtree(journals, ignore_errors=True)
    journals.mkdir()
    tracer = subprocess.Popen(
        [*_STRACE, str(journals / "of"), *injection.words, "-p", str(running.pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _wait_until(lambda: tracer.poll() is not None or status_of(running.pid, "TracerPid") != "0")
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGCONT)
    ended = world.server.wait(running)
    with suppress(subprocess.TimeoutExpired):
        tracer.wait(5)
    tracer.kill()
    if tracer.wait() not in (0, -9, 137):
        raise NotTriedError
    injection.learn(journals.iterdir(), running)
    return ended


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


TRACED = Traced()
