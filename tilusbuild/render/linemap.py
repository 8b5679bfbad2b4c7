"""The line map: for each line of a rendering, the line of the template that wrote it.

It is built when there is a message to locate, from a second rendering that carries, inside the
text, where each piece comes from. Marks are written into the templates' own text before they are
compiled: one where a piece of text starts and at each of its lines, and a pair around each `{{ }}`,
include and call, so that the text of a macro has its callers. A mark never reaches a filter, a
test, a comparison or a function: every operand is stripped first, so a marked rendering takes the
branches of the plain one. The map trusts only lines that equal the plain rendering without their
marks: it is sometimes incomplete and never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jinja2 import nodes
from jinja2.filters import do_indent
from jinja2.runtime import Context, Macro
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
        if not piece.literal or not part or text.count(part) != 1:
            return None
        blanks = len(piece.text) - len(piece.text.lstrip())
        return text.index(part) + 1 + column - piece.column - blanks

    def insert_directives(self) -> str:
        """Return the rendering with `#line` wherever the next line is not the template's next."""
        inside = find_inner_lines("\n".join(self.rendered))
        result: list[str] = []
        expected: tuple[str, int] | None = None
        for number, text in enumerate(self.rendered, 1):
            origin = self.find_origin(number)
            position = (origin.template, origin.line) if origin else ("source.cu", number)
            if position != expected and number not in inside and text.strip():
                name = position[0].replace("\\", "\\\\").replace('"', '\\"')
                result.append(f'#line {position[1]} "{name}"')
                expected = position
            result.append(text)
            if expected:
                expected = (expected[0], expected[1] + 1)
        return "\n".join(result)

    def _find_piece(self, line: int, column: int | None) -> Piece | None:
        pieces = self.pieces[line - 1] if 1 <= line <= len(self.pieces) else ()
        if column is not None:
            for piece in reversed(pieces):
                if piece.column <= column and piece.text:
                    return piece
        return next((p for p in pieces if p.text.strip()), pieces[0] if pieces else None)


def map_to_itself(template: str, text: str, read: Callable[[str], str]) -> LineMap:
    """Return the map of a text that is its template, not rendered."""
    rendered = tuple(text.split("\n"))
    origins = (Origin(template, number) for number, _ in enumerate(rendered, 1))
    pieces = ((Piece(1, *at, True),) for at in zip(rendered, origins, strict=True))
    return LineMap(rendered, tuple(pieces), read)


def build_line_map(
    marked: str, text: str, names: Sequence[str], read: Callable[[str], str]
) -> LineMap:
    """Return the map of `text`, whose marked rendering is `marked`. A mark's number is an index
    into `names`, the templates' names."""
    rendered = tuple(text.split("\n"))
    lines = [] if OPEN in text else _trace_marks(marked, names)
    pieces: list[tuple[Piece, ...]] = []
    for line, line_pieces in zip(rendered, lines, strict=False):
        if line != "".join(piece.text for piece in line_pieces):
            break
        pieces.append(tuple(line_pieces))
    pieces += [()] * (len(rendered) - len(pieces))
    return LineMap(rendered, tuple(pieces), read)


_Frame: TypeAlias = "list[tuple[str, int] | None]"
"""A call in progress: its place (None: the whole rendering), and that of the text it writes."""


def _trace_marks(marked: str, names: Sequence[str]) -> list[list[Piece]]:
    """Return the lines of a marked rendering as pieces, up to where the marks do not nest."""
    lines: list[list[Piece]] = [[]]
    column = 1
    stack: list[_Frame] = [[None, None]]
    position = 0
    for match in [*MARK.finditer(marked), None]:
        chunk = marked[position : match.start() if match else len(marked)]
        if chunk:
            origin, literal = _find_current_origin(stack)
            for part in re.split("(\n)", chunk):
                if part == "\n":
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
    sites = [site for site, _ in reversed(stack) if site]
    literal = stack[-1][1] is not None
    call_site = stack[-1][1] or (sites.pop(0) if sites else None)
    return (Origin(*call_site, tuple(sites)) if call_site else None), literal


def _apply_mark(mark: str, stack: list[_Frame], names: Sequence[str]) -> bool:
    """Apply a mark to the stack. Return False if marks do not nest."""
    if mark:
        number, line = mark[1:].split(",")
        site = (names[int(number)], int(line))
        if mark[0] == "p":
            stack.append([site, None])
        else:
            stack[-1][1] = site
        return True
    stack.pop()
    return bool(stack)


# Two of Unicode's noncharacters, which no text may hold.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
POP = f"{OPEN}{CLOSE}"
MARK = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
"""Between OPEN and CLOSE: nothing (POP), or `s` (start) or `p` (push) and `<template>,<line>`."""
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


def strip_marks(value: Any) -> Any:
    """Return `value` without marks: a text, or the texts of a list, a tuple or a mapping."""
    if isinstance(value, str):
        return MARK.sub("", value) if OPEN in value else value
    if type(value) in (list, tuple):
        return type(value)(strip_marks(item) for item in value)
    if type(value) is dict:
        return {strip_marks(key): strip_marks(item) for key, item in value.items()}
    return value


