"""Progress for programs: one JSON object a line on stdout, in the schema of `docs/output.md`.

The first key is "event". The first line is the start with the schema's number, the last one the
summary. Each line is flushed, so that a reader follows the build; one that goes away stops nothing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TextIO

from tilusbuild.engine.events import Event
from tilusbuild.report.text import Stream


class JsonReporter:
    """Writes to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._out = Stream(stream)

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it still, as far as the last line told."""
        return self._out.alive

    @property
    def lost(self) -> OSError | None:
        """Why lines were lost, when somebody would have read them."""
        return self._out.lost

    def emit(self, event: Event, /) -> None:
        self._out.write(json.dumps(as_json(event), separators=(", ", ": ")) + "\n")

    def tick(self) -> None: ...

    def close(self) -> None: ...


def as_json(event: Event) -> dict[str, Any]:
    """The event as the object that is written; seconds to the millisecond."""
    found: dict[str, Any] = {"event": event.event}
    for name, value in dataclasses.asdict(event).items():
        found[name] = round(value, 3) if isinstance(value, float) else value
    return found
