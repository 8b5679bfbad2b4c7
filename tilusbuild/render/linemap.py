"""The line map: for each line of a rendering, the line of the template that it was written by.

It is made when there is a message to locate, from a second, marked rendering (`marking`). A line
that cannot be traced with certainty has no place: a map is sometimes incomplete and never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilusbuild.render.lexing import lines_inside
from tilusbuild.render.marking import MARK, OPEN


@dataclass(frozen=True, slots=True)
class Origin:
    """A line of a template, counted from 1, and the lines that called for it, innermost first."""

    template: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.template}:{self.line}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a rendered line, from `column` (counted from 1) on."""

    column: int
    text: str
    origin: Origin
    literal: bool
    """Whether the template's line holds this text, and no expression made it."""


@dataclass(frozen=True, slots=True)
class LineMap:
    """Where the lines of `rendered` come from. `pieces[i]` are those of line i + 1, if known."""

    rendered: tuple[str, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    read: Callable[[str], str]
    """The text of a template by its name."""

    def origin(self, line: int, column: int | None = None) -> Origin | None:
        """Return who wrote a line, or the character at a column of it. Both count from 1."""
        piece = self._piece(line, column)
        return piece.origin if piece else None

    def template_line(self, origin: Origin) -> str | None:
        """Return the text of a line of a template."""
        lines = self.read(origin.template).split("\n")
        return lines[origin.line - 1] if 1 <= origin.line <= len(lines) else None

    def template_column(self, line: int, column: int) -> int | None:
        """Return where in the template's line a character of the rendering stands, when that is
        sure."""
        piece = self._piece(line, column)
        text = self.template_line(piece.origin) if piece else None
        if piece is None or text is None:
            return None
        if text == self.rendered[line - 1]:
            return column
        part = piece.text.strip()
        if not piece.literal or not part or text.count(part) != 1:
            return None
        blanks = len(piece.text) - len(piece.text.lstrip())
        return text.index(part) + 1 + column - piece.column - blanks

    def with_directives(self) -> str:
        """Return the rendering with `#line` where the next line is not the template's next."""
        inside = lines_inside("\n".join(self.rendered))
        result: list[str] = []
        expected: tuple[str, int] | None = None
        for number, text in enumerate(self.rendered, 1):
            origin = self.origin(number)
            here = (origin.template, origin.line) if origin else ("source.cu", number)
            if here != expected and number not in inside and text.strip():
                name = here[0].replace("\\", "\\\\").replace('"', '\\"')
                result.append(f'#line {here[1]} "{name}"')
                expected = here
            result.append(text)
            if expected:
                expected = (expected[0], expected[1] + 1)
        return "\n".join(result)

    def _piece(self, line: int, column: int | None) -> Piece | None:
        pieces = self.pieces[line - 1] if 1 <= line <= len(self.pieces) else ()
        if column is not None:
            for piece in reversed(pieces):
                if piece.column <= column and piece.text:
                    return piece
        return next((p for p in pieces if p.text.strip()), pieces[0] if pieces else None)


def build(marked: str, text: str, names: Sequence[str], read: Callable[[str], str]) -> LineMap:
    """Return the map of `text`, whose marked rendering is `marked`; `names` has the templates'
    names."""
    rendered = tuple(text.split("\n"))
    lines = [] if OPEN in text else _trace(marked, names)
    pieces: list[tuple[Piece, ...]] = []
    for line, known in zip(rendered, lines, strict=False):
        if line != "".join(piece.text for piece in known):
            break
        pieces.append(tuple(known))
    pieces += [()] * (len(rendered) - len(pieces))
    return LineMap(rendered, tuple(pieces), read)


@dataclass(slots=True)
class _Frame:
    """A call under way: where it stands, unless it is the whole rendering, and what it writes."""

    site: tuple[str, int] | None
    text: tuple[str, int] | None = None


def _trace(marked: str, names: Sequence[str]) -> list[list[Piece]]:
    """Return the lines of a marked rendering as pieces, up to where the marks do not nest."""
    lines: list[list[Piece]] = [[]]
    column = 1
    stack = [_Frame(None)]
    position = 0
    for match in [*MARK.finditer(marked), None]:
        chunk = marked[position : match.start() if match else len(marked)]
        if chunk:
            origin, literal = _origin(stack)
            for part in re.split("(\n)", chunk):
                if part == "\n":
                    if origin and not lines[-1]:
                        lines[-1].append(Piece(1, "", origin, literal))
                    lines.append([])
                    column = 1
                elif part and origin:
                    lines[-1].append(Piece(column, part, origin, literal))
                    column += len(part)
        if match is None or not _follow(match[1], stack, names):
            break
        position = match.end()
    return lines


def _origin(stack: Sequence[_Frame]) -> tuple[Origin | None, bool]:
    """Return who writes now, and whether it is a template's literal text."""
    sites = [frame.site for frame in reversed(stack) if frame.site]
    literal = stack[-1].text is not None
    here = stack[-1].text or (sites.pop(0) if sites else None)
    return (Origin(*here, tuple(sites)) if here else None), literal


def _follow(mark: str, stack: list[_Frame], names: Sequence[str]) -> bool:
    """Take one mark into account; False when marks do not nest."""
    if mark:
        number, line = mark[1:].split(",")
        here = (names[int(number)], int(line))
        if mark[0] == "p":
            stack.append(_Frame(here))
        else:
            stack[-1].text = here
        return True
    stack.pop()
    return bool(stack)
