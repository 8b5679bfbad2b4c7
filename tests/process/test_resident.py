"""Tools that stay: asked again and again, replaced when they die, and gone when their runner is.

The tool is the real `nvrtc_command` around a library of ours (`tests/support/nvrtc_library.c`).
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from support.processes import Failing, wait_until
from tilusbuild.process import resident
from tilusbuild.process.base import CancelledError, Command, CompletedCommand
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.resident import Resident, ResidentPool, ResidentRunner
from tilusbuild.toolchain import nvrtc_command

SOURCE = Path(__file__).parents[1] / "support/nvrtc_library.c"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nvrtc")
    path = directory / "libnvrtc.so.13"
    argv = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", str(path)]
    subprocess.run(argv, check=True)
    return path


@dataclass
class Tool:
    """A pool, and commands for it."""

    pool: ResidentPool
    runner: LocalRunner
    directory: Path
    made: int = 0

    def command(self, text: str = "", timeout: float | None = None) -> Command:
        self.made += 1
        cwd = self.directory / f"p{self.made}"
        cwd.mkdir()
        (cwd / "source.cu").write_text(f"// {text}")
        argv = (*self.pool.argv, "cubin", "source.cu", "source.cu", "out.cubin")
        journal = {"FAKE_NVRTC_JOURNAL": str(self.directory / "journal")}
        return Command(argv, str(cwd), {"PATH": "/usr/bin:/bin", **journal}, timeout)

    def scope(self) -> ResidentRunner:
        return ResidentRunner(self.pool, self.runner.open_scope())

    def run(self, text: str = "", timeout: float | None = None) -> CompletedCommand:
        return self.scope().run(self.command(text, timeout))

    def processes(self) -> list[int]:
        """Who compiled, in order."""
        journal = self.directory / "journal"
        return [int(line) for line in journal.read_text().split()] if journal.exists() else []


def make_tool(runner: LocalRunner, library: Path, directory: Path) -> Tool:
    script = os.path.abspath(nvrtc_command.__file__)
    argv = (sys.executable, "-I", "-S", script, "--library", str(library))
    return Tool(ResidentPool(runner, argv), runner, directory)


@pytest.fixture
def tool(runner: LocalRunner, library: Path, tmp_path: Path) -> Iterator[Tool]:
    resident_tool = make_tool(runner, library, tmp_path)
    yield resident_tool
    resident_tool.pool.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_one_process_answers_one_command_after_the_other(tool: Tool) -> None:
    other = tool.scope().run(Command(("sh", "-c", "echo other"), "/", {"PATH": "/usr/bin:/bin"}))
    assert (other.output, tool.processes()) == (b"other\n", [])
    ended = [tool.run(str(number)) for number in range(5)]
    assert all(one.ok and one.output == b"a log\n" and one.peak_rss > 1 << 20 for one in ended)
    assert len(tool.processes()) == 5
    assert len(set(tool.processes())) == 1
    assert (tool.directory / "p3/out.cubin").read_text() == '#line 1 "source.cu"\n// 2'


def test_as_many_processes_as_commands_at_once(tool: Tool) -> None:
    hanging = [tool.scope() for _ in range(3)]

    beside = []
    for scope in hanging:
        run = partial(scope.run, tool.command("fake: hang"))
        beside.append(Failing(CancelledError, run))
        wait_until(lambda: len(tool.processes()) == len(beside))
    assert len(set(tool.processes())) == 3
    assert tool.run().ok
    for scope in hanging:
        scope.cancel()
    assert all(failure.failed() for failure in beside)


@pytest.mark.parametrize(
    ("what", "status", "output"),
    [
        ("error", 1, b"source.cu(1): error: it was asked for\n"),
        ("memory", 70, b"a log\nnvrtc: fatal: out of memory\n"),
        ("internal", 70, b"a log\nnvrtc: internal compiler error: INTERNAL\n"),
        ("crash", -signal.SIGSEGV, b""),
        ("kill", -signal.SIGKILL, b""),
    ],
)
def test_how_a_command_ends_is_its_own_affair(tool, what, status, output) -> None:
    ended = tool.run(f"fake: {what}")
    assert (ended.status, ended.output, ended.timed_out) == (status, output, False)
    assert tool.run().ok
    survived = len(set(tool.processes())) == 1
    assert survived == (status >= 0)


def test_a_late_command_is_killed_with_its_process(tool: Tool) -> None:
    tool.run()
    ended = tool.run("fake: hang", timeout=0.3)
    assert ended.timed_out
    assert not ended.ok
    first = tool.processes()[0]
    wait_until(lambda: not alive(first))
    assert tool.run().ok
    assert tool.processes()[-1] != first


def test_a_cancelled_command_ends_at_once_and_takes_no_other_with_it(tool: Tool) -> None:
    scope, other = tool.scope(), tool.scope()
    command = tool.command("fake: hang")
    beside = Failing(CancelledError, lambda: scope.run(command))
    wait_until(lambda: len(tool.processes()) == 1)
    scope.cancel()
    assert beside.failed()
    assert not alive(tool.processes()[0])
    with pytest.raises(CancelledError):
        scope.run(tool.command())
    assert other.run(tool.command()).ok


def test_the_runner_takes_all_of_them_with_it(library: Path, tmp_path: Path) -> None:
    with LocalRunner() as runner:
        tool = make_tool(runner, library, tmp_path)
        tool.run()
        assert alive(tool.processes()[0])
        tool.pool.release_idle()
        runner.cancel()
        wait_until(lambda: not alive(tool.processes()[0]))
        tool.run()
    assert not alive(tool.processes()[-1])
    tool.pool.close()
    with pytest.raises(CancelledError):
        tool.run()


def test_a_process_of_another_user_is_not_trusted(tool, monkeypatch) -> None:
    """Given somebody else who connects first, the socket goes on waiting for our own."""
    users = iter([os.getuid() + 1, os.getuid()])
    monkeypatch.setattr(resident, "_read_peer_user", lambda channel: next(users))
    listen = socket.socket.listen
    strangers: list[socket.socket] = []

    def watched(listener: socket.socket, backlog: int) -> None:
        listen(listener, backlog)
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(listener.getsockname())
        strangers.append(stranger)

    monkeypatch.setattr(socket.socket, "listen", watched)
    assert tool.run().ok
    (stranger,) = strangers
    assert stranger.recv(1) == b""
    stranger.close()


_ANSWERS_WITHOUT_MEMORY = """\
import errno, socket, sys
from tilusbuild.process.resident import serve_requests

class Socket(socket.socket):
    def sendall(self, data):
        raise OSError(errno.ENOBUFS, "No buffer space available")

socket.socket = Socket
serve_requests(sys.argv[-1], lambda request: {})
"""


def test_an_answer_that_finds_no_memory_is_an_error_of_the_machine(runner, tmp_path) -> None:
    argv = (sys.executable, "-c", _ANSWERS_WITHOUT_MEMORY)
    command = Command(argv, str(tmp_path), {"PYTHONPATH": os.pathsep.join(sys.path)})
    process = Resident(runner.open_scope(), argv, command)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        process.send_request(command, ("{}",))
    process.release()


def test_a_tool_that_cannot_serve_says_why(runner: LocalRunner, tmp_path: Path) -> None:
    tool = make_tool(runner, tmp_path / "libnvrtc.so.13", tmp_path)
    ended = tool.run()
    assert ended.status == 2
    assert b"NVRTC cannot be loaded" in ended.output
    tool.pool.close()
