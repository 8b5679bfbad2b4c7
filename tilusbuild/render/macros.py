"""The headers that names made by macros can mean: `#include STR(NAME.h)`, `__has_include(CONFIG)`.

No macro is expanded. Whatever compilers make of an operand consists of words that stand in it, or
in a definition that it can come to, of digits and of blanks: `#` and `##` put words together, and
`__LINE__` is a number. So each file is taken whose name can be spelled with these (`spelled`), in
any branch, with any of a macro's definitions. A name that stands in a definition as a whole, where
nothing is put together, is taken as it is.

The price: some headers too many for a source that asks so, and a rebuild when one of them is
edited. A part of a name that only a macro of the toolkit or of the system spells, other than
digits, is not known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tilusbuild.render.preprocessor import ASKS, HEADER, Include

_UNIVERSAL = r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}"
_WORD = rf"(?:[\w$]|{_UNIVERSAL})+"
_WORDS = re.compile(_WORD)
_PIECES = re.compile(rf"{_WORD}|\S")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(HEADER)
_CALL = re.compile(rf"({_WORD})\s*\(")
_DEFINITION = re.compile(rf"({_WORD})(?:\(([^)]*)\))?(.*)")
_PASTES = re.compile(r"##|%:%:|\?\?=\?\?=")
_FREE = frozenset("0123456789 ")


class Asked(NamedTuple):
    """What an operand or a condition can ask for."""

    names: frozenset[Include]
    """The names that stand there as a whole."""
    pieces: tuple[str, ...] = ()
    """What other names can consist of; () if there are none."""
    next: bool = False
    """Whether any directory of the search path may be meant, as of `__has_include_next`."""


class _Text(NamedTuple):
    """What a macro stands for, or an operand."""

    body: str
    parameters: frozenset[str] = frozenset()

    def words(self) -> set[str]:
        """Return the words that may be macros."""
        return _spellings(_WORDS.findall(_STRING.sub(" ", self.body))) - self.parameters


class Macros:
    """The macros of a set of texts, each with all of its definitions."""

    def __init__(self) -> None:
        self._known: dict[str, dict[_Text, None]] = {}
        self._suspects: set[str] = set()

    def define(self, definition: str) -> None:
        """Add what stands after a `#define`."""
        if (found := _DEFINITION.match(definition)) is None:
            return
        parameters = frozenset(_WORDS.findall(found[2] or ""))
        for name in _spellings([found[1]]):
            self._known.setdefault(name, {})[_Text(found[3], parameters)] = None
        name, dollar, rest = definition.partition("$")
        if dollar and name in _spellings([found[1]]):  # NVRTC lets no name have one
            self._known.setdefault(name, {})[_Text(dollar + rest)] = None

    def settle(self, directives: Iterable[str]) -> None:
        """Find the macros by which a condition may ask for a header, when all are defined;
        `directives` are what is asked about."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        pastes: set[str] = set()
        words = {word for each in directives for word in _Text(each).words()}
        for name, texts in self._known.items():
            for text in texts:
                for word in text.words():
                    users[word].add(name)
                if _PASTES.search(text.body):
                    pastes.add(name)
        asks = {name for name, texts in self._known.items() if any(map(_asks, texts))}
        self._suspects = _with_users(asks, users)
        # In a vendored library many conditions put words together, and hardly ever to one of these.
        words |= users.keys()
        if any(any(spelled([name], words - {name})) for name in self._suspects):
            self._suspects = _with_users(self._suspects | pastes, users)

    def condition(self, text: str) -> Asked | None:
        """Return what an `#if` can ask for; None if it asks for nothing."""
        if not ASKS.search(text) and _Text(text).words().isdisjoint(self._suspects):
            return None
        texts, pieces = self._reached(text)
        if not any(map(_asks, texts)):
            return None
        return _any(texts, pieces)._replace(next=any("_next" in each.body for each in texts))

    def operand(self, text: str) -> Asked:
        """Return what the operand of an include can come to."""
        texts, pieces = self._reached(text)
        for each in texts:
            rest = _LITERAL.sub(" ", each.body)
            named = _LITERAL.findall(each.body)
            if (
                any(sign in rest for sign in '#%<>"')
                or not _Text(rest).words() <= self._known.keys()
                or not all(self._is_written_out(name, each) for name, _ in named)
            ):
                return _any(texts, pieces)
        return Asked(frozenset(_named(texts)))

    def _is_written_out(self, name: str, text: _Text) -> bool:
        """Return whether no word of `<name>` is a macro or a parameter."""
        words = _spellings(_WORDS.findall(name))
        return words.isdisjoint(text.parameters) and words.isdisjoint(self._known)

    def _reached(self, operand: str) -> tuple[list[_Text], set[str]]:
        """Return the texts that an operand can come to, and their pieces."""
        texts: dict[_Text, None] = {}
        queue = [_Text(operand)]
        seen: set[str] = set()
        pieces: set[str] = set()
        pastes = False
        while queue:
            names: set[str] = set()
            for text in queue:
                texts[text] = None
                words = text.words()
                body = _STRING.sub(" ", text.body)
                pieces |= words | (set(_PIECES.findall(body)) - text.parameters)
                pastes = pastes or self._pastes(body, text.parameters)
                names |= words & self._known.keys()
            names -= seen
            if pastes and not names:
                names = {n for n in spelled(self._known, pieces) if n not in seen}
            seen |= names
            queue = [each for name in names for each in self._known[name]]
        return list(texts), pieces

    def _pastes(self, body: str, parameters: frozenset[str]) -> bool:
        """Return whether words are put together to one; so may a macro that is not known."""
        calls = set(_CALL.findall(body)) - parameters - self._known.keys()
        return _PASTES.search(body) is not None or any(
            call != "defined" and not call.startswith("__has_") for call in calls
        )


