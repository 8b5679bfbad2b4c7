"""Find the position of each key and value in a TOML text.

`tomllib` returns values without positions; this scanner returns positions without values. It checks
nothing but the length of keys. In a text that is not TOML it stops at the first mistake, and the
positions before it are right. Offsets count characters of the text with line ends `\\n`.
"""

from __future__ import annotations

import contextlib
import re
import sys
from types import ModuleType
from typing import NamedTuple

from msgspec import Struct, field

Path = tuple[str | int, ...]
TextSpan = tuple[int, int]
"""The offset of the first character, and of the one after the last."""

MAX_PARTS = 64
"""Names of one dotted key. The time and the memory of `tomllib` grow with their square."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}#\n]+")
# The four strings of TOML, in this order: """ … """, ''' … ''', "…" and '…'. Up to two quotes of
# the text may stand right before three that close it.
_STRING = re.compile(
    r"\"{3}(?:[^\\]|\\.)*?\"{3,5}|'{3}.*?'{3,5}"
    r"|\"(?!\"\")[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"|'(?!'')[^'\n]*'",
    re.DOTALL,
)


def import_toml() -> ModuleType:
    """Return the module that parses TOML: `tomllib`, or `tomli` before Python 3.11."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib


class RepeatedKey(NamedTuple):
    """A key or header that is set twice."""

    path: Path
    first: TextSpan
    again: TextSpan


class Locations(Struct):
    """The spans of all keys and values of one text.

    The path of an array's item ends in an int, and so does that of a table in an array of tables.
    A table with a `[header]` is located at the last name of its header; others at their first use.
    """

    keys: dict[Path, TextSpan] = field(default_factory=dict)
    values: dict[Path, TextSpan] = field(default_factory=dict)
    repeated: RepeatedKey | None = None
    """The first key or header that is set twice."""
    broken: int | None = None
    """The offset of the first line end inside of `{ … }`, which TOML forbids."""
    too_long: TextSpan | None = None
    """The first name too many of a key, where the scan ends."""

    def add_table(self, path: Path, span: TextSpan) -> None:
        """Add a table at its first use."""
        self.keys.setdefault(path, span)
        self.values.setdefault(path, span)


def locate_keys(text: str) -> Locations:
    """Return the positions in a TOML text with line ends `\\n`. Never raises."""
    scanner = _TomlScanner(text)
    # A mistake ends the scan: the parser reports it, and needs the positions up to it only.
    with contextlib.suppress(ValueError, RecursionError):
        scanner.scan_document()
    return scanner.locations


