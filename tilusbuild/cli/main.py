"""The command line: from its words to an exit status.

Only this package prints. Results go to stdout, progress and messages to stderr. Exit status: 0
done, 1 something did not build or verify, 2 the command line or the manifest is wrong, 70 a bug of
ours (`boundary.py`), 128 + n ended by signal n (130: Ctrl-C). A build whose no-op record is still
valid is answered before anything else is imported.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from tilusbuild import noop

_WRITE_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import TextIO

    from tilusbuild.cli.parser import ParsedCommand
    from tilusbuild.errors import TilusbuildError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status. Never raises an `Exception`: each is printed.

    A build of the process's own command line exits the process instead of returning.
    """
    started = time.monotonic_ns()
    # Python has None for a stream that was closed: `print` says nothing then, and `write` fails.
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        verb, status = "build", noop.answer_build(arguments)
        if status is None:
            verb, status = _run_verb(arguments, started)
        # Flushed here, so that a full disk is an error: at exit Python only prints it.
        if sys.stdout is not None:
            sys.stdout.flush()
        _write_stderr("")  # flushes, and drops a stream without a reader
        if verb == "build" and argv is None:
            # Skip the teardown of the interpreter, a tenth of the time of a small build: a build
            # has closed what it opened, and runs no code of others that could rely on atexit.
            os._exit(status)
        return status
    except KeyboardInterrupt as interrupt:
        _write_stderr("interrupted\n")
        # The number of SIGTERM or SIGHUP, as `raise_on_signals` makes it; Python's own has none.
        return 128 + getattr(interrupt, "number", 2)
    except BrokenPipeError:
        # The reader ended, as `head` does: a message would reach no one.
        _silence_stream(sys.stdout)
        return 1
    except Exception as error:
        # An error without a file name is one of writing to stdout.
        if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS:
            _silence_stream(sys.stdout)
            _write_stderr(f"error: the output cannot be written: {error.strerror}\n")
            return 1
        return _report_unforeseen(error, arguments)


def _open_streams() -> None:
    """Replace each standard stream that is None: closed ones (`>&-`) get the null device.

    Otherwise the next file that is opened would get its descriptor, and the command's output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            if not _is_open(number):
                # It gets `number`, the lowest free descriptor: those below it are open by now.
                os.open(os.devnull, os.O_RDWR)
            stream = open(number, "w" if number else "r", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _is_open(number: int) -> bool:
    """Return whether a descriptor is open."""
    # Python's stream may be None although the descriptor is open: it could not be used.
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _report_unforeseen(error: Exception, argv: list[str]) -> int:
    """Report an exception that no verb handled. Return the exit status."""
    try:
        from tilusbuild.cli import boundary
        from tilusbuild.report.terminal import use_terminal_streams

        with use_terminal_streams(os.environ):
            return boundary.report_exception(error, argv)
    except ModuleNotFoundError as missing:
        # The report itself needs msgspec, which `pip install --no-deps` leaves out.
        from tilusbuild.rooms import find_missing_package

        package, command = find_missing_package(missing.name)
        _write_stderr(f"error: {package} is not installed, and this needs it\n  {command}\n")
        return 1
    except (OSError, ImportError, MemoryError) as reporting_error:
        # The cause of the first error, such as a full disk, may prevent a good report.
        _write_stderr(f"error: {str(error)!a}; then {type(reporting_error).__name__}\n")
        return 1


def _write_stderr(text: str) -> None:
    """Write to stderr and flush it. Never raises, as that would change the exit status."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _silence_stream(sys.stderr)


def _silence_stream(stream: TextIO) -> None:
    """Send later output of a stream to the null device."""
    from tilusbuild.report.text import silence_stream

    silence_stream(stream)


