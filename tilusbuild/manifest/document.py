"""Read a TOML file: its values, and the position of each key and value.

A mistake of the file itself (missing, not UTF-8, not TOML) is a single error: such a file cannot be
checked further. A byte-order mark and `\\r\\n` line ends are accepted.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any

from tilusbuild.errors import Diagnostic, InputError, Location, input_error
from tilusbuild.manifest.scanner import (
    MAX_PARTS,
    Locations,
    Path,
    TextSpan,
    import_toml,
    locate_keys,
)
from tilusbuild.runtime.regular import NotAFileError, open_file
from tilusbuild.runtime.where import MAX_MANIFEST

SHORTHANDS = frozenset({"edges", "kind", "path", "type", "values"})
"""Keys that a shorter spelling omits: `k = [1, 2]` means `k = { values = [1, 2] }`."""
# Replacements of control characters, which must not reach a terminal in a message.
_INVISIBLE = dict.fromkeys((*range(9), *range(11, 32), 127), "�")
# As at the end of "Expected '=' after a key in a key/value pair (at line 3, column 7)".
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


class Document:
    """The values of a TOML file with their positions. `shown` is its path in messages."""

    def __init__(self, path: str, text: str) -> None:
        self.path = os.path.abspath(path)
        self.shown = shorten_path(path)
        self.text = text
        self.other_keys: dict[Path, Path] = {}
        """Keys that are written under another name, by the path that they are read at."""

    # Each property is computed at its first use: a manifest without mistakes needs few positions,
    # and a remembered manifest needs no values.

    @cached_property
    def data(self) -> dict[str, Any]:
        """The values. Raises `ValueError` if the text is not TOML."""
        values: dict[str, Any] = import_toml().loads(self.text)
        return values

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without control characters."""
        return self.text.translate(_INVISIBLE).split("\n")

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self.text.split("\n"))]

    @cached_property
    def locations(self) -> Locations:
        """The positions of all keys and values.

        A script `NAME.KERNEL` is written in the kernel's table, or else in the script's.
        """
        locations = locate_keys(self.text)
        for spans in (locations.keys, locations.values):
            _add_kernels(spans, find_kernel_tables(locations.keys))
            spans.update((key, spans[w]) for key, w in self.other_keys.items() if w in spans)
        return locations

    @cached_property
    def kernels(self) -> dict[str, tuple[str, str]]:
        """The scripts made of a kernel's table: (name of its script, name of the kernel)."""
        return find_kernel_tables(self.locations.keys)

    def locate_key(self, *path: str | int) -> Location:
        """Return the place of a key or an array's item. If it is absent, of the nearest table."""
        return self._locate_path(self.locations.keys, path)

    def locate_value(self, *path: str | int) -> Location:
        """Return the place of a value. If it is absent, of the nearest table."""
        return self._locate_path(self.locations.values, path)

    def locate_inside(
        self, path: Path, column: int | None, width: int = 1, full_text: str | None = None
    ) -> Location:
        """Return the place of `width` characters inside of a string value.

        `column` counts the characters of the value from 1. With `full_text`, a longer text that
        ends in the value, it counts those: column 5 of `f32*[n]` is column 1 of `[n]`.
        """
        span = self.locations.values.get(self.find_longest_path(path))
        # A number or an array may stand in place of the string.
        if column is None or span is None or self.text[span[0]] not in "\"'":
            return self.locate_value(*path)
        value_start, value_end = span
        raw = self.text[value_start:value_end]
        # With escapes the columns of the value are not those of the file.
        if raw[0] == '"' and "\\" in raw:
            return self.locate_value(*path)
        quotes = 3 if raw[:3] in ('"""', "'''") and len(raw) >= 6 else 1
        # A line end right behind three quotes does not belong to the value.
        has_line_end = quotes == 3 and raw[3] == "\n"
        content_start = quotes + 1 if has_line_end else quotes
        content = raw[content_start:-quotes]
        # The characters of the longer text that stand before the value.
        prefix_length = 0 if full_text is None else len(full_text) - len(content)
        index = min(max(0, column - 1 - prefix_length), len(content))
        offset = value_start + content_start + index
        marked_length = max(1, min(width, len(content) - index))
        return self.locate_span((offset, offset + marked_length))

    def locate_span(self, span: TextSpan) -> Location:
        """Return the place of a span. Of a span of several lines only the first one is marked."""
        line, column, text = self.find_line(span[0])
        width = min(span[1] - span[0], len(text) - column + 1)
        return Location(self.shown, line, column, text, max(1, width))

    def find_line(self, offset: int) -> tuple[int, int, str]:
        """Return the line and the column of an offset, both from 1, and the text of the line."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1, self.lines[line - 1]

    def _locate_path(self, spans: dict[Path, TextSpan], path: Path) -> Location:
        span = spans.get(self.find_longest_path(path))
        return self.locate_span(span) if span else Location(self.shown)

    def find_longest_path(self, path: Path) -> Path:
        """Return the longest prefix of `path` that is in the text, without omitted keys."""
        keys = self.locations.keys
        written: Path = ()
        for name in path:
            if (*written, name) in keys:
                written = (*written, name)
            # A key that a shorthand omits is passed over: the path goes on with its items.
            elif name not in SHORTHANDS:
                break
        return written

    def find_written_path(self, path: Path) -> Path:
        """Return the path that a key of a script `NAME.KERNEL` has in the text: in the kernel's
        table if that sets it, else in the script's. Return any other path unchanged."""
        owner = self.kernels.get(str(path[1])) if path[:1] == ("script",) and path[1:] else None
        if owner is None:
            return path
        name, kernel = owner
        kernel_path: Path = ("script", name, "kernels", kernel, *path[2:])
        is_own = kernel_path[:5] in self.locations.keys
        return kernel_path if is_own else ("script", name, *path[2:])


