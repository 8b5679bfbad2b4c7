"""On a terminal of tmux: the live screen, and Ctrl-C in a build."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from support.processes import run_to_end

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine")


class Terminal:
    """A window of a tmux server of its own."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def tmux(self, *words: str) -> str:
        ran = run_to_end(["tmux", "-S", self._socket, *words])
        return ran.stdout

    def start(self, command: str, directory: str) -> None:
        env = {"TMUX": "", **os.environ}
        subprocess.run(
            [
                *("tmux", "-S", self._socket, "-f", "/dev/null", "new-session", "-d"),
                *("-x", "100", "-y", "30", "-c", directory),
                f"{command}; echo ended with $?; exec cat",
            ],
            check=True,
            env=env,
        )

    @property
    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-S", "-200").rstrip()

    def until(self, condition: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + 90
        while not condition(text := self.text):
            assert time.monotonic() < deadline, f"it never showed:\n{text}"
            time.sleep(0.02)
        return text


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    # A socket's path may have some hundred characters only, fewer than pytest's directories have.
    socket = f"/tmp/tilusbuild-tmux-{os.getpid()}-{time.monotonic_ns()}"
    new_terminal = Terminal(socket)
    yield new_terminal
    subprocess.run(["tmux", "-S", socket, "kill-server"], capture_output=True, check=False)
    if os.path.exists(socket):
        os.unlink(socket)


def command(*words: str) -> str:
    return shlex.join([sys.executable, "-m", "tilusbuild", "watch", "-j", "2", *words])


def at_rest(text: str) -> bool:
    return text.rstrip().endswith("Ctrl-C ends")


def test_the_screen_tells_what_changed_and_what_came_of_it(project, terminal):
    terminal.start(command(), str(project.directory))
    text = terminal.until(at_rest)
    assert "6 programs: 6 compiled" in text
    project.kernel("add", "edited")
    text = terminal.until(lambda text: "after the save" in text.split("changed:")[-1])
    shown = text.split("changed:")[-1]
    assert "kernels/add.cu.j2 → add gpu" in shown
    assert "rebuilt 3 programs of add" in shown
    assert "6 compiled" in text
    assert "after the start" in text
    project.save("kernels/add.cu.j2", "{{ oops }}")
    text = terminal.until(lambda text: "the next save tries again" in text and at_rest(text))
    assert 'kernels/add.cu.j2:1:4: error: "oops" is undefined' in text
    project.kernel("add", "fake: fail")
    text = terminal.until(lambda text: "kernels/add.cu.j2(3)" in text and at_rest(text))
    assert text.count("Ctrl-C ends") == 1, "the line at the bottom is one line"
