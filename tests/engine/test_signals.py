"""Ctrl-C and its kin, sent to a real process that builds with the real runner."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from support.paths import TESTS

_BUILDER = """
import sys
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import Compiled
from tilusbuild.engine.build import build_jobs
from support.fake_engine import FakeCompiler, FakeJob, FakeStore, built
from tilusbuild.process.base import Command
from tilusbuild.process.local import LocalRunner
from tilusbuild.report.jsonl import JsonReporter

runner = LocalRunner()

def script(job):
    if job.index:
        runner.run(Command(("sleep", "1000"), "/", {"PATH": "/usr/bin:/bin", "MARK": "MARKER"}))
    return built()

class Compiler(FakeCompiler):
    def cancel(self):
        pass  # they go on

jobs = [FakeJob(f"job {i}", index=i, is_default=not i) for i in range(20)]
config = BuildConfig(jobs=3)
result = build_jobs(jobs, FakeStore(), Compiler(script), JsonReporter(sys.stdout), config)
runner.close()
sys.exit(result.summary.exit_status)
"""


def events(stream: IO[str] | None) -> Iterator[dict[str, Any]]:
    assert stream is not None
    for line in stream:
        yield json.loads(line)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a builder and returns when three compilers hang and one program is done."""
    started: list[subprocess.Popen[str]] = []
    mark = f"tilusbuild-test-{os.getpid()}-{len(started)}"

    def begin() -> subprocess.Popen[str]:
        builder = subprocess.Popen(
            [sys.executable, "-c", _BUILDER.replace("MARKER", mark)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        started.append(builder)
        running = 0
        for event in events(builder.stdout):
            running += {"started": 1, "finished": -1}.get(event["event"], 0)
            if running == 3:
                return builder
        raise AssertionError("the builder ended early")

    yield begin
    for builder in started:
        builder.kill()
        builder.wait()
        assert builder.stdout is not None
        builder.stdout.close()
    # After a sudden death it is the runner's warden that kills; it has a moment to notice.
    for _ in range(200):
        if not survivors(mark):
            break
        time.sleep(0.05)
    assert not survivors(mark)


def survivors(mark: str) -> list[str]:
    """Processes whose environment holds the mark."""
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in environment(pid)]


def environment(pid: str) -> str:
    """A process's environment; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def test_the_second_signal_ends_the_process_at_once(start) -> None:
    builder = start()
    builder.send_signal(signal.SIGINT)
    assert next(events(builder.stdout))["event"] == "stopping"
    builder.send_signal(signal.SIGINT)
    assert builder.wait() == -signal.SIGINT
