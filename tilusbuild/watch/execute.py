"""What `--exec` runs: a shell command in a process group of its own, ended for the next change.

Its lines are reported as they come, and none after `cancel` has returned.
"""

from __future__ import annotations

import codecs
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tilusbuild.process.base import CancelledError, Command, RunnerLostError
from tilusbuild.process.local import LocalRunner
from tilusbuild.watch.events import CommandEnded

MAX_LINE = 1 << 16
"""Characters. A longer line is reported in parts."""
MAX_VARIABLE = 1 << 16
"""Bytes. One variable of an environment cannot hold much more than this on Linux (128 KiB)."""


class Lines:
    """Cuts pieces of output into lines. Of a line that was written over, the last state counts."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def add(self, piece: bytes) -> None:
        *lines, self._begun = (self._begun + self._decoder.decode(piece)).split("\n")
        for line in lines:
            self._say(line)
        if len(self._begun) > MAX_LINE:
            self.end()

    def end(self) -> None:
        """What has no end of line is a line too."""
        if self._begun:
            self._say(self._begun)
        self._begun = ""

    def _say(self, line: str) -> None:
        self._report(line.rstrip("\r").rpartition("\r")[2])


class CommandRun:
    """A command that runs. `printed` is called with each line and `ended` once, on another
    thread."""

    def __init__(
        self,
        runner: LocalRunner,
        command: str,
        directory: str,
        environment: Mapping[str, str],
        scripts: Sequence[str],
        programs: Sequence[str],
        printed: Callable[[str], None],
        ended: Callable[[CommandEnded], None],
    ) -> None:
        self._scope = runner.scope()
        self._command = command
        self._directory = directory
        self._environment = environment
        self._scripts = scripts
        self._programs = programs
        self._lines = Lines(printed)
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="tilusbuild-exec", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Kill it; returns when it is gone."""
        self._scope.cancel()
        self._thread.join()

    def _run(self) -> None:
        listing: str | None = None
        status: int | None = None
        seconds, output = 0.0, ""
        try:
            programs = "\n".join(self._programs)
            if len(os.fsencode(programs)) > MAX_VARIABLE:
                listing = _written(programs)
                programs = f"@{listing}"
            variables = {
                "TILUSBUILD_REBUILT": "\n".join(self._scripts),
                "TILUSBUILD_PROGRAMS": programs,
            }
            command = Command(
                ("/bin/sh", "-c", self._command),
                cwd=self._directory,
                env={**self._environment, **variables},
                on_output=self._lines.add,
            )
            finished = self._scope.run(command)
            status, seconds = finished.status, finished.seconds
            output = finished.output.decode(errors="replace")
        except CancelledError:
            pass
        except (OSError, RunnerLostError) as error:
            status, output = 127, f"{error}\n"
            self._lines.add(output.encode(errors="replace"))
        finally:
            self._lines.end()
            if listing is not None:
                with suppress(OSError):
                    os.unlink(listing)
        self._ended(CommandEnded(self._command, status, seconds, output))


def _written(text: str) -> str:
    handle, path = tempfile.mkstemp(prefix="tilusbuild-programs-")
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text + "\n")
    return path
