"""What a runner does when the system refuses it something: it says so, and nothing hangs."""

import errno
import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from support.processes import Failing, wait_until
from tilusbuild.process.base import CancelledError, Command, RunnerLostError
from tilusbuild.process.local import LocalRunner

TRUE = Command(("/bin/true",), "/")
LONG = Command(("/bin/sleep", "1000"), "/")


class Refusing:
    """A socket whose next request fails, after some of its bytes were sent."""

    def __init__(self, inner: Any, number: int, after: int) -> None:
        self._inner, self._number, self._after = inner, number, after

    def send(self, data: memoryview) -> int:
        if self._number and not self._after:
            number, self._number = self._number, 0
            raise OSError(number, os.strerror(number))
        if self._number:
            after, self._after = self._after, 0
            return int(self._inner.send(data[:after]))
        return int(self._inner.send(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def refuse(runner: LocalRunner, number: int, after: int = 0) -> None:
    runner._socket = Refusing(runner._socket, number, after)  # type: ignore[assignment]


@pytest.fixture
def started(runner: LocalRunner) -> LocalRunner:
    runner.run(TRUE)
    return runner


@pytest.mark.parametrize(
    ("number", "after"), [(errno.EPIPE, 0), (errno.ENOBUFS, 0), (errno.ENOMEM, 7)]
)
def test_a_connection_that_breaks_ends_every_command(started, number, after) -> None:
    beside = Failing(RunnerLostError, lambda: started.run(LONG))
    wait_until(lambda: len(started._pending) == 1)
    refuse(started, number, after)
    with pytest.raises(RunnerLostError, match=os.strerror(number)):
        started.run(TRUE)
    assert beside.failed()


def test_a_cancellation_that_cannot_be_sent_ends_the_warden(started: LocalRunner) -> None:
    beside = Failing(CancelledError, lambda: started.run(LONG))
    wait_until(lambda: len(started._pending) == 1)
    refuse(started, errno.ENOMEM)
    started.cancel()
    assert beside.failed()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def start(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading, "_start_new_thread", start)


def test_a_runner_without_a_thread_leaves_no_process(no_threads: Callable[[], None]) -> None:
    no_threads()
    runner = LocalRunner()
    with pytest.raises(OSError, match="no thread can be started"):
        runner.run(TRUE)
    with pytest.raises(ChildProcessError):
        os.waitpid(runner._warden, os.WNOHANG)
    runner.close()


def test_a_warden_whose_poll_fails_is_reported(started: LocalRunner) -> None:
    # poll() refuses more descriptors than may be open.
    resource.prlimit(started._warden, resource.RLIMIT_NOFILE, (1, 1))
    # One that waits already takes this, has no descriptor for it, and then polls again.
    with suppress(OSError, RunnerLostError):
        started.run(TRUE)
    with pytest.raises(RunnerLostError, match=r"ended unexpectedly \(status 1\)"):
        started.run(TRUE)
