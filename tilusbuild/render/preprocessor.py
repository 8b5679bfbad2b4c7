"""C++ text as the preprocessor reads it: its comments and strings, and the headers it can include.

A scan finds every `#include`, `#import`, `#embed` and `__has_include` outside comments and strings,
whatever the conditions around them. It is a function of the text alone, so it is remembered by the
text's digest. Where compilers differ (a lone carriage return, a blank after a backslash, trigraphs)
it takes what any of them sees. No macro is expanded: the scan says whether macros make a name, and
not which (`render/headers.py`).
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
_INCLUDE = rf'{BLANK}(?:include_next|include|import|embed){BLANK}(?:<[^>\n]*>|"[^"\n]*")'

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

SPLICE = re.compile(r"\\[ \t\f\v]*\n")
"""A backslash at the end of a line joins it with the next; gcc lets blanks stand between."""


def find_inner_lines(text: str) -> set[int]:
    """Return the lines, counted from 1, that start within a comment, a raw string or a spliced
    line: a directive that is put before such a line would not be one."""
    # Blanks of the same length stand for each splice, so that what it joins is matched as one.
    flat = SPLICE.sub(lambda splice: " " * len(splice[0]), text)
    # Where line 2 starts, line 3, and so on.
    starts = [newline.end() for newline in re.finditer("\n", text)]
    inner_lines = {number for number, start in enumerate(starts, 2) if flat[start - 1] == " "}
    for match in TOKENS.finditer("\n" + flat):
        if match["delimiter"] is not None or match[0].startswith("/*"):
            # The matched text has a newline in front: 1 less is the position in `text`.
            first, last = match.start() - 1, match.end() - 1
            inner_lines |= {line for line, start in enumerate(starts, 2) if first < start < last}
    return inner_lines


class Include(NamedTuple):
    """An include of a name that is written out."""

    name: str
    quoted: bool
    """`"name"`, which is searched for beside the including file first, or `<name>`."""
    next: bool = False
    """`#include_next` and `__has_include_next`: any directory of the search path may be meant."""


class Scan(NamedTuple):
    """The includes of a text, and whether macros make the names of more."""

    includes: tuple[Include, ...]
    is_computed: bool = False
    """Whether macros make a name: in an include, in a condition, or for the assembler."""
    operands: tuple[str, ...] = ()
    """The operands of includes that macros make."""
    climbs: bool = False
    """Whether `..` stands in a definition, in a condition or in such an operand."""


_WORDS = "include_next|include|import|embed|define|if|elif"
_DIRECTIVE = re.compile(
    rf"^[^\S\n]*(?:\#|%:|\?\?=)[^\S\n]*({_WORDS})\b(.*)$",
    re.MULTILINE,
)
_HEADER = r'(?:<([^>\n]+)>|"([^"\n]+)")'
_PLAIN_NAME = re.compile(rf"[^\S\n]*{_HEADER}")
_HAS = r"(?:__has_(?:include(?:_next)?|embed)(?:__)?|\b\w*HAS_INCLUDE)\b"
"""Also a macro with a name such as `FMT_HAS_INCLUDE`: its uses in any text are read as those of
`__has_include`, so that a definition with no more than `__has_include(x)` of its parameter makes no
name. With that of {fmt}, which torch includes, each program would have all of torch's headers."""
_HAS_ANY = re.compile(_HAS)
_HAS_PLAIN_NAME = re.compile(rf"{_HAS}[^\S\n]*\(?[^\S\n]*{_HEADER}")
_DEFINED_HAS = re.compile(rf"\bdefined[^\S\n]*\(?[^\S\n]*{_HAS}")
_DEFINITION = re.compile(r"([\w$]+)(?:\([^\S\n]*(\w+)[^\S\n]*\))?")
"""The macro of a definition, and its parameter where it has one."""
# `#if FMT_HAS_INCLUDE` asks for no name.
_SETTING = re.compile(r"\b\w*HAS_INCLUDE\b(?![^\S\n]*\()")
_ASSEMBLED = re.compile(r"incbin|\.include[^\S\n]*\\\"")
"""The assembler's directives, in strings: macros may stand between their parts."""
_CLIMBS = re.compile(r"(?<!\.)\.\.(?!\.)")
_NUMBERS = re.compile(r"\b\d[\w']*")
_TRIGRAPH = re.compile(r"\?\?([=/'()!<>-])")
_TRIGRAPHS = dict(zip("=/'()!<>-", "#\\^[]|{}~", strict=True))


