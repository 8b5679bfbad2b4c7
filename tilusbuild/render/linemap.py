"""The line map: for each line of a rendering, the line of the template that wrote it.

It is built when there is a message to locate, from a second rendering that carries, inside the
text, where each piece comes from. Marks are written into the templates' own text before they are
compiled: one where a piece of text starts and at each of its lines, and a pair around each `{{ }}`,
include and call, so that the text of a macro has its callers. The value of a macro's call, for one,
is a `MarkedText`: filters, tests, comparisons and functions see it without its marks, so a marked
rendering takes the branches of the plain one. The map trusts only lines that
equal the plain rendering without their marks: it is sometimes incomplete and never wrong.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from jinja2 import nodes
from jinja2.filters import do_indent
from jinja2.visitor import NodeTransformer
from msgspec import Struct

from tilusbuild.render.environment import Environment, ProjectLoader, Style
from tilusbuild.render.preprocessor import find_inner_lines


class Origin(Struct, frozen=True):
    """A line of a template, counted from 1, and the lines that called it, innermost first."""

    template: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.template}:{self.line}"


class Piece(Struct, frozen=True):
    """A part of a rendered line, from `column` (counted from 1) on."""

    column: int
    text: str
    origin: Origin
    literal: bool
    """Whether this is the template's own text, and not the value of an expression."""


