"""What becomes of an exception that no verb thought of: a few lines, never a traceback.

What the machine refuses (a file, memory, a full disk) is its answer and not a bug, nor is a damaged
cache: exit status 1.
Everything else is a bug of ours: exit status 70, as `EX_SOFTWARE`, with the traceback in a file for
the report. `TILUSBUILD_DEBUG=1` prints the traceback too. A build has closed what it held by then:
locks, stages and compilers end with the `with` blocks around them, and entries are whole or not
there.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator

from msgspec import Struct

from tilusbuild._version import __version__
from tilusbuild.errors import (
    PROCESSES,
    Diagnostic,
    InputError,
    Shortage,
    TilusbuildError,
    find_shortage,
)
from tilusbuild.report.jsonl import JsonLine, declare_line, format_json_line
from tilusbuild.rooms import find_missing_package
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.state.temporary import find_temporary_root

INTERNAL_ERROR = 70
ISSUES = "https://github.com/tilusbuild/tilusbuild/issues"

# The text of Python's `RuntimeError`; the system's error number is lost.
_NO_THREAD_MESSAGE = "can't start new thread"

# Errors of the machine for which there is not a `Shortage`.
_MACHINE_ERRORS = (errno.ENOMEM, errno.EIO, errno.EROFS)


class ErrorPart(Struct, frozen=True):
    """One mistake of an `error` line."""

    message: str
    path: str | None
    line: int | None
    column: int | None
    text: str | None
    """The line itself."""
    hint: str | None


ErrorLine = declare_line("error", message=str, problems=tuple[ErrorPart, ...], exit_status=int)
"""A command ended with an error: what stderr says, and its parts."""


def make_error_line(error: TilusbuildError) -> JsonLine:
    """Return the line of `--json` for an error."""
    diagnostics = error.diagnostics if isinstance(error, InputError) else ()
    problems = tuple(_make_error_part(diagnostic) for diagnostic in diagnostics)
    return ErrorLine(error.render(), problems, error.exit_status)


def _make_error_part(diagnostic: Diagnostic) -> ErrorPart:
    location = diagnostic.location
    return ErrorPart(
        message=diagnostic.message,
        path=location.path if location else None,
        line=location.line if location else None,
        column=location.column if location else None,
        text=location.text if location else None,
        hint=diagnostic.hint,
    )


InternalErrorLine = declare_line(
    "internal_error", message=str, version=str, report=str | None, exit_status=int
)
"""A bug of tilusbuild ended the command."""


def report_exception(error: Exception, argv: list[str]) -> int:
    """Print an exception to stderr. Return the exit status: 1 for an error of the machine or a
    damaged cache, 70 for a bug, whose traceback is written to a file."""
    if os.environ.get("TILUSBUILD_DEBUG") == "1":
        sys.stderr.write("".join(traceback.format_exception(error)))
    if isinstance(error, OSError) and error.errno is not None:
        return _report_machine_error(_format_os_error(error), find_shortage(error))
    # A library may have raised an error of its own because of one of the machine.
    for cause in _walk_causes(error):
        if isinstance(cause, MemoryError):
            return _report_machine_error("there is not enough memory for this")
        if isinstance(cause, OSError) and (find_shortage(cause) or cause.errno in _MACHINE_ERRORS):
            return _report_machine_error(_format_os_error(cause), find_shortage(cause))
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD_MESSAGE:
        return _report_machine_error("no further thread can be started", PROCESSES)
    top_module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if isinstance(error, ModuleNotFoundError) and top_module in sys.stdlib_module_names:
        # Without a free descriptor importlib takes a directory, which it cannot list, for empty.
        return _report_machine_error(f"{error}, which comes with Python: its files cannot be read")
    if isinstance(error, ModuleNotFoundError) and top_module != "tilusbuild":
        package, command = find_missing_package(error.name)
        return _report_machine_error(f"{package} is not installed, and this needs it", command)
    if isinstance(error, (CorruptFileError, LoadError)):
        return _report_machine_error(str(error))
    return _report_bug(error, argv)


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its causes."""
    # A chain may be a circle, if code raised an earlier exception again.
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        yield current
        seen.append(current)
        current = current.__cause__ or current.__context__


def _report_machine_error(message: str, hint: Shortage | str | None = None) -> int:
    """Print an error of the machine. Return exit status 1."""
    sys.stderr.write(f"error: {message}\n" + (f"  {hint}\n" if hint else ""))
    return 1


def _format_os_error(error: OSError) -> str:
    """Return an error as a sentence, with its file if it names one."""
    reason = error.strerror or os.strerror(error.errno or 0)
    if error.filename is None:
        return reason[0].lower() + reason[1:]
    # A rename or a link has two files, of which the second is the one that was written.
    name = error.filename2 or error.filename
    shown = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)
    return f"{shown}: {reason}"


def _report_bug(error: Exception, argv: list[str]) -> int:
    """Print a bug with its report's file, also as a line of `--json`. Return exit status 70."""
    summary = f"{type(error).__name__}: {error}".strip().rstrip(":")
    # Cut, as a message may quote much; the report has all of it.
    message = f"{summary:.500}"
    path = _write_bug_report(error, argv)
    # Not the parsed arguments: the error may be one of the parser.
    if "--json" in argv:
        sys.stdout.write(
            format_json_line(InternalErrorLine(message, __version__, path, INTERNAL_ERROR)) + "\n"
        )
    sys.stderr.write(
        f"internal error: {message}\n"
        f"  this is a bug of tilusbuild {__version__}; nothing that was built is lost\n"
        f"  please report it at {ISSUES}"
        + (f", with {path}\n" if path else "; TILUSBUILD_DEBUG=1 prints the traceback\n")
    )
    return INTERNAL_ERROR


def _write_bug_report(error: Exception, argv: list[str]) -> str | None:
    """Write the traceback to a temporary file. Return its path; None when that is impossible."""
    head = f"tilusbuild {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{head}\n{argv!r}\n\n" + "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(".txt", "tilusbuild-error-", find_temporary_root())
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return path