def find_kernel_tables(keys: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return (script, kernel) of each kernel's table, by the name of the script made of it."""
    # ("script", NAME, "kernels", KERNEL, …)
    paths = (path for path in keys if path[:1] == ("script",) and path[2:3] == ("kernels",))
    return {f"{path[1]}.{path[3]}": (str(path[1]), str(path[3])) for path in paths if len(path) > 3}


def _add_kernels(spans: dict[Path, TextSpan], kernels: Mapping[str, tuple[str, str]]) -> None:
    """Add the spans of the scripts `NAME.KERNEL`, which are written in tables of kernels."""
    if not kernels:
        return
    for path, span in list(spans.items()):
        for full_name, (name, kernel) in kernels.items():
            if path[:2] != ("script", name):
                continue
            # A key in the kernel's table replaces the key that the kernel takes from the script.
            if path[2:4] == ("kernels", kernel):
                spans[("script", full_name, *path[4:])] = span
            elif path[2:3] != ("kernels",):
                spans.setdefault(("script", full_name, *path[2:]), span)


def shorten_path(path: str) -> str:
    """Return a path for messages: relative if it is below the working directory."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone; a NUL in the path
        return path
    return path if relative.startswith(os.pardir) else relative


def read_document(path: str) -> Document:
    """Read a TOML file. Raises `InputError` with one diagnostic."""
    text = read_manifest_text(path)
    if not text.strip():
        raise input_error(
            "the manifest is empty",
            location=Location(shorten_path(path)),
            hint="the least is: edition = 1, and a [script.NAME] with its template and launch; "
            "`tilusbuild init` makes a project to start from",
        )
    document = Document(path, text)
    # Before the parser sees the key. Few texts have such a line, and need their positions for it.
    may_be_long = any(line.count(".") >= MAX_PARTS for line in text.split("\n"))
    if may_be_long and (span := document.locations.too_long) is not None:
        message = f"a key has more than {MAX_PARTS} names with dots between"
        raise input_error(message, location=document.locate_span(span))
    try:
        document.data  # noqa: B018 - parses the text, and raises its errors
        return document
    except import_toml().TOMLDecodeError as error:
        raise InputError(_explain_syntax_error(document, str(error))) from None
    except ValueError:
        # Python refuses to convert such long integers, and `tomllib` does not catch its error.
        raise input_error(
            "an integer has thousands of digits", location=Location(shorten_path(path))
        ) from None


def read_manifest_text(path: str) -> str:
    """Return the text of a TOML file with line ends `\\n`. Raises `InputError`."""
    return _decode_text(path, _read_bytes(path)).replace("\r\n", "\n")


def _read_bytes(path: str) -> bytes:
    """Return the bytes of a manifest. Raises `InputError` if it cannot be read, or is too large."""
    location = Location(shorten_path(path))
    try:
        if os.path.isdir(path):
            raise input_error("is a directory, not a manifest", location=location)
        with open_file(path) as file:
            # One byte more says that the file is too large, however it grows meanwhile.
            data = file.read(MAX_MANIFEST + 1)
    except FileNotFoundError:
        raise input_error(
            "there is no such manifest",
            location=location,
            hint="`tilusbuild init` makes a project to start from",
        ) from None
    except NotAFileError as error:
        raise input_error(f"is {error.kind}, not a manifest", location=location) from None
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror}", location=location) from None
    if len(data) > MAX_MANIFEST:
        most = f"{MAX_MANIFEST >> 20} MiB"
        raise input_error(f"is larger than {most}: this is not a manifest", location=location)
    return data


def _decode_text(path: str, data: bytes) -> str:
    """Return UTF-8 as text, without a byte-order mark. Raises `InputError` at the wrong byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        line_text = data[line_start:].split(b"\n", 1)[0].rstrip(b"\r").decode("utf-8", "replace")
        before = data[line_start : error.start].decode("utf-8", "replace")
        raise input_error(
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            location=Location(shorten_path(path), line, len(before) + 1, line_text),
            hint="save it as UTF-8",
        ) from None


def _explain_syntax_error(document: Document, message: str) -> Diagnostic:
    """Return the diagnostic of the parser's message, which names a line and a column."""
    locations = document.locations
    if locations.repeated and re.search("overwrite|twice|immutable|uplicate", message):
        path, first, again = locations.repeated
        name = ".".join(str(part) for part in path)
        where = f"it is first set in line {document.locate_span(first).line}"
        following, following_again = (
            document.text[end:].lstrip(" \t") for _, end in (first, again)
        )
        if re.match(r"=[ \t]*\{", following) and not following_again.startswith("="):
            where += ": write all of its keys inside of { … } there"
        return Diagnostic(f'"{name}" is set twice', document.locate_span(again), where)
    match = _TOML_PLACE.search(message)
    reason = message[: match.start()] if match else message
    if match and match.group(1):
        line, column = int(match.group(1)), int(match.group(2))
        text = document.lines[line - 1] if line <= len(document.lines) else ""
    else:
        # The mistake is at the end of the document. Shown is the end of its last line with text.
        lines_with_text = [number for number, text in enumerate(document.lines, 1) if text]
        line = lines_with_text[-1] if lines_with_text else 1
        text = document.lines[line - 1]
        column = len(text) + 1
    # As in "Cannot mutate immutable namespace ('script', 'saxpy')".
    reason = re.sub(r"\(('[^()]*')\)", _dot_keys, reason)
    # The parser shows the line end as an escape, which says little: the line ended too early.
    if reason == "Illegal character '\\n'":
        reason = "the line ends too early"
    hint = _suggest_syntax(text, column)
    if locations.broken is not None and document.find_line(locations.broken)[0] == line:
        reason, hint = "the line ends inside of { … }", _INLINE_HINT
    location = Location(document.shown, line, column, text)
    return Diagnostic(f"not TOML: {reason[:1].lower()}{reason[1:]}", location, hint)


_INLINE_HINT = (
    "an inline table must be on one line; for several lines write a table: [script.NAME.args],\n"
    "with one key on each line below it"
)


def _dot_keys(names: re.Match[str]) -> str:
    """Return Python's spelling of a path of keys, ('a', 'b'), in TOML's: "a.b"."""
    return '"' + ".".join(re.findall(r"'([^']*)'", names.group())) + '"'


def _suggest_syntax(text: str, column: int) -> str | None:
    """Return the probable meaning of text that is not a TOML value, or None."""
    rest = text[column - 1 :]
    if not rest and text.count('"') % 2:
        return "a string is not closed"
    if rest.startswith("}") and text[: column - 1].rstrip().endswith(","):
        return "the last key of a table has no comma behind it"
    if "\\" in text[max(0, column - 3) : column - 1]:
        return "write \\\\ for a backslash, and / between the names of a path"
    if rest.startswith(("//", "/*", ";")):
        return "a comment begins with #"
    if row := re.match(r"\(([^()]*)\)", rest):
        return f"an array has brackets: [{row[1]}]"
    if re.search(r"=\s*\[[^\]]*[^\s,\[]\s+$", text[: column - 1]):
        return "a comma separates the items of an array"
    word = re.match(r"[A-Za-z_][\w./+-]*(\([^()]*\))?", rest)
    if word and word.group().lower() in ("true", "false"):
        return f"TOML spells it {word.group().lower()}"
    if word and word.group() in ("None", "null", "nil"):
        return "TOML has no null: leave the key out"
    if word and "=" in text[: column - 1]:
        return f'a string needs quotes: "{word.group()}"'
    return None