class _TomlScanner:
    """A recursive descent over one text. Each method raises `ValueError` for unexpected text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.locations = Locations()
        self.counts: dict[Path, int] = {}
        """The index of the last table in each array of tables."""
        self.headers: dict[Path, TextSpan] = {}
        """The names of tables that a `[header]` or a dotted key begins."""
        self.assigned: dict[Path, TextSpan] = {}
        """The keys with a value behind `=`, which takes no further keys."""

    def scan_document(self) -> None:
        """Add the positions of all keys and values."""
        prefix: Path = ()
        while True:
            self.skip_pattern(_BLANK_LINES)
            if self.offset >= len(self.text):
                return
            if self.is_next("["):
                prefix = self.scan_header()
            else:
                self.scan_pair(prefix)

    def is_next(self, token: str) -> bool:
        return self.text.startswith(token, self.offset)

    def read_token(self, token: str) -> None:
        """Go past a text that must stand here."""
        if not self.is_next(token):
            raise ValueError
        self.offset += len(token)

    def skip_pattern(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.offset)
        if match:
            self.offset = match.end()

    def scan_header(self) -> Path:
        """Add the tables of a `[header]` or `[[header]]`, and return the path of the last one."""
        is_array = self.is_next("[[")
        self.read_token("[[" if is_array else "[")
        names = self.scan_key()
        path: Path = ()
        for name, span in names[:-1]:
            path = (*path, name)
            self.note_repeat(path, self.assigned.get(path), span)
            self.locations.add_table(path, span)
            path = self.resolve_table(path)
        name, span = names[-1]
        path = (*path, name)
        self.note_repeat(path, self.assigned.get(path), span)
        if is_array:
            self.locations.add_table(path, span)
            # Each such header begins another table of the array.
            number = self.counts[path] = self.counts.get(path, -1) + 1
            path = (*path, number)
        else:
            self.note_repeat(path, self.headers.get(path), span)
        # The place of a table is its own header, even if [a.b] has named `a` before [a] does.
        self.headers[path] = span
        self.locations.keys[path] = self.locations.values[path] = span
        self.read_token("]]" if is_array else "]")
        return path

    def resolve_table(self, path: Path) -> Path:
        """Return the table that `path` means in a header: in an array of tables the last one."""
        return (*path, self.counts[path]) if path in self.counts else path

    def scan_key(self) -> list[tuple[str, TextSpan]]:
        """Return the names of a dotted key, each with its span."""
        names = []
        while True:
            self.skip_pattern(_BLANK)
            start = self.offset
            if self.is_next('"') or self.is_next("'"):
                self.scan_string()
                # The parser resolves escapes in a quoted name; so must the path here.
                name = str(import_toml().loads(f"key = {self.text[start : self.offset]}")["key"])
            else:
                match = _BARE_KEY.match(self.text, self.offset)
                if not match:
                    raise ValueError
                name, self.offset = match.group(), match.end()
            names.append((name, (start, self.offset)))
            if len(names) > MAX_PARTS:
                self.locations.too_long = names[-1][1]
                raise ValueError
            self.skip_pattern(_BLANK)
            if not self.is_next("."):
                return names
            self.read_token(".")

    def scan_pair(self, table: Path) -> None:
        """Add a key of a table, and its value."""
        names = self.scan_key()
        path = table
        for name, span in names[:-1]:
            path = (*path, name)
            self.note_repeat(path, self.assigned.get(path), span)
            self.headers.setdefault(path, span)
            self.locations.add_table(path, span)
        name, span = names[-1]
        path = (*path, name)
        # Only the last name of a dotted key is set: `a.b` and `a.c` share `a`, and repeat nothing.
        self.note_repeat(path, self.locations.keys.get(path), span)
        self.locations.keys[path] = span
        self.read_token("=")
        self.skip_pattern(_BLANK)
        self.scan_value(path)
        self.assigned[path] = span

    def note_repeat(self, path: Path, first: TextSpan | None, again: TextSpan) -> None:
        """Add a key that is set at `first` and again, if it is the first such key."""
        if first is not None and self.locations.repeated is None:
            self.locations.repeated = RepeatedKey(path, first, again)

    def scan_value(self, path: Path) -> None:
        """Add the value of a key, with all values in it."""
        start = self.offset
        if self.is_next('"') or self.is_next("'"):
            self.scan_string()
        elif self.is_next("["):
            self.scan_array(path)
        elif self.is_next("{"):
            self.scan_inline_table(path)
        else:
            match = _SCALAR.match(self.text, self.offset)
            if not match:
                raise ValueError
            # A date may have a blank inside, so only the blanks at the end are cut off.
            self.offset += len(match.group().rstrip(" \t"))
        self.locations.values[path] = (start, self.offset)

    def scan_array(self, path: Path) -> None:
        """Add the items of an array."""
        self.read_token("[")
        self.skip_lines("]")
        number = 0
        while not self.is_next("]"):
            item = (*path, number)
            self.scan_value(item)
            self.locations.keys[item] = self.locations.values[item]
            number += 1
            self.skip_comma("]")
        self.read_token("]")

    def scan_inline_table(self, path: Path) -> None:
        """Add the keys and values of a table `{ … }`, which is at `path`."""
        self.read_token("{")
        self.skip_lines("}")
        while not self.is_next("}"):
            self.scan_pair(path)
            self.skip_comma("}")
        self.read_token("}")

    def skip_comma(self, closing: str) -> None:
        """Go past the comma after an item. The last item, before `closing`, needs none."""
        self.skip_lines(closing)
        if not self.is_next(closing):
            self.read_token(",")
            self.skip_lines(closing)

    def skip_lines(self, closing: str) -> None:
        """Skip blanks, comments and line ends. In an inline table, which `}` closes, add the offset
        of the first line end."""
        start = self.offset
        self.skip_pattern(_BLANK_LINES)
        is_broken = closing == "}" and "\n" in self.text[start : self.offset]
        if is_broken and self.locations.broken is None:
            self.locations.broken = start

    def scan_string(self) -> None:
        match = _STRING.match(self.text, self.offset)
        if not match:
            raise ValueError
        self.offset = match.end()
