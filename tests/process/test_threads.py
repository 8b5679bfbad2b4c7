"""A thread begins, or who started it is told; whoever waits for it, waits for its end."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.processes import wait_until
from tilusbuild.process import threads
from tilusbuild.process.threads import start_thread


def test_it_runs_with_its_arguments_until_it_ends() -> None:
    told: list[object] = []
    go_on = threading.Event()

    def run(*arguments: object) -> None:
        told.extend(arguments)
        go_on.wait(60)

    thread = start_thread(run, 1, "two")
    wait_until(lambda: told == [1, "two"])
    thread.join(0.01)
    assert thread.is_alive()
    go_on.set()
    thread.join()
    assert not thread.is_alive()
    thread.join(-1.0)


def test_one_that_ends_at_once_has_begun() -> None:
    for _ in range(200):
        start_thread(lambda: None).join(60)


def test_one_that_finds_no_memory_for_its_first_call_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What CPython does then: it lets go of what the thread was to call, and ends it."""
    start = _thread.start_new_thread

    def fails(call: Callable[..., object], arguments: tuple[object, ...]) -> int:
        return start(time.sleep, (0.05,))

    monkeypatch.setattr(_thread, "start_new_thread", fails)
    with pytest.raises(OSError, match="no thread can be started"):
        start_thread(print)


def test_python_says_nothing_of_one_that_has_not_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who started it says so; of one that has begun everything is reported."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    thread = start_thread(lambda: None)
    thread.join()

    def reported(has_begun: bool) -> str:
        thread.has_begun = has_begun
        report = SimpleNamespace(
            exc_type=MemoryError,
            exc_value=MemoryError(),
            exc_traceback=None,
            err_msg=None,
            object=thread._run,
        )
        threads._report(cast(Any, report))
        return capsys.readouterr().err

    monkeypatch.setattr(threads, "_former", lambda report: print(report, file=sys.stderr))
    assert "MemoryError" in reported(True)
    assert reported(False) == ""


_WITHOUT_MEMORY = """
import mmap, resource, threading
from tilusbuild.process.threads import start_thread

for thread in [start_thread(threading.Event().wait, 0.2) for _ in range(8)]:
    thread.join()  # the C library keeps its stack, so that a next one can be made
used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_AS, (used, used))
try:
    for _ in range(500):
        start_thread(threading.Event().wait)
except OSError as error:
    print(error)
"""


def test_without_memory_nobody_waits_for_ever() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY], capture_output=True, text=True, timeout=60
    )
    assert "no thread can be started" in ran.stdout, ran.stderr
