"""Run tools to ask about their versions and paths; answers are remembered by the tool's content.

A tool runs in the user's environment without the variables that change what compilers do
(`SCRUBBED`), so that an answer depends on the tool and not on the shell.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from msgspec import Struct

from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_text
from tilusbuild.state.temporary import TemporaryDirectory

SCRUBBED = frozenset(
    {
        "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH",
        "COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT",
        "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH", "LD_RUN_PATH", "LDEMULATION", "LD_PRELOAD",
        "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_THREADS",
        "CCC_OVERRIDE_OPTIONS", "CL", "_CL_", "LANGUAGE", "LC_CTYPE", "LC_MESSAGES",
    }
)  # fmt: skip
"""Variables that add options of gcc, ld or nvcc, or that change the language of their output."""

_SECONDS = 60.0
_SHORTAGES = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.ENOBUFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
)
"""What a machine is short of. Installing a compiler does not mend that."""
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""How a tool ends that another process ended: the kernel for memory, an administrator."""


class ProbeError(Exception):
    """A program could not be started, or failed; the text is the reason, without its name."""


def raise_shortage(error: ProbeError | OSError) -> None:
    """Raise what says something about the machine, and nothing about a tool."""
    if not isinstance(error, OSError):
        return
    # The last: what starts the tools, a Python, could not be started.
    if error.errno in _SHORTAGES or error.filename == sys.executable:
        raise error


def run_apart(runner: Runner, command: Command) -> CompletedCommand:
    """Run with a TMPDIR that is removed afterwards: compilers leave files there when they are
    killed, or cannot write. Raises `ProbeError`, and `OSError` where the machine is short of
    something."""
    with ExitStack() as held:
        with suppress(OSError):  # most tools that are asked write nothing
            made = held.enter_context(TemporaryDirectory("tool"))
            command = replace(command, env={**command.env, "TMPDIR": made.path})
        try:
            return runner.run(command)
        except OSError as error:
            raise_shortage(error)
            raise ProbeError(f"cannot be started: {error.strerror or error}") from error


class Probe(Struct, frozen=True):
    """Runs programs to ask them. `env` is the user's environment."""

    runner: Runner
    env: Mapping[str, str]
    memory: DigestMemory

    def ask(
        self,
        program: str,
        *arguments: str,
        remember: bool = True,
        rests_on: Callable[[str], str] | None = None,
    ) -> str:
        """Return what a program prints, stdout and stderr together. Raises `ProbeError`, and
        `OSError` where the machine is short of something.

        The answer is remembered by the program's content, its path and the arguments, unless it
        may depend on more (`remember=False`: a script). `rests_on` returns the present state of
        whatever else an answer depends on: when it has changed, the program is asked again.
        """
        try:
            identity = "\0".join((self.memory.digest(program), program, *arguments))
        except OSError as error:
            raise_shortage(error)
            raise ProbeError(error.strerror or str(error)) from error
        key = "answer " + sha256_text(identity)
        basis = f"{key} rests on"
        known = self.memory.recall(key) if remember else None
        if known is not None and rests_on is not None:
            known = known if self.memory.recall(basis) == rests_on(known) else None
        if known is None:
            known = self._run(program, *arguments)
            if remember:
                self.memory.record(key, known)
            if remember and rests_on is not None:
                self.memory.record(basis, rests_on(known))
        return known

    def which(self, *names: str) -> str | None:
        """Return the first executable of one of these names on PATH, in PATH's order."""
        return next(self.all_of(*names), None)

    def all_of(self, *names: str) -> Iterator[str]:
        """Yield every executable of one of these names on PATH."""
        for directory in self.env.get("PATH", "").split(os.pathsep):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
                    yield path

    def _run(self, program: str, *arguments: str) -> str:
        env = {name: value for name, value in self.env.items() if name not in SCRUBBED}
        env |= {"LANG": "C", "LC_ALL": "C"}
        finished = run_apart(self.runner, Command((program, *arguments), "/", env, _SECONDS))
        text = finished.output.decode("utf-8", "replace")
        if not finished.ok:
            if finished.status in _FROM_OUTSIDE:
                said = f"ended by {signal.Signals(-finished.status).name}, as when memory runs out"
                raise OSError(errno.ENOMEM, said, program)
            for number in _SHORTAGES:  # gcc's own processes could not be started
                if os.strerror(number) in text:
                    raise OSError(number, os.strerror(number), program)
            lines = text.strip().splitlines()
            how = "ran past a minute" if finished.timed_out else f"exit status {finished.status}"
            raise ProbeError(f"does not run ({how})" + (f": {lines[-1]}" if lines else ""))
        return text