class LineMap(Struct, frozen=True):
    """The origins of the lines of `rendered`: `pieces[i]` are those of line i + 1, if known."""

    rendered: tuple[str, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    read: Callable[[str], str]
    """The text of a template by its name."""

    def find_origin(self, line: int, column: int | None = None) -> Origin | None:
        """Return the origin of a line, or of the character at a column. Both count from 1."""
        piece = self._find_piece(line, column)
        return piece.origin if piece else None

    def read_template_line(self, origin: Origin) -> str | None:
        """Return the text of a line of a template."""
        lines = self.read(origin.template).split("\n")
        return lines[origin.line - 1] if 1 <= origin.line <= len(lines) else None

    def find_template_column(self, line: int, column: int) -> int | None:
        """Return the column in the template's line of a character of the rendering, if certain."""
        piece = self._find_piece(line, column)
        text = self.read_template_line(piece.origin) if piece else None
        if piece is None or text is None:
            return None
        if text == self.rendered[line - 1]:
            return column
        part = piece.text.strip()
        # If the text stands twice in the template's line, it is not known which one wrote it.
        if not piece.literal or not part or text.count(part) != 1:
            return None
        blanks = len(piece.text) - len(piece.text.lstrip())
        column_in_part = column - piece.column - blanks
        return text.index(part) + 1 + column_in_part

    def insert_directives(self) -> str:
        """Return the rendering with a `#line` before each line that is not the next one of its
        template."""
        inner_lines = find_inner_lines("\n".join(self.rendered))
        result: list[str] = []
        expected: tuple[str, int] | None = None
        for number, text in enumerate(self.rendered, 1):
            origin = self.find_origin(number)
            file, line = (origin.template, origin.line) if origin else ("source.cu", number)
            # Within a comment or a raw string a directive would be text. A blank line needs none.
            if (file, line) != expected and number not in inner_lines and text.strip():
                quoted_name = file.replace("\\", "\\\\").replace('"', '\\"')
                result.append(f'#line {line} "{quoted_name}"')
                expected = (file, line)
            result.append(text)
            # The compiler takes the next line for the next one of the same file.
            if expected is not None:
                expected_file, expected_line = expected
                expected = (expected_file, expected_line + 1)
        return "\n".join(result)

    def _find_piece(self, line: int, column: int | None) -> Piece | None:
        """Return the piece at a column; without a column, the first that is not blank."""
        pieces = self.pieces[line - 1] if 1 <= line <= len(self.pieces) else ()
        if column is not None:
            # The last piece that begins before the column is the one that contains it.
            for piece in reversed(pieces):
                if piece.column <= column and piece.text:
                    return piece
        first_piece = pieces[0] if pieces else None
        return next((piece for piece in pieces if piece.text.strip()), first_piece)


def map_to_itself(template: str, text: str, read: Callable[[str], str]) -> LineMap:
    """Return the map of a text that is its template, not rendered."""
    rendered = tuple(text.split("\n"))
    origins = (Origin(template, number) for number, _ in enumerate(rendered, 1))
    pieces = (
        (Piece(column=1, text=line, origin=origin, literal=True),)
        for line, origin in zip(rendered, origins, strict=True)
    )
    return LineMap(rendered, tuple(pieces), read)


def build_line_map(
    marked: str, text: str, names: Mapping[int, str], read: Callable[[str], str]
) -> LineMap:
    """Return the map of `text`, whose marked rendering is `marked`. `names` are the templates'
    names, by the number in a mark."""
    rendered = tuple(text.split("\n"))
    # If a value of the context has the characters of marks, marks cannot be read: nothing is known.
    lines = [] if OPEN in text else _trace_marks(marked, names)
    pieces: list[tuple[Piece, ...]] = []
    for line, line_pieces in zip(rendered, lines, strict=False):
        # If the marked rendering differs here, it may have taken another branch, and the lines that
        # follow are unknown.
        if line != "".join(piece.text for piece in line_pieces):
            break
        pieces.append(tuple(line_pieces))
    pieces += [()] * (len(rendered) - len(pieces))
    return LineMap(rendered, tuple(pieces), read)


_Site: TypeAlias = tuple[str, int]
"""A template's name, and a line."""


class _Frame(Struct):
    """A call, an include or an expression whose text is being read."""

    site: _Site | None = None
    """Its line; None for the whole rendering."""
    text_site: _Site | None = None
    """The line of the template's own text that follows; None where an expression writes."""


def _trace_marks(marked: str, names: Mapping[int, str]) -> list[list[Piece]]:
    """Return the lines of a marked rendering as pieces, up to where the marks do not nest.

    `names` are the templates' names, by the number in a mark.
    """
    lines: list[list[Piece]] = [[]]
    column = 1
    stack = [_Frame()]
    position = 0
    # Each round reads the text before a mark, and then the mark. The last round, for None, reads
    # the text after the last mark.
    for match in [*MARK.finditer(marked), None]:
        chunk_end = match.start() if match else len(marked)
        chunk = marked[position:chunk_end]
        if chunk:
            origin, literal = _find_current_origin(stack)
            for part in re.split("(\n)", chunk):
                if part == "\n":
                    # An empty line gets an empty piece: `#line` needs its origin, too.
                    if origin and not lines[-1]:
                        lines[-1].append(Piece(1, "", origin, literal))
                    lines.append([])
                    column = 1
                elif part and origin:
                    lines[-1].append(Piece(column, part, origin, literal))
                    column += len(part)
        if match is None or not _apply_mark(match[1], stack, names):
            break
        position = match.end()
    return lines


def _find_current_origin(stack: Sequence[_Frame]) -> tuple[Origin | None, bool]:
    """Return the origin of the text that follows, and whether it is a template's literal text."""
    call_sites = [frame.site for frame in reversed(stack) if frame.site]
    site = stack[-1].text_site
    literal = site is not None
    # The value of an expression has no line of its own: it belongs to the line with the expression,
    # which is the innermost call site.
    if site is None and call_sites:
        site = call_sites.pop(0)
    return (Origin(*site, tuple(call_sites)) if site else None), literal


def _apply_mark(mark: str, stack: list[_Frame], names: Mapping[int, str]) -> bool:
    """Apply a mark to the stack: push a frame, set its text's line, or (the empty mark) pop it.
    Return False if marks do not nest."""
    # Decoded, a mark is `p,0,12` (push: template 0, line 12) or `s,0,12` (the text of this line).
    if mark:
        kind, number, line = mark.translate(_DECODE).split(",")
        site = (names[int(number)], int(line))
        if kind == "p":
            stack.append(_Frame(site))
        else:
            stack[-1].text_site = site
        return True
    stack.pop()
    return bool(stack)


# Unicode's noncharacters, which no text may hold. What is between OPEN and CLOSE is spelled with
# others, so that a filter which replaces letters or digits leaves it as it is.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_ENCODE = str.maketrans("0123456789,sp", "".join(map(chr, range(0xFDD2, 0xFDD2 + 13))))
_DECODE = {code: character for character, code in _ENCODE.items()}
POP = f"{OPEN}{CLOSE}"
MARK = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
"""Nothing (POP), or `s` (start) or `p` (push), and the numbers of a template and of a line."""
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


class MarkedText(str):
    """A text without its marks, for all that a template does with it. `str` has the marks: Jinja2
    applies it to what `{{ }}` writes."""

    marked: str

    def __new__(cls, marked: str) -> MarkedText:
        text = super().__new__(cls, MARK.sub("", marked))
        text.marked = marked
        return text

    def __str__(self) -> str:
        return self.marked


def join_marked(parts: Iterable[object]) -> MarkedText:
    """Return the texts of `parts` as one: what Jinja2 makes of a macro's text, and of `a ~ b`."""
    return MarkedText("".join(map(str, parts)))


def indent_marked(value: Any, *arguments: Any, **keywords: Any) -> str:
    """Indent a text as Jinja2's `indent` does, and keep the marks of each line."""
    marked_lines = value.marked.split("\n") if isinstance(value, MarkedText) else []
    text = do_indent(value, *arguments, **keywords)
    lines = text.split("\n")
    # A text with other line ends may have other lines. It stays without marks, and so belongs to
    # the line that indents it.
    if len(lines) != len(marked_lines):
        return text
    return MarkedText("\n".join(map(_copy_marks, lines, marked_lines)))


def _copy_marks(line: str, marked_line: str) -> str:
    """Return `line` with the marks of `marked_line`. Marks before its first visible character come
    first."""
    invisible = re.match(rf"(?:[^\S\n]|{MARK.pattern})*", marked_line)
    indent_end = invisible.end() if invisible else 0
    marks = list(MARK.finditer(marked_line))
    # The indentation belongs to the text that follows it, so the marks of that text come before it.
    marks_before = "".join(mark[0] for mark in marks if mark.end() <= indent_end)
    marks_after = "".join(mark[0] for mark in marks if mark.end() > indent_end)
    return marks_before + line + marks_after


class MarkingEnvironment(Environment):
    """An `Environment` whose renderings are marked; `names[i]` is the name of template number i.

    Programs that fail at the same time are rendered by several threads: each takes a number of its
    own.
    """

    concat = staticmethod(join_marked)

    def __init__(self, loader: ProjectLoader, style: Style) -> None:
        super().__init__(loader, style)
        self.names: dict[int, str] = {}
        self._numbers = itertools.count()
        self.filters["_concat"] = join_marked
        self.filters["indent"] = indent_marked

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template, write marks into its tree, and add its name to `names`."""
        tree = super()._parse(source, name, filename)
        number = next(self._numbers)
        self.names[number] = name or ""
        _Marker(number).visit(tree)
        # Jinja2's compiler needs the environment in every node, and the new nodes have none.
        tree.set_environment(self)
        return tree


class _Marker(NodeTransformer):
    """Writes marks into the tree of template number `template`."""

    def __init__(self, template: int) -> None:
        self._template = template

    def _format_mark(self, kind: str, line: int) -> str:
        return OPEN + f"{kind},{self._template},{line}".translate(_ENCODE) + CLOSE

    def _surround_with_marks(self, node: nodes.Stmt) -> list[nodes.Node]:
        """Return a statement that writes a text, between marks of its own line."""
        self.generic_visit(node)
        line = node.lineno
        push = nodes.TemplateData(self._format_mark("p", line), lineno=line)
        pop = nodes.TemplateData(POP, lineno=line)
        return [nodes.Output([push], lineno=line), node, nodes.Output([pop], lineno=line)]

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja2's names
        """Mark each line of a template's text, and surround each expression."""
        self.generic_visit(node)
        children: list[nodes.Expr] = []
        for child in node.nodes:
            line = child.lineno
            if isinstance(child, nodes.TemplateData):
                lines = enumerate(_LINES.findall(child.data), line)
                marked = "".join(self._format_mark("s", number) + text for number, text in lines)
                children.append(nodes.TemplateData(marked, lineno=line))
            else:
                push = nodes.TemplateData(self._format_mark("p", line), lineno=line)
                children += [push, child, nodes.TemplateData(POP, lineno=line)]
        node.nodes = children
        return node

    # Jinja2's names of its nodes.
    visit_Include = visit_CallBlock = visit_FilterBlock = _surround_with_marks  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        # Jinja2's own code for `~` would make a plain text of them, with the marks in it.
        return nodes.Filter(parts, "_concat", [], [], None, None, lineno=node.lineno)
