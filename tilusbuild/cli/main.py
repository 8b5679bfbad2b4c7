"""The command line: from words to an exit status.

Only this package prints. Results go to stdout, progress and messages to stderr. Exit status: 0
done, 1 something did not build or verify, 2 the command line or the manifest is wrong, 130
interrupted. A build whose record still holds is answered before anything else is imported.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from tilusbuild import noop
from tilusbuild.noop import record

_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    started = time.time_ns()
    given = list(sys.argv[1:] if words is None else words)
    try:
        verb, status = "build", noop.answer(given)
        if status is None:
            verb, status = _run(given, started)
        sys.stdout.flush()
        _say("")
        if verb == "build" and words is None:
            # A build has ended what it began and runs nobody else's code, and taking the
            # interpreter apart would be a tenth of the time.
            os._exit(status)
        return status
    except KeyboardInterrupt:
        _say("interrupted\n")
        return 130
    except BrokenPipeError:
        _drop(sys.stdout)
        return 1
    except OSError as error:
        # Only what was printed has no file name to go with it.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _drop(sys.stdout)
        _say(f"error: the output cannot be written: {error.strerror}\n")
        return 1


def _say(text: str) -> None:
    """Write to the messages, and what they still hold; what cannot be said has no part in the exit
    status."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    from tilusbuild.report.text import silence

    silence(stream)


def _run(words: Sequence[str], started: int) -> tuple[str, int]:
    """The verb that was asked for, and its exit status."""
    import gc
    import importlib

    # What is imported and planned lives to the end: looking through it for garbage finds none.
    gc.set_threshold(20_000, 20, 20)

    from tilusbuild.cli.parser import parse
    from tilusbuild.errors import TilusbuildError

    arguments = parse(words)
    arguments.record, arguments.started = record.key(words, os.environ), started
    try:
        if arguments.directory is not None:
            _enter(arguments.directory)
        status: int = importlib.import_module(f"tilusbuild.cli.{arguments.verb}").run(arguments)
        return arguments.verb, status
    except TilusbuildError as error:
        _say(error.render() + "\n")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from tilusbuild.report.github import annotate

            annotate(error, sys.stderr, os.environ)
        return arguments.verb, error.exit_status


def _enter(directory: str) -> None:
    from tilusbuild.errors import input_error

    try:
        os.chdir(directory)
    except OSError as error:
        raise input_error(f"-C {directory}: {error.strerror}") from None
