"""A runner that starts nothing: tests say what each program would answer, and read what was asked.

    runner = FakeRunner()
    runner.on("nvcc", finished("release 13.0, V13.0.88"))
    runner.on("ptxas", lambda command: finished(status=255, output=f"no {command.argv[-1]}"))

A program that no rule answers is not installed: `FileNotFoundError`, as from the real runner.
"""

import errno
import os
import threading
from collections.abc import Callable

from tilusbuild.process.base import CancelledError, Command, CompletedCommand

Answer = CompletedCommand | BaseException
Matcher = Callable[[Command], bool]


def finished(
    output: str | bytes = b"",
    *,
    status: int = 0,
    seconds: float = 0.01,
    peak_rss: int = 1 << 20,
    timed_out: bool = False,
) -> CompletedCommand:
    """A `CompletedCommand` of which a test names only what matters to it."""
    data = output.encode() if isinstance(output, str) else output
    return CompletedCommand(status, data, seconds, peak_rss, timed_out)


class FakeRunner:
    """A `Runner` with a journal. Rules are tried from the latest to the first."""

    def __init__(self) -> None:
        self.journal: list[Command] = []
        """Every command asked for, in order, answered or not."""
        self.cancels = 0
        self.closed = False
        self._rules: list[tuple[Matcher, Answer | Callable[[Command], Answer]]] = []
        self._lock = threading.Lock()

    def on(self, program: str | Matcher, answer: Answer | Callable[[Command], Answer]) -> None:
        """Answer a program, by its path, its base name, or a predicate.

        An answer that is an exception, given or returned, is raised. A callable answer may write
        the files that the program would have written.
        """
        matcher = program if callable(program) else _named(program)
        with self._lock:
            self._rules.insert(0, (matcher, answer))

    def run(self, command: Command) -> CompletedCommand:
        with self._lock:
            if self.closed:
                raise CancelledError
            self.journal.append(command)
            rules = list(self._rules)
        for matches, answer in rules:
            if matches(command):
                result = answer(command) if callable(answer) else answer
                if isinstance(result, BaseException):
                    raise result
                if command.on_output is not None and result.output:
                    command.on_output(result.output)
                return result
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command.argv[0])

    def cancel(self) -> None:
        self.cancels += 1

    def close(self) -> None:
        self.cancel()
        self.closed = True


def _named(program: str) -> Matcher:
    def matches(command: Command) -> bool:
        return program in (command.argv[0], os.path.basename(command.argv[0]))

    return matches