def indent_marked(value: Any, *arguments: Any, **keywords: Any) -> str:
    """Indent a marked text: Jinja2's `indent`, and the marks of each line."""
    marked = value.split("\n") if isinstance(value, str) else []
    lines = do_indent(strip_marks(value), *arguments, **keywords).split("\n")
    if len(lines) != len(marked):
        return "\n".join(lines)
    return "\n".join(_copy_marks(line, old) for line, old in zip(lines, marked, strict=True))


def _copy_marks(line: str, marked_line: str) -> str:
    """Return `line` with the marks of `marked_line`. Marks before its first visible character come
    first."""
    invisible = re.match(rf"(?:[^\S\n]|{MARK.pattern})*", marked_line)
    indent_end = invisible.end() if invisible else 0
    marks = list(MARK.finditer(marked_line))
    before = "".join(m[0] for m in marks if m.end() <= indent_end)
    after = "".join(m[0] for m in marks if m.end() > indent_end)
    return before + line + after


class MarkingEnvironment(Environment):
    """An `Environment` whose renderings are marked; `names[i]` is the name of template number i."""

    def __init__(self, loader: ProjectLoader, style: Style) -> None:
        super().__init__(loader, style)
        self.names: list[str] = []
        self.filters["_plain"] = strip_marks
        self.filters["_indent"] = indent_marked

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.names.append(name or "")
        _Marker(len(self.names) - 1).visit(tree)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if not isinstance(__obj, Macro):
            args = tuple(strip_marks(value) for value in args)
            kwargs = {name: strip_marks(value) for name, value in kwargs.items()}
        return super().call(__context, __obj, *args, **kwargs)


def _strip_operand(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, "_plain", [], [], None, None, lineno=node.lineno)


_LOOKS_AT: dict[type[nodes.Node], tuple[str, ...]] = {
    nodes.Test: ("node", "args"),
    **dict.fromkeys((nodes.Compare, nodes.Operand), ("expr",)),
    **dict.fromkeys((nodes.If, nodes.CondExpr, nodes.For), ("test",)),
    **dict.fromkeys((nodes.And, nodes.Or, nodes.Mul, nodes.Mod, nodes.Add), ("left", "right")),
    **dict.fromkeys((nodes.Not, nodes.Getattr), ("node",)),
    nodes.Getitem: ("node", "arg"),
    nodes.Pair: ("key",),
}
"""The operands of each kind of node that it looks at, and does not only write."""


class _Marker(NodeTransformer):
    """Writes marks into the tree of template number `template`."""

    def __init__(self, template: int) -> None:
        self._template = template

    def generic_visit(self, node: nodes.Node, *arguments: Any, **keywords: Any) -> nodes.Node:
        super().generic_visit(node, *arguments, **keywords)
        for name in _LOOKS_AT.get(type(node), ()):
            operand = getattr(node, name)
            if isinstance(operand, list):
                setattr(node, name, [_strip_operand(each) for each in operand])
            elif operand is not None and not isinstance(operand, nodes.Slice):
                setattr(node, name, _strip_operand(operand))
        return node

    def _make_text(self, text: str, line: int) -> nodes.TemplateData:
        return nodes.TemplateData(text, lineno=line)

    def _format_mark(self, kind: str, line: int) -> str:
        return f"{OPEN}{kind}{self._template},{line}{CLOSE}"

    def _surround_with_marks(self, node: nodes.Stmt) -> list[nodes.Node]:
        push, pop = self._format_mark("p", node.lineno), POP
        return [
            nodes.Output([self._make_text(push, node.lineno)], lineno=node.lineno),
            node,
            nodes.Output([self._make_text(pop, node.lineno)], lineno=node.lineno),
        ]

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja2's names
        self.generic_visit(node)
        children: list[nodes.Expr] = []
        for child in node.nodes:
            if isinstance(child, nodes.TemplateData):
                lines = enumerate(_LINES.findall(child.data), child.lineno)
                marked = "".join(self._format_mark("s", at) + line for at, line in lines)
                children.append(self._make_text(marked, child.lineno))
            else:
                push = self._format_mark("p", child.lineno)
                children += [self._make_text(push, child.lineno), child]
                children.append(self._make_text(POP, child.lineno))
        node.nodes = children
        return node

    def visit_Include(self, node: nodes.Include) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        node.template = _strip_operand(node.template)
        return self._surround_with_marks(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        return self._surround_with_marks(node)

    def _strip_captured(self, node: Any) -> None:
        """Strip a text that is captured and filtered: the innermost filter has no operand."""
        self.generic_visit(node)
        innermost = node.filter
        while innermost is not None and innermost.node is not None:
            innermost = innermost.node
        if innermost is not None and innermost.name != "_plain":
            innermost.node = nodes.Filter(None, "_plain", [], [], None, None, lineno=node.lineno)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> list[nodes.Node]:  # noqa: N802
        self._strip_captured(node)
        return self._surround_with_marks(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self._strip_captured(node)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.name == "indent" and node.node is not None:
            node.name = "_indent"
        elif node.node is not None and node.name != "_plain":
            node.node = _strip_operand(node.node)
        node.args = [_strip_operand(argument) for argument in node.args]
        for pair in node.kwargs:
            pair.value = _strip_operand(pair.value)
        return node
