"""JSON from anybody, read into values whose form was asked for: what is not asked for is refused.

Objects have exactly the keys that are named, each once. Numbers are whole and not negative. Nesting
is bounded by what is asked for, and by the interpreter before that. Only `ListMalformed` is raised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from tilusbuild.cache import layout
from tilusbuild.package.errors import ListMalformed

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", re.ASCII)
_DIGITS = 16
_SPARSEST = 16
"""Bytes that an object or array of a list has at least, on average: an empty one takes two bytes of
text and sixty of memory."""
_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=str)


def decode(data: bytes) -> Any:
    """The JSON value. Raises `ListMalformed`, whatever the bytes are."""
    if data.count(b"{") + data.count(b"[") > 1000 + len(data) // _SPARSEST:
        raise ListMalformed("it is nested too deeply, or is made of nothing but brackets")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise ListMalformed("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ListMalformed(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise ListMalformed(f"it is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ListMalformed("an object has a key twice")
    return found


def _whole(text: str) -> int:
    if len(text) > _DIGITS or text.startswith("-"):
        _no_number(text)
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ListMalformed(f"{text:.40} is not a number that a list can hold")


@dataclass(frozen=True, slots=True)
class Field:
    """A value, and where it stands: for saying so when it is not what it should be."""

    where: str
    value: Any

    def table(self, *keys: str) -> tuple[Field, ...]:
        """The values of an object with these keys and no other, in this order."""
        value = self._an_object()
        if value.keys() != set(keys):
            odd = min(set(keys) ^ value.keys())
            self._refuse(f"has {'no' if odd in keys else 'an unknown'} key {odd!r:.60}")
        return tuple(Field(f"{self.where}.{key}".lstrip("."), value[key]) for key in keys)

    def mapping(self, most: int = 1_000_000) -> Iterator[tuple[str, Field]]:
        """The items of an object whose keys are free."""
        value = self._an_object()
        if len(value) > most:
            self._refuse(f"has {len(value)} entries, more than {most}")
        for key, each in value.items():
            yield key, Field(f"{self.where}.{key:.100}", each)

    def items(self) -> Iterator[Field]:
        """The items of an array."""
        if not isinstance(self.value, list):
            self._refuse("is no array")
        for index, each in enumerate(self.value):
            yield Field(f"{self.where}[{index}]", each)

    def text(self, longest: int) -> str:
        """A string of characters that UTF-8 has."""
        if not isinstance(self.value, str):
            self._refuse("is no string")
        if len(self.value) > longest:
            self._refuse(f"is longer than {longest}")
        if not self.value.isascii() and any("\ud800" <= c <= "\udfff" for c in self.value):
            self._refuse("holds half a character")
        return self.value

    def name(self) -> str:
        """A name or version: letters, digits, `_`, `.`, `+` and `-`."""
        return self._matching(_NAME, "name")

    def version(self) -> str:
        """Numbers with dots between."""
        return self._matching(_VERSION, "version")

    def digest(self) -> str:
        """64 hex digits."""
        found = self.text(64)
        if not layout.is_hash(found):
            self._refuse("is no sha256")
        return found

    def integer(self, most: int) -> int:
        """A whole number from 0."""
        if type(self.value) is not int:
            self._refuse("is no whole number")
        if not 0 <= self.value <= most:
            self._refuse(f"is more than {most}")
        return self.value

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            self._refuse("is neither true nor false")
        return self.value

    def one_of(self, *choices: _Word) -> _Word:
        """One of some words."""
        found = self.text(200)
        chosen = next((choice for choice in choices if choice == found), None)
        if chosen is None:
            self._refuse(f"is {found!r:.60}, not one of {', '.join(choices)}")
        return chosen

    def optional(self, read: Callable[[Field], _T]) -> _T | None:
        """What `read` reads, or null."""
        return None if self.value is None else read(self)

    def _an_object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self._refuse("is no object")
        return self.value

    def _matching(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.text(200)
        if not pattern.fullmatch(found):
            self._refuse(f"is {found!r:.60}, which is no {what}")
        return found

    def _refuse(self, problem: str) -> NoReturn:
        raise ListMalformed(f"{self.where or 'the list'} {problem}")
