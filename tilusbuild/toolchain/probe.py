"""Run tools to query their versions and paths, and find out whether they have changed.

The output of a query is stored by the tool's content and its real path. A tool runs with nothing of
the user's environment but PATH, as in a compile, so that an answer depends on the tool and not on
the shell. What a tool reads besides itself is traced once (`trace.py`).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from msgspec import Struct

from tilusbuild.errors import TilusbuildError
from tilusbuild.process.base import Command, CompletedCommand, Runner
from tilusbuild.state.digests import DigestMemory, DigestSource
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import Stamp, read_stamp
from tilusbuild.state.temporary import TemporaryDirectory, find_temporary_root
from tilusbuild.toolchain import trace

LIBRARY_PATH = "LD_LIBRARY_PATH"

_TRACER = (sys.executable, "-I", "-S", trace.__file__)
_TIMEOUT_SECONDS = 60.0
# errno values of a shortage of the machine, which installing a compiler does not end.
_SHORTAGES = (
    *(errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO),  # of the disk
)
# Signals that other processes send: the kernel when memory runs out, an administrator.
_SIGNALS_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)


class ProbeError(Exception):
    """A program could not be started, or failed with `status`. The text is the reason, without the
    program's name."""

    status: int | None = None


def reraise_shortage(error: ProbeError | OSError) -> None:
    """Raise the error again if it reports a shortage of the machine; return for any other."""
    # Tools may be started by this interpreter: if it is missing, nothing is wrong with the tool.
    if isinstance(error, OSError) and (
        error.errno in _SHORTAGES or error.filename == sys.executable
    ):
        raise error


def run_in_temporary_directory(runner: Runner, command: Command) -> CompletedCommand:
    """Run a command with its own TMPDIR, and remove that directory: killed compilers leave files
    there. Return the result. Raises `ProbeError`, and `OSError` for a shortage of the machine."""
    with ExitStack() as stack:
        # If the directory cannot be made, the command runs without it: most write nothing.
        with suppress(OSError):
            directory = stack.enter_context(TemporaryDirectory("tool"))
            command = replace(command, env={**command.env, "TMPDIR": directory.path})
        try:
            return runner.run(command)
        except OSError as error:
            reraise_shortage(error)
            raise ProbeError(f"cannot be started: {error.strerror or error}") from error


class ToolFiles(Struct, frozen=True):
    """The files that a tool and its children opened when it ran, by the names that they used, and
    those that they looked for and that are not there."""

    read: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class Probe(Struct, frozen=True):
    """Runs programs and returns what they print. `env` is the user's environment.

    `library_path` is the tools' LD_LIBRARY_PATH: "" unless they do not start without one.
    """

    runner: Runner
    env: Mapping[str, str]
    memory: DigestMemory
    library_path: str = ""

    def query_program(
        self,
        program: str,
        *arguments: str,
        remember: bool = True,
        rests_on: Callable[[str], str] | None = None,
    ) -> str:
        """Return what a program prints, stdout and stderr together. Raises `ProbeError`, and
        `OSError` for a shortage of the machine.

        The output is stored by the program's content, its path and the arguments, unless it may
        depend on more (`remember=False`, for scripts). `rests_on(output)` returns the state of
        other files; a stored answer is used only if that state is unchanged.
        """
        try:
            digest = self.memory.digest_file(program)
        except OSError as error:
            reraise_shortage(error)
            raise ProbeError(error.strerror or str(error)) from error
        # A driver looks for its parts beside its real path, and beside the path that was typed.
        identity = (digest, os.path.realpath(program), program, self.library_path, *arguments)
        ask = partial(self._run_program, program, *arguments)
        key = "answer " + sha256_text("\0".join(identity))
        return self._recall_or_ask(key, ask, rests_on) if remember else ask()

    def trace_program(self, program: str, *arguments: str) -> ToolFiles:
        """Return what a program reads when it runs in a directory of its own with these arguments.
        The result is empty where the system lets no process trace another one. Raises `ProbeError`
        when the program fails, and `OSError` as `query_program`.

        The stored list is used while the files have their content and the others are missing.
        """
        identity = (os.path.realpath(program), program, self.env.get("PATH", ""), self.library_path)
        key = "files " + sha256_text("\0".join((*identity, *arguments)))
        ask = partial(self._run_program, *_TRACER, program, *arguments)
        try:
            return _parse_trace(self._recall_or_ask(key, ask, self._describe_files))
        except ProbeError as error:
            if error.status == trace.REFUSED:
                return ToolFiles()
            raise

    def _recall_or_ask(
        self, key: str, ask: Callable[[], str], rests_on: Callable[[str], str] | None
    ) -> str:
        """Return the stored output of a key while the state that `rests_on(output)` returns is the
        same; else the output of `ask`, and store it. With the state "" nothing is stored: a file is
        gone already, and the next build asks again."""
        state_key = f"{key} rests on"
        output = self.memory.get_answer(key)
        if output is not None and (
            rests_on is None or self.memory.get_answer(state_key) == rests_on(output)
        ):
            return output
        output = ask()
        state = None if rests_on is None else rests_on(output)
        if state != "":
            self.memory.put_answer(key, output)
        if state:
            self.memory.put_answer(state_key, state)
        return output

    def _describe_files(self, text: str) -> str:
        """Return a digest that changes with the files in a tracer's output; "" if a file that the
        tool read no longer exists."""
        files = _parse_trace(text)
        try:
            lines = [
                f"{self.memory.digest_file(path)} {os.path.realpath(path)}" for path in files.read
            ]
        except OSError as error:
            reraise_shortage(error)
            return ""
        # Normally none: a file that the tool looked for in vain may exist by now.
        lines += [path for path in files.absent if self.memory.has_file(path)]
        return sha256_text("\n".join(["files", *lines]))

    def find_all_executables(self, name: str) -> Iterator[str]:
        """Yield the path of every executable of a name on PATH, in PATH's order."""
        for directory in self.env.get("PATH", "").split(os.pathsep):
            path = os.path.join(directory, name)
            if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
                yield path

    def _run_program(self, program: str, *arguments: str) -> str:
        """Return what a program prints. Raises `ProbeError`, and `OSError` for a shortage of the
        machine."""
        env = {"PATH": self.env.get("PATH", os.defpath), "LANG": "C", "LC_ALL": "C"}
        if self.library_path:
            env[LIBRARY_PATH] = self.library_path
        finished = run_in_temporary_directory(
            self.runner, Command((program, *arguments), cwd="/", env=env, timeout=_TIMEOUT_SECONDS)
        )
        text = finished.output.decode("utf-8", "replace")
        if finished.ok:
            return text
        # After a shortage the next build repeats the query. A `ProbeError` would say that the tool
        # is damaged, and must be installed again.
        if finished.status in _SIGNALS_FROM_OUTSIDE:
            name = signal.Signals(-finished.status).name
            raise OSError(errno.ENOMEM, f"ended by {name}, as when memory runs out", program)
        # A driver such as gcc reports so that it could not start its own processes.
        for number in _SHORTAGES:
            if os.strerror(number) in text:
                # The full disk is that of the program's temporary files.
                is_full = number in (errno.ENOSPC, errno.EDQUOT)
                name = find_temporary_root() if is_full else program
                raise OSError(number, os.strerror(number), name)
        end = "took over a minute" if finished.timed_out else f"exit status {finished.status}"
        reason = f"does not run ({end})"
        if lines := text.strip().splitlines():
            reason += f": {lines[-1]}"
        error = ProbeError(reason)
        error.status = finished.status
        raise error