def spelled(names: Iterable[str], pieces: Iterable[str]) -> Iterator[str]:
    """Yield the names that can be put together of pieces, digits and blanks."""
    parts = (*pieces, *_FREE)
    # Most names are none, and this is a call for each.
    for name in names:
        if name.startswith(parts) and name.endswith(parts) and _spells(name, parts):
            yield name


def _spells(name: str, parts: tuple[str, ...]) -> bool:
    ends = {0}
    for start in range(len(name)):
        if start in ends:
            ends.update(start + len(part) for part in parts if name.startswith(part, start))
    return len(name) in ends


def _spellings(words: Iterable[str]) -> set[str]:
    """Return words also with their characters in place of `\\u00c4`, and the parts around `$`,
    which only some compilers take for a letter."""
    found = set(words)
    for word in list(found):
        if "\\" in word:
            found.add(re.sub(_UNIVERSAL, lambda m: _character(m[0]), word))
        if "$" in word:
            found.update(filter(None, word.split("$")), "$")
    return found


def _character(escaped: str) -> str:
    code = int(f"0x{escaped[2:]}", 0)
    return chr(code) if code < 0x110000 else escaped


def _any(texts: Iterable[_Text], pieces: Iterable[str]) -> Asked:
    return Asked(frozenset(_named(texts)), tuple(sorted(pieces)))


def _named(texts: Iterable[_Text]) -> Iterator[Include]:
    for text in texts:
        for found in _LITERAL.finditer(text.body):
            yield _include(found, following=False)


def _include(found: re.Match[str], following: bool) -> Include:
    return Include(found[1] or found[2], found[2] is not None, following)


def _asks(text: _Text) -> bool:
    return ASKS.search(text.body) is not None


def _with_users(names: set[str], users: Mapping[str, set[str]]) -> set[str]:
    """Return macros with those that come to one of them."""
    queue = list(names)
    for name in queue:
        queue += users.get(name, set()) - set(queue)
    return set(queue)
