"""Lines of JSON: an event, which is a frozen value, as one object on one line.

The first key is "event", the others are the fields in their order. Everything beyond ASCII is
escaped, so a line is the same bytes in every locale and a name that is not UTF-8 passes through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, TypeAlias, cast

from msgspec import Struct, defstruct
from msgspec.structs import asdict

from tilusbuild.report.text import OutputStream

if TYPE_CHECKING:
    from tilusbuild.engine.events import Event

Scalar: TypeAlias = bool | int | float | str
"""The value of a constant, a parameter or a size."""


class JsonLine(Struct, frozen=True):
    """A line of `--json` that is not an event of a build.

    The names and the order of the fields are those of the keys, and part of the interface:
    `docs/events.schema.json` is made from them.
    """

    event: ClassVar[str]
    inlined: ClassVar[str | None] = None
    """The field, a mapping or a value, whose keys are written in its place."""


def declare_line(
    event: str, /, *, inlined: str | None = None, **keys: Any
) -> Callable[..., JsonLine]:
    """Return a new class of lines. Each of `keys` is a field's name with its type, in their order;
    `inlined` is as in `JsonLine`.

    For a line that its verb only prints: a value that more code reads is a class of its own.
    """
    namespace = {"event": event, "inlined": inlined}
    kind = defstruct(event, keys.items(), bases=(JsonLine,), namespace=namespace, frozen=True)
    return cast(type[JsonLine], kind)


class ProblemLine(JsonLine, frozen=True):
    """Something that is wrong. `of` is what it is about, an entry, a file, an instance or a device,
    "" for all; `kind` the name of an error, "" where the verb has one kind only."""

    event: ClassVar[str] = "problem"
    what: str
    of: str = ""
    kind: str = ""
    advice: str = ""


class GarbageLine(JsonLine, frozen=True):
    """Something in a cache that no build needs. `fate` is "removed", "in use" and therefore kept,
    "left" because tilusbuild did not write it, or "litter" that a system left behind."""

    event: ClassVar[str] = "garbage"
    name: str
    fate: str
    size: int = 0
    age: float | None = None
    """Seconds; null where it does not count."""
    why: str = ""


class JsonReporter:
    """Writes the events of a build to `stream`: first the start with the schema's number, last the
    summary. Every line is flushed, so that a reader can follow; one that goes away stops nothing.
    """

    def __init__(self, stream: TextIO) -> None:
        self._out = OutputStream(stream)

    @property
    def is_read(self) -> bool:
        """Whether there is still a reader, as far as the last line showed."""
        return self._out.alive

    @property
    def lost(self) -> OSError | None:
        """Why lines were lost that had a reader."""
        return self._out.lost

    def emit(self, event: Event, /) -> None:
        self._out.write(dump_json(event_to_json(event)) + "\n")

    def tick(self) -> None: ...

    def close(self) -> None: ...


def dump_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON in ASCII without a control character: it passes a `TerminalStream` as it is."""
    # DEL is the one control character of ASCII that json does not escape.
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def format_json_line(line: JsonLine) -> str:
    """Return an event as one line, without its newline."""
    keys: dict[str, Any] = {"event": line.event}
    for name, value in _list_fields(line).items():
        if name == line.inlined:
            keys |= value
        else:
            keys[name] = value
    return dump_json(keys)


def event_to_json(event: Event) -> dict[str, Any]:
    """Return the object that is written for an event: seconds are rounded to milliseconds."""
    keys: dict[str, Any] = {"event": event.event}
    for name, value in _list_fields(event).items():
        keys[name] = round(value, 3) if isinstance(value, float) else value
    return keys


def _list_fields(value: Any) -> dict[str, Any]:
    return {name: _to_plain(field) for name, field in asdict(value).items()}


def _to_plain(value: Any) -> Any:
    """Return a value as the types that JSON has: structs become dicts, tuples lists, and infinite
    numbers and NaN None."""
    # Python's json would write Infinity and NaN, which other readers of JSON refuse.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Struct):
        return _list_fields(value)
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return value
