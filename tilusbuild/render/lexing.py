"""C++ text as the preprocessor reads it: where comments, strings and raw strings lie.

Every alternative of `TOKENS` starts with a literal character, so that Python's matcher looks for
those few characters at the speed of a search.
"""

from __future__ import annotations

import re

BLOCK_COMMENT = r"/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)"
BLANK = rf"(?:[^\S\n]|{BLOCK_COMMENT})*"

# What may stand before a quote: no letter, or a prefix such as u8, or a keyword without a blank.
_STARTS = "|".join(rf"(?<=[^A-Za-z0-9_]{prefix}')" for prefix in ("", "u", "U", "L", "u8"))
_STARTS += "|(?<=case')|(?<=return')"
_RAW_STARTS = "|".join(rf'(?<=[^A-Za-z0-9_]{p}R")' for p in ("", "u", "U", "L", "u8"))
_INCLUDE = rf'{BLANK}(?:include_next|include|import){BLANK}(?:<[^>\n]*>|"[^"\n]*")'

TOKENS = re.compile(
    # A header's name may hold what elsewhere starts a comment: <sys//x.h>.
    rf"#{_INCLUDE}|%:{_INCLUDE}|\?\?={_INCLUDE}"
    rf"|//[^\n]*|{BLOCK_COMMENT}"
    rf'|"(?:{_RAW_STARTS})(?P<delimiter>[^()\\\s]{{0,16}})\([\s\S]*?\)(?P=delimiter)"'
    r'|"(?:[^"\\\n]|\\[\s\S])*"'
    # Any other apostrophe separates the digits of a number.
    rf"|'(?:{_STARTS})(?:[^'\\\n]|\\[\s\S])*'"
)
"""Includes, comments, raw strings (the only ones with a `delimiter`), strings, characters. The text
must start with a line of its own, since some alternatives look at the character before."""

SPLICE = re.compile(r"\\[ \t]*\n")
"""A backslash at the end of a line joins it with the next; gcc lets blanks stand between."""


def lines_inside(text: str) -> set[int]:
    """Return the lines, counted from 1, that start within a comment, a raw string or a spliced
    line: a directive that is put before such a line would not be one."""
    # Blanks of the same length stand for each splice, so that what it joins is matched as one.
    flat = SPLICE.sub(lambda m: " " * len(m[0]), text)
    starts = [m.end() for m in re.finditer("\n", text)]
    inside = {number for number, start in enumerate(starts, 2) if flat[start - 1] == " "}
    for match in TOKENS.finditer("\n" + flat):
        if match["delimiter"] is not None or match[0].startswith("/*"):
            first, last = match.start() - 1, match.end() - 1
            inside.update(n for n, start in enumerate(starts, 2) if first < start < last)
    return inside
