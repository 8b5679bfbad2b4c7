"""The answer of a build with nothing to do, from the record of the last one.

Nothing but the record is imported on this way.
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
    """The exit status, when a record says that this build has nothing to do; then its summary is
    printed. None: it has to be looked at in full."""
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
    try:  # noqa: SIM105 - nothing is imported on this way that need not be
        sys.stderr.write(text.replace("(0.00 s)", f"({seconds:.2f} s)"))
    except OSError:
        pass  # it has no part in the exit status
    return int(status)