def _parse_trace(text: str) -> ToolFiles:
    """Return the files in a tracer's output."""
    lines = [line.partition(" ") for line in text.splitlines()]
    return ToolFiles(
        tuple(path for word, _, path in lines if word == trace.READ),
        tuple(path for word, _, path in lines if word == trace.ABSENT),
    )


# The number of files up to which a tree is always checked in full.
_MAX_SMALL_TREE = 64


class ToolsChangedError(TilusbuildError):
    """A file of the toolchain has changed since the plan. No further program can be compiled."""


class ToolDigests:
    """The digests of one toolchain's files, with the stamps of these files, by which
    `find_changed_path` compares the tools with those of the plan. Safe for threads once all digests
    are taken.

    A comparison takes less than a millisecond and follows every compile, so that no output of a
    compile during which a tool was replaced is published. An overwritten header in a large
    directory is noticed only by a exhaustive comparison, which takes some milliseconds.
    Installers create new files, which show in the directories' stamps.
    """

    def __init__(self, memory: DigestMemory) -> None:
        self._memory = memory
        self._sources: dict[str, DigestSource] = {}
        self._directories: dict[str, Stamp] = {}

    def digest_file(self, path: str) -> str:
        """Return `DigestMemory.digest_file` of a file, and watch the file for changes."""
        digest, source = self._memory.digest_with_source(path)
        self._sources[source.key] = source
        return digest

    def digest_tree(self, root: str, label: str, select: Callable[[str], bool]) -> str:
        """Return `DigestMemory.digest_tree` of a directory, and watch the directory for changes."""
        digest, source = self._memory.digest_tree_with_source(root, label, select)
        self._sources[source.key] = source
        self._directories.update(source.directories)
        return digest

    def record_tool(self, path: str, digest: str) -> None:
        """Watch the tool at `path`. Raises `ToolsChangedError` if `digest` is no longer its
        digest."""
        if self.digest_file(os.path.realpath(path)) != digest:
            raise ToolsChangedError(f"{path} changed while tilusbuild read it; build again")
        self._directories[path] = read_stamp(path)

    def find_changed_path(self, *, is_exhaustive: bool) -> str | None:
        """Return the path of a file that has changed since its digest was taken; None if none has.
        Without `is_exhaustive`, overwritten files of large directories are not noticed, only added,
        removed and replaced ones. If no file has changed, the present stamps of directories are
        kept for the next comparison."""
        stamps = {path: read_stamp(path) for path in self._directories}
        changed_paths = [path for path in stamps if stamps[path] != self._directories[path]]
        for path in changed_paths:
            if not os.path.isdir(path):
                return path
        # If a directory changed, all files are compared: the change may be of files that no
        # fingerprint covers.
        compares_all = is_exhaustive or bool(changed_paths)
        for source in self._sources.values():
            is_compared = compares_all or len(source) <= _MAX_SMALL_TREE
            if is_compared and not source.is_unchanged():
                return source.path
        self._directories.update(stamps)
        return None
