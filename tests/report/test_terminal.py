"""The live display in a real terminal (tmux): drawn, resized, and gone at the end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.paths import ROOT, TESTS

_BUILDER = """
import os, sys, time
from tilusbuild.engine.config import BuildConfig
from tilusbuild.engine.build import build
from support.fake_engine import FakeCompiler, FakeJob, FakeStore, built, failed
from tilusbuild.report.choose import choose

def script(job):
    while not os.path.exists(str(job.index)):
        time.sleep(0.02)
    return built() if job.index != 1 else failed()

jobs = [FakeJob(f"job {i}", index=i) for i in range(4)]
for number in range(10):
    print("an earlier line of output,", number)
reporter = choose(stdout=sys.stdout, stderr=sys.stderr, env=os.environ)
build(jobs, FakeStore(), FakeCompiler(script), reporter, BuildConfig(jobs=3))
reporter.close()
"""


class Terminal:
    """A tmux server of our own with one window."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = str(directory / "tmux")

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self.socket, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def screen(self) -> list[str]:
        """What the builder has printed and the screen shows."""
        lines = self.tmux("capture-pane", "-p").rstrip("\n").splitlines()
        return [line for line in lines if not line.startswith("an earlier line")]

    def wait_for(self, seen: Callable[[list[str]], bool]) -> list[str]:
        for _ in range(300):
            screen = self.screen()
            if screen and seen(screen):
                return screen
            time.sleep(0.05)
        raise AssertionError("\n".join(["never seen; the screen is:", *screen]))

    def resized(self, columns: int) -> list[str]:
        """The screen that the builder draws for another width.

        It is stopped meanwhile: tmux wraps its own lines at once and tells the program later, and
        what is drawn in between cannot be right.
        """
        builder = int((self.directory / "pid").read_text())
        os.kill(builder, signal.SIGSTOP)
        self.tmux("resize-window", "-x", str(columns), "-y", "20")
        with open(self.tmux("display", "-p", "#{pane_tty}").strip()) as tty:
            while os.get_terminal_size(tty.fileno()).columns != columns:
                time.sleep(0.02)
        elapsed = self.screen()[-1].split()[-2]
        os.kill(builder, signal.SIGCONT)
        return self.wait_for(lambda screen: screen[-1].split()[-2] != elapsed)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here")
    terminal = Terminal(tmp_path)
    (tmp_path / "builder.py").write_text(_BUILDER)
    python = f"PYTHONPATH='{ROOT}:{TESTS}' '{sys.executable}'"
    command = f"cd '{tmp_path}'; {python} builder.py & echo $! > pid; wait; sleep 100"
    environment = {"NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    flags = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    os.environ.pop("TMUX", None)
    terminal.tmux("-u", "new-session", "-d", "-x", "100", "-y", "20", *flags, command)
    try:
        yield terminal
    finally:
        terminal.tmux("kill-server")


def rows(screen: list[str]) -> list[str]:
    """The rows of the frame that name a running compiler."""
    return [line.split()[0] for line in screen if re.fullmatch(r"  matmul.* \d+\.\d s", line)]


def test_it_draws_follows_a_resize_and_leaves_no_trace(terminal: Terminal, tmp_path: Path) -> None:
    screen = terminal.wait_for(lambda s: len(rows(s)) == 3)
    assert screen[0] == "4 programs: 4 to compile 3 at a time"
    assert screen[1].endswith(" 0/4")

    (tmp_path / "1").touch()
    screen = terminal.wait_for(lambda s: rows(s) == ["matmul/0", "matmul/2", "matmul/3"])
    assert screen[1] == "matmul/1 sm_90a does not compile: kernels/matmul.cu.j2(3): error: no"
    assert "1/4  1 failed" in screen[2]

    for columns in (40, 24, 100):
        screen = terminal.resized(columns)
        assert rows(screen) == ["matmul/0", "matmul/2", "matmul/3"]
        assert len([line for line in screen if "1/4" in line]) == 1

    for index in (0, 2, 3):
        (tmp_path / str(index)).touch()
    screen = terminal.wait_for(lambda s: s[-1].startswith("4 programs: 3 compiled, 1 failed"))
    assert rows(screen) == []
    assert not any("/4" in line for line in screen)


@pytest.mark.parametrize(("unbuffered", "seen"), [("1", "out\nerr\nagain\n"), ("", "err\n")])
def test_lines_are_seen_when_they_would_be(unbuffered: str, seen: str) -> None:
    """Of a process that dies: PYTHONUNBUFFERED holds nothing back, and stderr never does."""
    script = (
        "import os, sys\nfrom tilusbuild.report.terminal import shown\n"
        "with shown({}):\n"
        "    print('out'); sys.stderr.write('err\\n'); print('again'); os._exit(0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert ran.stdout == seen
