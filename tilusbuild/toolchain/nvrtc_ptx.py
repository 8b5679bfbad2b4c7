"""PTX without what no kernel of it reaches: variables and functions of headers, mostly.

NVRTC makes a variable of each constant of a header that it instantiates, and keeps all of them for
a host that might look one up; the host of a program here launches a kernel, and looks up at most
what that uses. Kept are the kernels, whatever they name, directly or through functions and initial
values, and every statement that is not known to be a variable or a function. What is kept stays as
it is, in its place, so the assembler makes the same instructions of each kernel; only addresses in
the tables of variables differ. Standard library only, for Python 3.8 or later; used by
`nvrtc_command.py`, beside which a copy of it lies in the tree.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    rb"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)
       | (?P<line>(?:\.(?:version|target|address_size|file|loc)\b|@@)[^\n]*)
       | (?P<text>"(?:[^"\\\n]|\\.)*")
       | (?P<mark>[{}();=,])
       | (?P<word>[.%]?[A-Za-z_$][\w$]*)
       | [^\s{}();=,"]
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(rb"(?<![\w$.%])[A-Za-z_$][\w$]*")
_VARIABLES = frozenset({b".global", b".const"})


class _Statement:
    """One statement at the top of a module: from where to where, and what it is."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.words: set[bytes] = set()
        self.name = b""
        self.several = self.has_value = False

    def ends_with(self, kind: str | None, text: bytes) -> bool:
        """Note a token outside of all brackets, and return whether it is the last."""
        if kind == "word" and text[:1] == b".":
            self.words.add(text)
        elif kind == "word" and not self.has_value:
            self.name = self.name or text
        self.several |= text == b","
        self.has_value |= text == b"="
        # After the braces of an initial value a ";" follows.
        return text == b";" or (text == b"}" and not self.is_variable)

    @property
    def may_go(self) -> bool:
        """Whether it declares one thing, which a kernel may not need and only a kernel sees."""
        if not self.name or self.several or {b".entry", b".attribute"} & self.words:
            return False
        return self.is_function or self.is_variable

    @property
    def is_function(self) -> bool:
        return b".func" in self.words

    @property
    def is_variable(self) -> bool:
        return bool(_VARIABLES & self.words) and not {b".func", b".entry"} & self.words


def reached(ptx: bytes) -> bytes:
    """The module with what its kernels reach; nothing where that is all of it, or where the text
    is not understood."""
    statements = _statements(ptx)
    if statements is None:
        return b""
    named = [frozenset(_NAME.findall(ptx, each.start, each.end)) for each in statements]
    by_name: dict[bytes, list[int]] = {}
    for number, each in enumerate(statements):
        if each.may_go:
            by_name.setdefault(each.name, []).append(number)
    kept = {number for number, each in enumerate(statements) if not each.may_go}
    waiting = list(kept)
    while waiting:
        for name in named[waiting.pop()] & by_name.keys():
            new = [number for number in by_name[name] if number not in kept]
            kept.update(new)
            waiting += new
    if len(kept) == len(statements):
        return b""
    parts, at = [], 0
    for number, each in enumerate(statements):
        if number not in kept:
            parts.append(ptx[at : each.start])
            at = each.end
    return b"".join([*parts, ptx[at:]])


def _statements(ptx: bytes) -> list[_Statement] | None:
    """The statements in order; None where a bracket or a string has no end."""
    found: list[_Statement] = []
    one: _Statement | None = None
    at = braces = brackets = 0
    while at < len(ptx):
        token = _TOKEN.match(ptx, at)
        if token is None:
            return None
        at, kind, text = token.end(), token.lastgroup, token[0]
        if kind == "blank" or (kind == "line" and one is None):
            continue
        one = one or _Statement(token.start())
        if kind == "mark":
            braces += (text == b"{") - (text == b"}")
            brackets += (text == b"(") - (text == b")")
            if braces < 0 or brackets < 0:
                return None
        if not braces and not brackets and one.ends_with(kind, text):
            one.end = at
            found.append(one)
            one = None
    return None if one is not None else found
