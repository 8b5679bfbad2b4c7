"""Commands of tilusbuild that a fork server runs (`server.py`), as the laboratory sees them."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 30.0
"""Seconds after which a command hangs. No trial has work for more than a few."""
_SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    """A command that has ended; `hung`: it had to be killed."""

    status: int
    out: str
    err: str
    hung: bool = False
    cpu: float = 0.0
    memory: int = 0
    """Seconds of processor time, and the most bytes, of it and of what it waited for."""


@dataclass(frozen=True)
class Running:
    """A command that runs, as the leader of a session of its own."""

    pid: int
    out: Path
    err: Path


class Server:
    """A fork server; several commands may run at once."""

    def __init__(
        self, injection: Mapping[str, str], output_directory: Path, *, reaps: bool = True
    ) -> None:
        """`injection` is the server's environment beside ours. Outputs are files in
        `output_directory`.

        What commands leave behind falls to the server if it `reaps`, else to init."""
        self._output_directory = output_directory
        output_directory.mkdir()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
        own = {"OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8:strict"}
        variables = {**os.environ, **own, **injection}
        self._process = subprocess.Popen(
            [sys.executable, script, *(["--reap"] if reaps else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ended: dict[int, dict[str, Any]] = {}
        self._count = 0
        self.interpreters = False
        """Commands are started as a person starts them, each by an interpreter of its own."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._expect("ready", 120)

    def run(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        seconds: float = PATIENCE,
        **how: Any,
    ) -> Ended:
        """Run a command to its end, or kill it after `seconds`; `how` as for `start`."""
        return self.wait(self.start(words, cwd, environment, **how), seconds)

    def start(
        self,
        words: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        *,
        join: bool = False,
        stopped: bool = False,
        umask: int = 0o022,
        inside: str = "",
    ) -> Running:
        """Start a command. `join`: the faults of the page are for it; `stopped`: it waits for
        SIGCONT first; `inside`: Python code that its process runs before it."""
        request = self._request(words, cwd, environment)
        how = {"join": join, "stopped": stopped, "interpreter": self.interpreters, "umask": umask}
        self._ask(start={**request, **how, "inside": inside})
        return Running(self._expect("started", 60), Path(request["out"]), Path(request["err"]))

    def warm(self, words: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Ended:
        """Have the server itself run a command: what it forks later starts with code that is
        quick."""
        request = self._request(words, cwd, environment)
        self._ask(warm=request)
        status = self._expect("warmed", 120)
        return Ended(status, _text(request["out"]), _text(request["err"]))

    def _request(
        self, words: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the request of a command, with files for what it says."""
        self._count += 1
        path_by_kind = {
            kind: self._output_directory / f"{kind}{self._count % 64}" for kind in ("out", "err")
        }
        for path in path_by_kind.values():
            path.write_bytes(b"")
        files = {kind: str(path) for kind, path in path_by_kind.items()}
        return {"words": [*words], "cwd": str(cwd), "env": {**environment}, **files}

    def wait(self, running: Running, seconds: float = PATIENCE) -> Ended:
        """Wait for a command, or kill its session after `seconds`."""
        hung = False
        try:
            how = self._how_ended(running.pid, seconds)
        except queue.Empty:
            hung = True
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            how = self._how_ended(running.pid, 60)
        outputs = _text(running.out), _text(running.err)
        return Ended(how["status"], *outputs, hung, how["cpu"], how["memory"])

    def settle(self, seconds: float = _SETTLE_SECONDS) -> list[str]:
        """Wait for everything that commands left running; returns what did not end by itself."""
        self._ask(settle=seconds)
        leftovers: list[str] = self._expect("left", seconds + 60)
        return leftovers

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, **request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"gone": self._process.poll()})

    def _expect(self, key: str, seconds: float) -> Any:
        while True:
            answer = self._next(seconds)
            if key in answer:
                return answer[key]
            self._ended[answer["ended"]] = answer

    def _next(self, seconds: float) -> dict[str, Any]:
        answer = self._answers.get(timeout=seconds)
        if "gone" in answer:
            raise RuntimeError(f"the fork server ended; see {self._output_directory}")
        return answer

    def _how_ended(self, pid: int, seconds: float) -> dict[str, Any]:
        while pid not in self._ended:
            answer = self._next(seconds)
            self._ended[answer["ended"]] = answer
        return self._ended.pop(pid)


def status_of(pid: int, name: str = "State") -> str:
    """What the kernel says of a process; "" when it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith(f"{name}:")).split()[1]
    return ""


def is_over(running: Running) -> bool:
    """Whether a command has ended, waited for or not."""
    return status_of(running.pid) in ("", "Z")


def _text(path: str | Path) -> str:
    return Path(path).read_bytes().decode(errors="replace")
