"""The answer of a build with nothing to do, from the no-op record of the last one.

On this path nothing is imported but `tilusbuild.noop.record`, and nothing of Python's that is not
loaded at its start: `tests/noop` holds the list. The time of such a build is mostly the
interpreter's, so an import more is a cost that everybody pays at every build.
"""

from __future__ import annotations

import os
import sys
import time

from tilusbuild.noop import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_VERBOSE = ("-v", "--verbose")


def answer(words: Sequence[str]) -> int | None:
    """Print the summary and return the exit status, when a record says that this build has nothing
    to do. Return None when the build has to run in full."""
    if "build" not in words or not set(words).isdisjoint(_VERBOSE):
        return None
    if any(word.startswith("--junit") for word in words) or "GITHUB_ACTIONS" in os.environ:
        return None  # there is more to be written than is remembered
    started = time.perf_counter()
    found = record.read(record.key(words, os.environ), os.environ)
    if found is None:
        return None
    status, text, quiet, lines = found.decode("utf-8", "surrogateescape").split("\0")
    seconds = time.perf_counter() - started
    if "--json" in words:
        sys.stdout.write(lines.replace('"seconds": 0.0,', f'"seconds": {seconds:.3f},', 1))
        text = quiet
    elif "-q" in words or "--quiet" in words:
        text = quiet
    try:  # noqa: SIM105 - nothing is imported here that need not be
        sys.stderr.write(text.replace("(0.00 s)", f"({seconds:.2f} s)"))
    except OSError:
        pass  # it has no part in the exit status
    return int(status)
