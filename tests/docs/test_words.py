"""The words that docs/glossary.md forbids are in no help, message, docstring, comment or page.

Pages, messages, help and the docstrings of public names have no phrase of `PHRASES` either: each
has a plainer form (`You need no …`). Only prose counts: no code, no headings. docs/manifest.md and
the schema of the events are made of docstrings.
"""

import ast
import inspect
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilusbuild
from support.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION = "## Words that are not used"
PAGES = sorted(
    (
        {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")}
        | {*ROOT.glob("docs/*.json")}
    )
    - {ROOT / "CHANGELOG.md"}
)
SOURCES = sorted((ROOT / "tilusbuild").rglob("*.py"))
LITERALS = ("STRING", "FSTRING_MIDDLE", "COMMENT")
PROSE = [page for page in PAGES if page.name != "CONTRIBUTING.md"]
CODE = [*SOURCES, *(ROOT / "tilusbuild").rglob("*.c"), *(ROOT / "tilusbuild/page").glob("*.js")]
PHRASES = re.compile(
    r"""
    (?:^|[.:;]\ |\|\ |\*\*)(?:What|Who|Whoever|Whatever)\ (?![^.|]*\?)  # unless it is a question
    | \b(?:is|are|was|were|be|been|being)\ (?:said|told)\b
    | \bof\ which\b
    | \bby\ (?:itself|themselves)\b
    | (?<!soon\ )(?<!long\ )(?<!far\ )\bas\ (?:it\ is|they\ are)\b
    | \b(?:do|does|did)\ without\b
    | \b(?:is|are)\ none\ of\b
    | (?<!there\ )\b(?:is|are|was|were)\ (?:not\ )?there\b(?![^.|]*\?)
    | \b(?:is|are)\ of\ (?:an)?other\b
    | \b(?:an)?other\ (?:\w+\ ){1,2}than\b
    | \b(?:is|are)\ in\ no\b
    | \bnot\ those\b
    | \b(?:has|have)\ no\ longer\b
    | \bany\ more\b
    | \b(?:one|objects?|files?|lines?)\ an?\ (?:item|kernel|line|object|pipeline|program|source)\b
    | \bstands?\b(?!\ for|-)
    | \bmend(?:s|ed|ing)?\b
    """,
    re.VERBOSE,
)


def forbidden() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of words in a text, and of parts of a name."""
    rows = GLOSSARY.read_text().partition(SECTION)[2].splitlines()
    first = "".join(row.split("|")[1] for row in rows if row.startswith("| `"))
    listed = re.findall("`([^`]+)`", first)
    names = "|".join(word for word in listed if word.endswith("_"))
    verbs = "|".join(word for word in listed if " " in word)
    plain = "|".join(word for word in listed if " " not in word and not word.endswith("_"))
    more = "longer|more|larger|less|newer|older|other"
    text = rf"\b(?i:{plain})\b|(?<!here )\b(?:{verbs}) (?!{more})"
    return re.compile(text), re.compile(rf"(?:^|_)(?:{names})")


TEXT, NAME = forbidden()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            kind = tokenize.tok_name[token.type]
            if kind in LITERALS and (match := TEXT.search(token.string)):
                yield token.start[0] + token.string[: match.start()].count("\n"), match[0]
            elif kind == "NAME" and NAME.search(token.string):
                yield token.start[0], token.string


def prose(page: str) -> Iterator[str]:
    """Yield the paragraphs, list items and table rows of a page, each as one line."""
    page = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"`[^`]*`", "`…`", page)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.)(?:\s|-))", page):
        if not re.match(r"#| {4}", part.strip("\n")):
            yield " ".join(re.sub(r"^\s*(?:-|\*|\d+\.)\s", "", part).split())


def strings(path: Path) -> Iterator[str]:
    """Yield what a file may print, help included: no docstrings, and `…` for a value in a string.
    A message and its clauses begin as sentences do; texts of many lines are C and shell."""
    quoted = re.findall(r'"((?:[^"\\\n]|\\.)+)"', path.read_text())
    for text in python_strings(path) if path.suffix == ".py" else quoted:
        if text.count("\n") < 6:
            yield re.sub(r"(?:^|[.:;] )[a-z]", lambda first: first[0].upper(), text)


def python_strings(path: Path) -> Iterator[str]:
    apart: set[ast.expr] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr):
            apart.add(node.value)
        elif isinstance(node, ast.JoinedStr) and node not in apart:
            apart.update(node.values)
            yield "".join(
                str(v.value) if isinstance(v, ast.Constant) else "`…`" for v in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in apart:
            yield node.value


def docstrings() -> Iterator[str]:
    for thing in (getattr(tilusbuild, name) for name in tilusbuild.__all__):
        members = [value for name, value in vars(thing).items() if not name.startswith("_")]
        yield from (inspect.getdoc(item) or "" for item in [thing, *members])


def phrases(*texts: str) -> list[str]:
    return [part for text in texts for part in prose(text) if PHRASES.search(part)]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        *(("Nobody is told", True), ("x is no struct", True), ("there is no lock", False)),
        *(("it is no longer so", False), ("a telling name", False)),
    ],
)
def test_a_word_is_found(text: str, is_found: bool) -> None:
    assert bool(TEXT.search(text)) == is_found


def test_code() -> None:
    locations = [f"{path}:{line}: {word}" for path in SOURCES for line, word in texts(path)]
    assert locations == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages(path: Path) -> None:
    text = path.read_text().partition(SECTION)[0]
    assert [match[0] for match in TEXT.finditer(text)] == []


FOUND = (
    "It ends. What remains is retried.",
    "- Who compiles a program\n  holds its lock.",
    "The file is not there.",
    "| `x` | What it is |",
    "the files of\nwhich it is made",
    "A problem is said once.",
    "Each is compiled by itself.",
    "The file is copied as it\nis.",
    "A script does without it.",
)
NOT_FOUND = (
    "## What it is\n\nA package is a list.",
    "| [Packages](x.md) | What does a package contain, and who reads it? |",
    "```\nWhat is told by itself\n```",
    "As soon as it is written, `tool --what is said`.",
)


def test_a_phrase_is_found_in_prose_alone() -> None:
    assert [text for text in (*FOUND, *NOT_FOUND) if phrases(text)] == [*FOUND]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path: Path) -> None:
    assert phrases(*([path.read_text()] if path.suffix == ".md" else strings(path))) == []


def test_messages_and_public_docstrings_are_plain() -> None:
    assert [(path, matches) for path in CODE if (matches := phrases(*strings(path)))] == []
    assert phrases(*docstrings()) == []
