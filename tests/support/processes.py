"""Processes that tests start, wait for, kill, and see gone."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def run_to_end(
    command: Sequence[str | Path],
    *,
    status: int | None = 0,
    environment: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends, with this exit status; None is any. Its output is kept as text.

    `environment` is added to this process's; `how` is for `subprocess.run`."""
    if environment is not None:
        how["env"] = {**os.environ, **environment}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    assert status in (None, ran.returncode), f"{ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
    return ran


def run_python(code: str, *words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code as `run_to_end` does a command."""
    return run_to_end([sys.executable, "-c", code, *map(str, words)], **how)


def run_mounted(
    mounts: str, code: str, *words: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code where these shell commands have mounted; skip where that cannot be."""
    tried = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    if (trial := run_to_end(tried, status=None)).returncode:
        pytest.skip(f"no mounts in a namespace of one's own: {trial.stderr.strip()}")
    shell = ["unshare", "-m", "sh", "-euc", f'{mounts}\nexec "$@"', "sh"]
    python = [sys.executable, "-c", code, *map(str, words)]
    return run_to_end([*shell, *python], environment=environment)


def own_threads() -> int:
    """How many threads this process has, whoever started them."""
    return len(os.listdir("/proc/self/task"))


@contextmanager
def no_thread_left() -> Iterator[None]:
    """After the block there are no more threads than before it."""
    before = own_threads()
    try:
        yield
    finally:
        wait_until(lambda: own_threads() <= before)


class Failing:
    """A call on a thread of its own, which is to end by an error of this kind."""

    def __init__(self, kind: type[BaseException], call: Callable[[], object]) -> None:
        self._ended: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(kind, call))
        self._thread.start()

    def _run(self, kind: type[BaseException], call: Callable[[], object]) -> None:
        try:
            call()
        except kind as error:
            self._ended.append(error)

    def failed(self) -> bool:
        self._thread.join(60)
        return len(self._ended) == 1


class Watched:
    """The processes that carry a mark in their environment, or work or lie below a directory.

    Give `environment` to what is started. Marks reach processes that have left group and session;
    the directory reaches compilers, which get an environment of their own.
    """

    def __init__(self, directory: Path) -> None:
        self.environment = {"TEST_MARK": str(directory)}
        self._directory = os.path.join(os.path.realpath(directory), "")
        self._mark = f"TEST_MARK={directory}".encode()

    def alive(self) -> list[str]:
        """The command lines of those that run."""
        return [
            words
            for pid, words in _command_lines().items()
            if pid != os.getpid() and self._is_ours(pid)
        ]

    def assert_none(self) -> None:
        """Nothing of it goes on; what was killed is given the time that the kernel needs."""
        for _ in range(500):
            if not self.alive():
                return
            time.sleep(0.01)
        pytest.fail(f"still running: {self.alive()}")

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if self._mark in file.read().split(b"\0"):
                    return True
            places = [os.readlink(f"/proc/{pid}/{name}") for name in ("cwd", "exe")]
            return any(f"{path}/".startswith(self._directory) for path in places)
        return False


class Marker:
    """A number that no other process sleeps for: who sleeps for it was started by this test."""

    def __init__(self) -> None:
        self.seconds = f"{os.getpid() % 100000 + 1000000}.{time.monotonic_ns() % 10**9:09}"

    def sleepers(self) -> list[int]:
        start = f"sleep {self.seconds}"
        return [pid for pid, words in _command_lines().items() if words == start]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.sleepers()) == count)


def _command_lines() -> dict[int, str]:
    """Every process that has one; those that have ended and are not waited for have none."""
    command_by_pid = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if words := file.read().replace(b"\0", b" ").decode(errors="replace").strip():
                command_by_pid[int(name)] = words
    return command_by_pid
