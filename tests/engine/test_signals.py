"""Ctrl-C and its kin, sent to a real process that builds."""

import json
import os
import signal
import subprocess
import sys

from support.paths import TESTS

BUILDER = """
import sys, threading
from tilusbuild.engine.build import build_jobs
from support.fake_engine import FakeCompiler, FakeJob, FakeStore
from tilusbuild.report.jsonl import JsonReporter

class Compiler(FakeCompiler):
    def cancel(self):
        pass  # it goes on

compiler = Compiler(lambda job: threading.Event().wait())
build_jobs([FakeJob("job")], FakeStore(), compiler, JsonReporter(sys.stdout))
"""


def test_the_second_signal_ends_the_process_at_once() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", BUILDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as builder:
        assert builder.stdout is not None
        for event in ("started", "stopping"):
            assert any(json.loads(line)["event"] == event for line in builder.stdout)
            builder.send_signal(signal.SIGINT)
    assert builder.returncode == -signal.SIGINT
