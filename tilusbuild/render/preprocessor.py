"""C++ text as the preprocessor reads it: its comments and strings, and the headers it can include.

A scan finds every `#include`, `#include_next`, `#import` and `__has_include` outside comments and
strings, whatever the conditions around them, and the macros that could name a header. It is a
function of the text alone, so it is remembered by the text's digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BLOCK_COMMENT = r"/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)"
BLANK = rf"(?:[^\S\n]|{BLOCK_COMMENT})*"

# Python's matcher searches fast for the literal character that every alternative of TOKENS starts
# with; so a prefix is a look-behind. Before a quote stands no letter, or a prefix such as u8, or a
# keyword without a blank.
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


class Include(NamedTuple):
    """An include. Exactly one of `name` and `macro` is not empty."""

    name: str
    quoted: bool
    """`"name"`, which is searched for beside the including file first, or `<name>`."""
    next: bool
    """`#include_next` and `__has_include_next`: any directory of the search path may be meant."""
    macro: str = ""
    """The text of a computed include: `#include CONFIG_HEADER`."""


class Definition(NamedTuple):
    """A macro that may name a header: `"name"`, `<name>`, or another macro's call."""

    macro: str
    parameters: tuple[str, ...] | None
    body: str


class Scan(NamedTuple):
    """The includes of a text, and its definitions that may name headers."""

    includes: tuple[Include, ...]
    definitions: tuple[Definition, ...]


_DIRECTIVE = re.compile(
    r"^[^\S\n]*(?:\#|%:|\?\?=)[^\S\n]*(include_next|include|import|define|if|elif)\b(.*)$",
    re.MULTILINE,
)
_HEADER = re.compile(r'[^\S\n]*(?:<([^>\n]*)>|"([^"\n]*)")')
# A header, a name, a name with arguments, or a parameter made a string.
_DEFINITION = re.compile(
    r"[^\S\n]+([A-Za-z_]\w*)(?:\(([\w\s,]*)\)|(?=\s))[^\S\n]*"
    r'(<[^>\n]+>|"[^"\n]+"|#?[^\S\n]*[A-Za-z_]\w*[^\S\n]*(?:\([^()\n]*\))?)[^\S\n]*$'
)
_HAS_INCLUDE = re.compile(
    r'__has_include(_next)?(?:__)?[^\S\n]*\(?[^\S\n]*(?:<([^>\n]*)>|"([^"\n]*)"|([^)\n]*))'
)


def scan(text: str) -> Scan:
    """Scan a source or a header. Never fails: text that is not C++ has no includes."""
    text = "\n" + text.replace("\r\n", "\n").removeprefix("\ufeff")
    found = _scan(SPLICE.sub("", text))
    if re.search(r"\\[ \t]+\n", text):
        # gcc joins such lines and other compilers do not: take what either sees.
        strict = _scan(text.replace("\\\n", ""))
        found = Scan(
            tuple(dict.fromkeys(found.includes + strict.includes)),
            tuple(dict.fromkeys(found.definitions + strict.definitions)),
        )
    return found


def _blanked(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == "/":
        return " "
    if token[0] in "#%?":
        return re.sub(BLOCK_COMMENT, _unless_in_name, token)
    return '""' if match["delimiter"] is not None else token


def _unless_in_name(comment: re.Match[str]) -> str:
    """Return a blank for a comment in an include; `/*` inside the header's name is kept."""
    before = comment.string[: comment.start()]
    return comment[0] if "<" in before or '"' in before else " "


def _scan(text: str) -> Scan:
    includes: dict[Include, None] = {}
    definitions: dict[Definition, None] = {}
    for match in _directives(text):
        word, rest = match[1], match[2]
        if word in ("include", "include_next", "import"):
            includes[_include(word, rest)] = None
            continue
        if word == "define" and (found := _DEFINITION.match(rest)):
            parameters = None if found[2] is None else tuple(re.findall(r"\w+", found[2]))
            definitions[Definition(found[1], parameters, found[3].strip())] = None
        for test in _HAS_INCLUDE.finditer(rest):
            include = _has_include(test)
            # In a definition it may be the definition's own parameter.
            if include.name or word != "define":
                includes[include] = None
    kept = (i for i in includes if i.name or re.match(r"[A-Za-z_]", i.macro))
    return Scan(tuple(kept), tuple(definitions))


def _directives(text: str) -> Iterator[re.Match[str]]:
    """Yield the directives of a text, without comments."""
    if "/*" in text or 'R"' in text:
        yield from _DIRECTIVE.finditer(TOKENS.sub(_blanked, text))
        return
    # No token spans lines here, so only the directives need to be tokenised: most of a large header
    # is not.
    for match in _DIRECTIVE.finditer(text):
        yield from _DIRECTIVE.finditer(TOKENS.sub(_blanked, "\n" + match[0].lstrip()))


def _include(word: str, rest: str) -> Include:
    following = word == "include_next"
    if (named := _HEADER.match(rest)) is None:
        return Include("", False, following, rest.strip())
    return Include(named[1] or named[2] or "", named[2] is not None, following)


def _has_include(test: re.Match[str]) -> Include:
    name = test[2] or test[3] or ""
    macro = "" if name else (test[4] or "").strip()
    return Include(name, test[3] is not None, bool(test[1]), macro)


_CALL = re.compile(r"([A-Za-z_]\w*)\s*(?:\(([^()]*)\))?")


class Macros:
    """The macros of a set of texts, each with all of its definitions."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Definition, None]] = {}

    def add(self, definition: Definition) -> None:
        """Add a definition."""
        self._known.setdefault(definition.macro, {})[definition] = None

    def headers(self, text: str) -> list[tuple[str, bool]]:
        """Return (name, quoted) of the headers that a computed include can name."""
        found: dict[tuple[str, bool], None] = {}
        seen = {text}
        for call in (queue := [text]):
            if header := _HEADER.fullmatch(call):
                found[(header[1] or header[2] or "", header[2] is not None)] = None
            elif match := _CALL.fullmatch(call):
                for definition in self._known.get(match[1], ()):
                    expanded = _expand(definition, match[2])
                    if expanded is not None and expanded not in seen and len(seen) < 1000:
                        seen.add(expanded)
                        queue.append(expanded)
        return list(found)


def _expand(definition: Definition, arguments: str | None) -> str | None:
    """Return the body with its parameters replaced; None if the call has other arguments."""
    if definition.parameters is None:
        return definition.body if arguments is None else None
    values = [value.strip() for value in (arguments or "").split(",")] if arguments else []
    if arguments is None or len(values) != len(definition.parameters):
        return None
    by_name = dict(zip(definition.parameters, values, strict=True))
    if definition.body.startswith("#"):
        value = by_name.get(definition.body[1:].strip())
        return None if value is None else f'"{value}"'
    if definition.body.startswith('"'):
        return definition.body
    return re.sub(r"[A-Za-z_]\w*", lambda m: by_name.get(m[0], m[0]), definition.body)
