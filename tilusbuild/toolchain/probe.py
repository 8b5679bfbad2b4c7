"""Tools are run to ask about their versions and paths, and watched for changes.

Answers are remembered by the tool's content.

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

from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.state.digests import DigestMemory, DigestSource
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import Stamp, read_stamp
from tilusbuild.state.temporary import TemporaryDirectory

SCRUBBED = frozenset(
    {
        "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH",
        "COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT",
        "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH", "LD_RUN_PATH", "LDEMULATION", "LD_PRELOAD",
        "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "NVCC_THREADS",
        "INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "CUDAFE_FLAGS", "PTXAS_FLAGS",
        "CCC_OVERRIDE_OPTIONS", "CL", "_CL_", "LANGUAGE", "LC_CTYPE", "LC_MESSAGES",
    }
)  # fmt: skip
"""Variables that add options of gcc, ld or nvcc, or that change the language of their output.
nvcc.profile appends to those from INCLUDES to PTXAS_FLAGS."""

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
            identity = "\0".join((self.memory.digest_file(program), program, *arguments))
        except OSError as error:
            raise_shortage(error)
            raise ProbeError(error.strerror or str(error)) from error
        key = "answer " + sha256_text(identity)
        basis = f"{key} rests on"
        known = self.memory.get_answer(key) if remember else None
        if known is not None and rests_on is not None:
            known = known if self.memory.get_answer(basis) == rests_on(known) else None
        if known is None:
            known = self._run(program, *arguments)
            if remember:
                self.memory.put_answer(key, known)
            if remember and rests_on is not None:
                self.memory.put_answer(basis, rests_on(known))
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
            how = "took over a minute" if finished.timed_out else f"exit status {finished.status}"
            raise ProbeError(f"does not run ({how})" + (f": {lines[-1]}" if lines else ""))
        return text


_SMALL = 64
"""Files of a tree that is always looked at as a whole."""


class ToolsChangedError(TilusbuildError):
    """A part of the toolchain is not what the plan saw. No program is to blame, and none can be
    compiled any more."""


class Evidence:
    """Digests of one toolchain, from a memory, and stamps of what they were taken of: whether the
    tools are still those that the plan saw. Safe for threads once all are taken.

    Looking again takes well under a millisecond, so it is done after every compile: nothing is
    published that was compiled while a tool was replaced. An overwritten header of a large
    directory shows only in a look at the whole, which takes some milliseconds; installers make new
    files, and those show in the directories.
    """

    def __init__(self, memory: DigestMemory) -> None:
        self._memory = memory
        self._sights: dict[str, DigestSource] = {}
        self._directories: dict[str, Stamp] = {}

    def digest_file(self, path: str) -> str:
        """As `DigestMemory.digest`."""
        digest, sight = self._memory.digest_with_source(path)
        self._sights[sight.key] = sight
        return digest

    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """As `DigestMemory.tree`."""
        digest, sight = self._memory.digest_tree_with_source(root, label, select)
        self._sights[sight.key] = sight
        self._directories.update(sight.directories)
        return digest

    def names(self, path: str, digest: str) -> None:
        """Take note of the digest of the tool at `path`. Raises `ToolsChangedError` for another."""
        if self.digest_file(os.path.realpath(path)) != digest:
            raise ToolsChangedError(f"{path} changed while tilusbuild read it; build again")
        self._directories[path] = read_stamp(path)

    def changed(self, *, whole: bool) -> str | None:
        """Return the path of something that is not what it was, or None. Not `whole`: of large
        directories only what was added, removed or replaced shows."""
        now = {path: read_stamp(path) for path in self._directories}
        moved = [path for path in now if now[path] != self._directories[path]]
        for path in moved:
            if not os.path.isdir(path):
                return path
        # Something that no fingerprint covers may have come or gone beside what one does.
        whole = whole or bool(moved)
        for sight in self._sights.values():
            if (whole or len(sight) <= _SMALL) and not sight.is_unchanged():
                return sight.path
        self._directories.update(now)
        return None