def scan_text(text: str) -> Scan:
    """Return the scan of a source or a header: the includes that any compiler may see. Never fails:
    text that is not C++ has no includes."""
    text = "\n" + text.replace("\r\n", "\n").replace("\0", " ").removeprefix("\ufeff")
    # Compilers differ in these spellings, so the text is scanned in each way that one may read it.
    readings = [text]
    if "\r" in text:
        readings.append(text.replace("\r", "\n"))
    if "??" in text:
        readings += [
            _TRIGRAPH.sub(lambda trigraph: _TRIGRAPHS[trigraph[1]], reading) for reading in readings
        ]
    # gcc joins lines where a blank follows the backslash, and other compilers do not.
    has_blank = re.search(r"\\[ \t\f\v]+\n", text)
    spliced = [SPLICE.sub("", reading) for reading in readings]
    if has_blank:
        spliced += [reading.replace("\\\n", "") for reading in readings]
    scans = [_scan_reading(reading) for reading in spliced]
    # Nearly every text has one reading: the spellings above are rare.
    if len(scans) == 1:
        return scans[0]
    return Scan(
        tuple(dict.fromkeys(include for scan in scans for include in scan.includes)),
        any(scan.is_computed for scan in scans),
        tuple(dict.fromkeys(operand for scan in scans for operand in scan.operands)),
        any(scan.climbs for scan in scans),
    )


def _blank_token(match: re.Match[str]) -> str:
    """Return what replaces a token before directives are looked for: a blank for a comment, an
    include without comments in it, an empty string for a raw one, and any other string itself."""
    token = match[0]
    if token[0] == "/":
        return " "
    if token[0] in "#%?":
        return re.sub(BLOCK_COMMENT, _blank_comment, token)
    return '""' if match["delimiter"] is not None else token


def _blank_comment(comment: re.Match[str]) -> str:
    """Return a blank for a comment in an include; `/*` inside the header's name is kept."""
    before = comment.string[: comment.start()]
    return comment[0] if "<" in before or '"' in before else " "


def _scan_reading(text: str) -> Scan:
    """Return the scan of one reading of a text, without spliced lines. Its first line is empty.

    An include of a plain name (`<x.h>`, `"x.h"`) goes to `includes`, another one to `operands`.
    Conditions and definitions may have `__has_include(<x.h>)`, whose name is an include, too. If
    `__has_include` is left in one otherwise, macros make the name.
    """
    includes: dict[Include, None] = {}
    operands: dict[str, None] = {}

    def add_include(header: re.Match[str], *, is_next: bool) -> None:
        includes[Include(header[1] or header[2], header[2] is not None, is_next)] = None

    # The assembler reads the files of `.incbin` and `.include`. Macros may make their names.
    is_computed = _ASSEMBLED.search(text) is not None
    climbs = False
    for match in _find_directives(text):
        directive, operand = match[1], match[2].strip()
        is_next = "_next" in directive or "_next" in operand
        has_parent = _CLIMBS.search(operand) is not None
        if directive not in ("define", "if", "elif"):
            if header := _PLAIN_NAME.match(operand):
                add_include(header, is_next=is_next)
            elif re.search(r"[\w$]", operand):
                operands[operand] = None
                climbs |= has_parent
            continue
        climbs |= has_parent
        if "__has_" in operand or "HAS_INCLUDE" in operand:
            for header in _HAS_PLAIN_NAME.finditer(operand):
                add_include(header, is_next=is_next)
            # `defined(__has_include)` asks for no name.
            computed_part = _DEFINED_HAS.sub("0", operand)
            # In a definition the words of a plain name may be the macro's parameters, so it counts
            # as computed.
            if directive != "define":
                computed_part = _SETTING.sub("0", _HAS_PLAIN_NAME.sub("0", computed_part))
            # `#define __has_include(x) 0` defines the word at the start, and does not use it.
            elif definition := _DEFINITION.match(computed_part):
                computed_part = computed_part[definition.end() :]
                if definition[2] and _HAS_ANY.fullmatch(definition[1]):
                    forwarded = rf"__has_include[^\S\n]*\([^\S\n]*{definition[2]}[^\S\n]*\)"
                    computed_part = re.sub(forwarded, "0", computed_part)
            is_computed |= _HAS_ANY.search(computed_part) is not None
    return Scan(tuple(includes), is_computed or bool(operands), tuple(operands), climbs)


def _find_directives(text: str) -> Iterator[re.Match[str]]:
    """Yield the directives of a text, without comments."""
    if "/*" in text or 'R"' in text:
        doubtful_texts: list[str] = []

        def blank_or_doubt(match: re.Match[str]) -> str:
            """Blank a token, and append what follows its first line to `doubtful_texts` if a stray
            quote may have started it."""
            # In `don't /*` the quote is not closed. A compiler may then read `/*` as a part of a
            # character, and the next lines not as a comment: they are scanned as code, too.
            _, newline, next_lines = match[0].partition("\n")
            line_start = max(0, text.rfind("\n", 0, match.start()))
            before = text[line_start : match.start()]
            # Complete strings, and the apostrophes in `1'000`, are not stray quotes.
            before = _NUMBERS.sub("", TOKENS.sub("", before))
            if newline and re.search(r"['\"]", before):
                doubtful_texts.append(f"\n{next_lines}")
            return _blank_token(match)

        yield from _DIRECTIVE.finditer(TOKENS.sub(blank_or_doubt, text))
        for doubtful_text in doubtful_texts:
            yield from _find_directives(doubtful_text)
        return
    # No token spans lines here, so it is enough to tokenise the directives, which are a small part
    # of a large header.
    for match in _DIRECTIVE.finditer(text):
        yield from _DIRECTIVE.finditer(TOKENS.sub(_blank_token, "\n" + match[0].lstrip()))
