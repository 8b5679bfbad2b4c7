"""The command line, each command a process of its own.

To start Python and import everything takes ten times as long as most commands: `run` forks them
from a process that has (`support.faults.server`), and has run a few commands itself, which takes
two thirds off each that follows. One in thirty-two is started as a user would; a command that is
to be interrupted or looked at (`start`) always is.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from support.faults.commands import Server

TILUSBUILD = (sys.executable, "-m", "tilusbuild")


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        last = self.events[-1]
        assert last["event"] == "summary"
        return last


def start(
    directory: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    **how: Any,
) -> subprocess.Popen[str]:
    """Start a command in a directory, in a session of its own; its output is kept as text.

    `environment` is added to this process's; `before` are words in front, as of `setpriv`.
    """
    return subprocess.Popen(
        [*before, *TILUSBUILD, *words],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
    )


def run(
    directory: Path,
    *words: str | Path,
    status: int | None = 0,
    environment: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    timeout: float = 300,
) -> Ran:
    """Run a command until it ends, with this exit status; None is any. Never a traceback."""
    arguments = tuple(map(str, words))
    if before or _by_itself(arguments, environment or {}):
        with start(directory, *arguments, environment=environment, before=before) as process:
            out, err = process.communicate(timeout=timeout)
        ran = Ran(process.returncode, out, err)
    else:
        variables = {**os.environ, **(environment or {})}
        ended = _server(os.getpid()).run(arguments, directory, variables, seconds=timeout)
        assert not ended.hung, f"{arguments} did not end in {timeout} s:\n{ended.out}\n{ended.err}"
        ran = Ran(ended.status, _text(ended.out), _text(ended.err))
    assert "Traceback" not in ran.err, ran.err
    assert status in (None, ran.status), f"{ran.status}:\n{ran.out}\n{ran.err}"
    return ran


_OF_THE_INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG")
"""Variables that are read when Python starts: a fork would not see them."""
_STARTED = 32
"""Of so many commands, one is started and not forked."""


def _by_itself(words: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Whether a command is started by itself; the same ones each time."""
    if any(name.startswith(_OF_THE_INTERPRETER) for name in environment):
        return True
    if threading.current_thread() is not threading.main_thread():
        return True  # the server runs one after the other, and these are to run at once
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return zlib.crc32(repr((test, words)).encode()) % _STARTED == 0


_MANIFEST = """\
edition = 1
project = { name = "p", version = "1" }
build.cache-dir = ".cache"
target.cpu.arch = "cpu"
[script.k]
template = "kernels/k.cu.j2"
kernel = "k"
args = { x = { type = "f32*[n]", out = true }, n = "i64" }
space = { unroll = [1, 2] }
"""
_TEMPLATE = 'extern "C" void k(float *x, long long n) { x[n - 1] = {{ unroll }}; }\n'


@lru_cache(maxsize=1)
def _server(pid: int) -> Server:
    """The server of this process; a fork of it makes one of its own."""
    directory = Path(tempfile.mkdtemp(prefix="commands-"))
    server = Server({}, directory / "said", reaps=False)
    (directory / "kernels").mkdir()
    (directory / "tilus.toml").write_text(_MANIFEST)
    (directory / "kernels/k.cu.j2").write_text(_TEMPLATE)
    for words in (("build",), ("build", "--json"), ("plan",), ("explain",), ("cache", "verify")):
        server.warm(words, directory, {**os.environ, "HOME": str(directory)})

    def close() -> None:
        if os.getpid() == pid:
            server.close()
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(close)
    return server


def _text(text: str) -> str:
    """What a pipe in text mode would have given."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
