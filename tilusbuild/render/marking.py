"""A second environment whose renderings carry, inside the text, where each piece comes from.

Marks are written into the templates' own text before they are compiled: one where a piece of text
starts and at each of its lines, and a pair around each `{{ }}`, include and call, so that what a
macro writes knows who called it. A mark never reaches a filter, a test, a comparison or a function:
every operand is stripped first, so a marked rendering takes the branches of the plain one.
`linemap` strips the marks, and trusts only what then equals the plain rendering.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import nodes
from jinja2.filters import do_indent
from jinja2.runtime import Context, Macro
from jinja2.visitor import NodeTransformer

from tilusbuild.render.environment import Environment
from tilusbuild.render.loader import ProjectLoader

# Two of Unicode's noncharacters, which no text may hold.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
POP = f"{OPEN}{CLOSE}"
MARK = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
"""Between them stands nothing for POP, else `s` (start) or `p` (push) and `<template>,<line>`."""


_LINES = re.compile(r"[^\n]*\n|[^\n]+")


def strip(value: Any) -> Any:
    """`value` without marks: a text, or the texts of a list, a tuple or a mapping."""
    if isinstance(value, str):
        return MARK.sub("", value) if OPEN in value else value
    if type(value) in (list, tuple):
        return type(value)(strip(item) for item in value)
    if type(value) is dict:
        return {strip(key): strip(item) for key, item in value.items()}
    return value


def indent_marked(value: Any, *arguments: Any, **keywords: Any) -> str:
    """`indent`, which keeps lines as they are and therefore the marks of each line."""
    marked = value.split("\n") if isinstance(value, str) else []
    lines = do_indent(strip(value), *arguments, **keywords).split("\n")
    if len(lines) != len(marked):
        return "\n".join(lines)
    return "\n".join(_with_marks(line, old) for line, old in zip(lines, marked, strict=True))


def _with_marks(line: str, old: str) -> str:
    """`line` with the marks of `old`: those before its first visible character go first."""
    invisible = re.match(rf"(?:[^\S\n]|{MARK.pattern})*", old)
    at = invisible.end() if invisible else 0
    marks = list(MARK.finditer(old))
    before = "".join(m[0] for m in marks if m.end() <= at)
    after = "".join(m[0] for m in marks if m.end() > at)
    return before + line + after


class MarkingEnvironment(Environment):
    """An `Environment` whose renderings are marked; `names[i]` is the template of number i."""

    def __init__(self, loader: ProjectLoader) -> None:
        super().__init__(loader)
        self.names: list[str] = []
        self.filters["_plain"] = strip
        self.filters["_indent"] = indent_marked

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.names.append(name or "")
        _Marker(len(self.names) - 1).visit(tree)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if not isinstance(__obj, Macro):
            args = tuple(strip(value) for value in args)
            kwargs = {name: strip(value) for name, value in kwargs.items()}
        return super().call(__context, __obj, *args, **kwargs)


def _plain(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, "_plain", [], [], None, None, lineno=node.lineno)


class _Marker(NodeTransformer):
    """Writes marks into the tree of template number `template`."""

    def __init__(self, template: int) -> None:
        self._template = template

    def _text(self, text: str, line: int) -> nodes.TemplateData:
        return nodes.TemplateData(text, lineno=line)

    def _mark(self, kind: str, line: int) -> str:
        return f"{OPEN}{kind}{self._template},{line}{CLOSE}"

    def _around(self, node: nodes.Stmt) -> list[nodes.Node]:
        push, pop = self._mark("p", node.lineno), POP
        return [
            nodes.Output([self._text(push, node.lineno)], lineno=node.lineno),
            node,
            nodes.Output([self._text(pop, node.lineno)], lineno=node.lineno),
        ]

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - Jinja2's names
        self.generic_visit(node)
        children: list[nodes.Expr] = []
        for child in node.nodes:
            if isinstance(child, nodes.TemplateData):
                lines = enumerate(_LINES.findall(child.data), child.lineno)
                marked = "".join(self._mark("s", at) + line for at, line in lines)
                children.append(self._text(marked, child.lineno))
            else:
                push = self._mark("p", child.lineno)
                pieces = [self._text(push, child.lineno), child, self._text(POP, child.lineno)]
                children += pieces
        node.nodes = children
        return node

    def visit_Include(self, node: nodes.Include) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        node.template = _plain(node.template)
        return self._around(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        return self._around(node)

    def _strip_captured(self, node: Any) -> None:
        """A text that is captured and filtered: the innermost filter has no operand."""
        self.generic_visit(node)
        innermost = node.filter
        while innermost is not None and innermost.node is not None:
            innermost = innermost.node
        if innermost is not None and innermost.name != "_plain":
            innermost.node = nodes.Filter(None, "_plain", [], [], None, None, lineno=node.lineno)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> list[nodes.Node]:  # noqa: N802
        self._strip_captured(node)
        return self._around(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self._strip_captured(node)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.name == "indent" and node.node is not None:
            node.name = "_indent"
        elif node.node is not None and node.name != "_plain":
            node.node = _plain(node.node)
        node.args = [_plain(argument) for argument in node.args]
        for pair in node.kwargs:
            pair.value = _plain(pair.value)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.node = _plain(node.node)
        node.args = [_plain(argument) for argument in node.args]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _plain(node.expr)
        for operand in node.ops:
            operand.expr = _plain(operand.expr)
        return node

    def _visit_condition(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = _plain(node.test)
        return node  # type: ignore[no-any-return]

    visit_If = visit_CondExpr = visit_For = _visit_condition  # noqa: N815

    def _visit_binary(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.left, node.right = _plain(node.left), _plain(node.right)
        return node  # type: ignore[no-any-return]

    visit_And = visit_Or = visit_Mul = visit_Mod = visit_Add = _visit_binary  # noqa: N815

    def _visit_operand(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.node = _plain(node.node)
        return node  # type: ignore[no-any-return]

    visit_Not = visit_Getattr = _visit_operand  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self._visit_operand(node)
        node.arg = _plain(node.arg) if not isinstance(node.arg, nodes.Slice) else node.arg
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _plain(node.key)
        return node
