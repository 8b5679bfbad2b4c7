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

from tilusbuild import record
from tilusbuild.cli import unchanged

_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    started = time.time_ns()
    given = list(sys.argv[1:] if words is None else words)
    try:
        status = unchanged.answer(given)
        if status is not None and words is None:
            _leave(status)
        if status is None:
            status = _run(given, started)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        # Only what was printed has no file name to go with it.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _drop_output()
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        return 1


def _drop_output() -> None:
    """Its reader has gone, or its disk is full; a second failure at the interpreter's exit would
    print a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(status: int) -> NoReturn:
    """End at once. Nothing was begun that has to be ended, and taking the interpreter apart would
    be a tenth of the time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(words: Sequence[str], started: int) -> int:
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
        return status
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from tilusbuild.report.github import annotate

            annotate(error, sys.stderr, os.environ)
        return error.exit_status


def _enter(directory: str) -> None:
    from tilusbuild.errors import input_error

    try:
        os.chdir(directory)
    except OSError as error:
        raise input_error(f"-C {directory}: {error.strerror}") from None
