"""The command line: from words to an exit status.

Only this package prints. Results go to stdout, progress and messages to stderr. Exit status: 0
done, 1 something did not build or verify, 2 the command line or the manifest is wrong, 130
interrupted. A build whose no-op record is still valid is answered before anything else is imported.
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
    """Run one command; return the exit status."""
    started = time.time_ns()
    given = list(sys.argv[1:] if words is None else words)
    try:
        verb, status = "build", noop.answer(given)
        if status is None:
            verb, status = _run(given, started)
        sys.stdout.flush()
        _say("")
        if verb == "build" and words is None:
            # Skip the teardown of the interpreter, a tenth of the time of a small build: a build
            # has closed what it opened, and runs no code of others that could rely on atexit.
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
    """Write to stderr and flush it. Never raises, as that would change the exit status."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    from tilusbuild.report.text import silence

    silence(stream)


def _run(words: Sequence[str], started: int) -> tuple[str, int]:
    """Run the verb; return its name and its exit status.

    The imports in this and other functions of the command line are there for start-up time: a
    build with nothing to do, and `--help`, must not wait for what they do not need.
    """
    import gc

    # Modules and plans live until the end: a collector that traverses them again and again finds
    # nothing to free.
    gc.set_threshold(20_000, 20, 20)

    from tilusbuild.cli.parser import parse
    from tilusbuild.errors import TilusbuildError

    # The key of a no-op record covers the directory that the command was started in, not -C's.
    command = parse(words, record=record.key(words, os.environ), started=started)
    try:
        if command.arguments.directory is not None:
            _enter(command.arguments.directory)
        return command.verb, command.run()
    except TilusbuildError as error:
        _say(error.render() + "\n")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from tilusbuild.report.ci import annotate

            annotate(error, sys.stderr, os.environ)
        return command.verb, error.exit_status


def _enter(directory: str) -> None:
    from tilusbuild.errors import input_error

    try:
        os.chdir(directory)
    except OSError as error:
        raise input_error(f"-C {directory}: {error.strerror}") from None
