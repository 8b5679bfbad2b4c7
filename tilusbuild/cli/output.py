"""What the verbs print besides their texts: the lines of `--json`, in one way."""

from __future__ import annotations

from tilusbuild.report.jsonl import Line, json_line


def emit(line: Line, *, flush: bool = False) -> None:
    """Print one line of `--json` on stdout."""
    print(json_line(line), flush=flush)
