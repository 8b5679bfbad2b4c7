"""The command line, each command a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    with start(directory, *map(str, words), environment=environment, before=before) as process:
        out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in err, err
    assert status in (None, process.returncode), f"{process.returncode}:\n{out}\n{err}"
    return Ran(process.returncode, out, err)
