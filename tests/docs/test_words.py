"""The words that docs/glossary.md forbids are in no help, message, docstring, comment or page."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

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
            if kind in LITERALS and (found := TEXT.search(token.string)):
                yield token.start[0] + token.string[: found.start()].count("\n"), found[0]
            elif kind == "NAME" and NAME.search(token.string):
                yield token.start[0], token.string


@pytest.mark.parametrize("text", ["Nobody is told", "x is no struct"])
def test_found(text: str) -> None:
    assert TEXT.search(text)


@pytest.mark.parametrize("text", ["there is no lock", "it is no longer so", "a telling name"])
def test_allowed(text: str) -> None:
    assert not TEXT.search(text)


def test_code() -> None:
    found = [f"{path}:{line}: {word}" for path in SOURCES for line, word in texts(path)]
    assert found == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages(path: Path) -> None:
    text = path.read_text().partition(SECTION)[0]
    assert [found[0] for found in TEXT.finditer(text)] == []