def _run_verb(argv: Sequence[str], started: int) -> tuple[str, int]:
    """Run the command. Return its verb ("" if it cannot be parsed) and its exit status.

    Print a `TilusbuildError`, and on GitHub annotate it. The working directory becomes that of -C.
    """
    # Imports are in the functions for start-up time: a build with nothing to do, and `--help`, do
    # not wait for modules that they do not need.
    import gc

    # Modules and plans live until the end, so collections find nothing to free. A small build makes
    # fewer objects than this threshold.
    gc.set_threshold(100_000, 20, 20)

    from tilusbuild.cli.parser import parse_command
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.process.stopping import raise_on_signals
    from tilusbuild.report.terminal import use_terminal_streams

    with raise_on_signals(), use_terminal_streams(os.environ):
        # For the error of a command line that cannot be parsed, which may have --json all the same.
        verb, json, color = "", "--json" in argv, "auto"
        try:
            # The key of a no-op record is made before -C changes the working directory, which it
            # covers. It covers the unknown variables, too: a no-op build would not warn of them.
            unknown = _find_unknown_variables()
            key = noop.make_key([*argv, *unknown], os.environ)
            command = parse_command(argv, record=key, started=started)
            verb, json, color = command.verb, command.arguments.json, command.arguments.color
            _enter_directory(command.arguments.directory)
            if unknown:
                _print_warnings(unknown, command)
            with _show_progress_notice(command, started):
                return verb, command.run()
        except TilusbuildError as error:
            _print_error(error, json, color)
            if os.environ.get("GITHUB_ACTIONS") == "true":
                from tilusbuild.report.ci import annotate_error

                annotate_error(error, sys.stderr, os.environ)
            return verb, error.exit_status


def _find_unknown_variables() -> list[str]:
    """Return a warning for each `TILUSBUILD_` variable that nothing reads."""
    # Before the import: a build with nothing to do does not wait for it.
    if not any(name.startswith("TILUSBUILD_") for name in os.environ):
        return []
    from tilusbuild.runtime.option import find_unknown_variables

    return list(find_unknown_variables(os.environ))


def _print_warnings(messages: Sequence[str], command: ParsedCommand) -> None:
    # `doctor` has them in its report.
    if command.verb != "doctor" and not command.arguments.quiet:
        for message in messages:
            _write_stderr(f"warning: {message}\n")


def _show_progress_notice(command: ParsedCommand, started: int) -> AbstractContextManager[None]:
    """Return a context that prints `working …` on a terminal after a while without output. Not on
    a terminal, and with options such as --quiet, the context does nothing."""
    # On a terminal only, so that the text of a log does not depend on time.
    from contextlib import nullcontext

    from tilusbuild.report.terminal import PATIENCE, can_redraw, show_working

    arguments = command.arguments
    is_quiet = arguments.quiet or arguments.json or arguments.progress != "auto"
    if is_quiet or not can_redraw(sys.stderr, os.environ):
        return nullcontext()
    elapsed = (time.monotonic_ns() - started) / 1e9
    return show_working(f"tilusbuild {command.verb}: working …", PATIENCE - elapsed)


def _print_error(error: TilusbuildError, json: bool, color: str) -> None:
    """Print an error to stderr, in colour if `color` and the terminal want it. With `json`, first
    print its line to stdout."""
    from tilusbuild.cli.boundary import make_error_line
    from tilusbuild.cli.options import emit_line
    from tilusbuild.report import terminal
    from tilusbuild.report.text import spell_out_controls

    if json:
        emit_line(make_error_line(error), flush=True)
    if not terminal.wants_colour(sys.stderr, os.environ, color):
        _write_stderr(error.render() + "\n")
        return
    text = terminal.colour_marks(spell_out_controls(error.render())) + "\n"
    # `use_terminal_streams` may have replaced stderr by a stream that escapes control characters.
    getattr(sys.stderr, "write_styled", sys.stderr.write)(text)
    _write_stderr("")  # flushes


def _enter_directory(directory: str | None) -> None:
    """Change to the directory of -C, or check the working directory. Raises `InputError`."""
    from tilusbuild.errors import input_error

    if directory is None:
        # Asked once, with a good message: every later use would fail in its own words.
        try:
            os.getcwd()
        except OSError as error:
            raise input_error(
                f"the working directory cannot be used: {error.strerror}",
                hint="it was deleted, or may not be searched: `cd` elsewhere, or use -C",
            ) from None
        return
    try:
        os.chdir(directory)
    except (OSError, ValueError) as error:
        raise input_error(f"-C {directory}: {getattr(error, 'strerror', error)}") from None
