import os
import time
from collections.abc import Callable, Iterator

import pytest

from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    with LocalRunner() as made:
        yield made


@pytest.fixture
def sh() -> Callable[..., Command]:
    """Makes a command of a shell script."""

    def make(script: str, **options: object) -> Command:
        env = {"PATH": "/usr/bin:/bin", **options.pop("env", {})}
        return Command(("sh", "-c", script), cwd="/", env=env, **options)

    return make


class Marker:
    """A number that no other process sleeps for: who sleeps for it was started by this test."""

    def __init__(self) -> None:
        self.seconds = f"{os.getpid() % 100000 + 1000000}.{time.monotonic_ns() % 10**9:09}"

    def sleepers(self) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    arguments = file.read().split(b"\0")
            except OSError:
                continue
            if arguments[:2] == [b"sleep", self.seconds.encode()]:
                found.append(int(name))
        return found

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.sleepers()) == count)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; a failure when it does not within a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


@pytest.fixture
def marker() -> Iterator[Marker]:
    made = Marker()
    yield made
    for pid in made.sleepers():
        os.kill(pid, 9)
