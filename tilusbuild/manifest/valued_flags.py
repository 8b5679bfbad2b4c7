"""Texts with values of the program: compiler arguments as `-maxrregcount={{ regs }}`, and the
kernel's name.

What stands between the braces is an expression over constants, parameters and derived values. An
argument that is empty when its expressions are filled in is left out, so that
`{{ "-use_fast_math" if fast else "" }}` is one that only some programs have. Which arguments are
allowed is decided of what they become.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilusbuild.expr import Expr, Value

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


def has_values(flag: str) -> bool:
    """Return whether an argument depends on the program."""
    return _EXPRESSION.search(flag) is not None


def in_place(text: str) -> Iterator[str]:
    """Yield the sources of the expressions in a text, each behind as many blanks as stand before
    it: a mistake's column is that of the text."""
    for found in _EXPRESSION.finditer(text):
        yield " " * found.start(1) + found[1]


def filled_in(
    flags: Sequence[str], values: Mapping[str, Value], bound: Callable[[Value], Expr]
) -> tuple[str, ...]:
    """Return arguments with the values of a program. Raises `ExprError`."""

    def text(found: re.Match[str]) -> str:
        value = bound(found[1].strip()).evaluate(values)
        return str(value).lower() if isinstance(value, bool) else str(value)

    made = (_EXPRESSION.sub(text, flag) if has_values(flag) else flag for flag in flags)
    return tuple(flag for flag in made if flag)
