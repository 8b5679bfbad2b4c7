"""What a pattern of a manifest matches below a directory: `*`, `?`, `[…]`, and `**` for any depth.

The names are those of Python's `glob`, but to look costs what is there and not what the pattern
says: a directory is read once, however many ways through `**` lead to it; one that a link leads
back to is not entered again; and after so many names it is an error. The directories that were
looked into come with the answer: a new file in any other one matches nothing.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct, field

from tilusbuild.runtime.places import is_within

MAX_NAMES = 200_000
"""The names that one pattern may look at."""
_MAGIC = re.compile(r"[*?[]")
_ANY_DEPTH = "**"


class PatternTooWideError(Exception):
    """A pattern looks at more names, or matches more files, than it may; `what` says which."""

    def __init__(self, pattern: str, what: str) -> None:
        super().__init__(f'"{pattern}" {what}')
        self.pattern = pattern


class Matches(Struct):
    """The names, sorted and relative to the root, of files and of directories; and the directories
    that were looked into, by path."""

    names: list[str] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)


def matching(root: str, pattern: str) -> Matches:
    """Return what matches. Raises `PatternTooWideError`."""
    search = _Search(root, pattern)
    pending = [_Place("", search.closed([0]), ())]
    while pending:
        pending += search.enter(pending.pop())
    search.found.names.sort()
    return search.found


class _Place(NamedTuple):
    """A directory, the numbers of the pattern's parts that may match in it, and the real paths of
    those that links led away from."""

    name: str
    at: frozenset[int]
    left: tuple[str, ...]


class _Search:
    def __init__(self, root: str, pattern: str) -> None:
        self.found = Matches()
        self._root = root
        self._pattern = pattern
        self._parts = [part for part in pattern.split("/") if part]
        self._matches = [re.compile(fnmatch.translate(part)).match for part in self._parts]
        self._listed = {n for n, part in enumerate(self._parts) if _MAGIC.search(part)}
        self._looked = 0

    def closed(self, at: Iterable[int]) -> frozenset[int]:
        """Add the parts that may match as well: `**` may stand for no directory."""
        every = set(at)
        for number in sorted(every):
            while number < len(self._parts) - 1 and self._parts[number] == _ANY_DEPTH:
                number += 1
                every.add(number)
        return frozenset(every)

    def enter(self, place: _Place) -> Iterator[_Place]:
        """Take what matches in one directory, and yield those below it to go on in."""
        path = os.path.join(self._root, place.name)
        self.found.directories.add(os.path.normpath(path))
        for name, after, is_directory, linked in self._steps(path, place.at):
            whole = os.path.join(place.name, name)
            if len(self._parts) in after:
                self.found.names.append(whole)
            below = after - {len(self._parts)}
            if not below or not is_directory:
                continue
            left = place.left
            if linked:
                left = (*left, os.path.realpath(path))
                real = os.path.realpath(os.path.join(path, name))
                if any(is_within(each, real) for each in left):
                    continue  # it leads back
            yield _Place(whole, below, left)

    def _steps(
        self, path: str, at: frozenset[int]
    ) -> Iterator[tuple[str, frozenset[int], bool, bool]]:
        """Yield names in a directory, each once: the parts that may match below it, whether it is a
        directory, and whether it is a link that `**` or a like found."""
        named = {number for number in at if number < len(self._parts)} - self._listed
        steps = {self._parts[number]: set[int]() for number in named}
        for number in named:
            steps[self._parts[number]].add(number + 1)
        listed = at & self._listed
        for entry in self._entries(path) if listed else ():
            after = {*self._after(entry.name, listed), *steps.pop(entry.name, ())}
            if after:
                is_directory, linked = _kind(entry)
                yield entry.name, self.closed(after), is_directory, linked
        for name, after in steps.items():
            there = os.path.join(path, name)
            if os.path.lexists(there):
                yield name, self.closed(after), os.path.isdir(there), False

    def _after(self, name: str, at: Iterable[int]) -> Iterator[int]:
        for number in at:
            part = self._parts[number]
            if name.startswith(".") and not part.startswith("."):
                continue  # as the shell does it
            if part == _ANY_DEPTH:
                yield from (number, number + 1)
            elif self._matches[number](name):
                yield number + 1

    def _entries(self, path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._looked += 1
                    if self._looked > MAX_NAMES:
                        what = f"looks at more than {MAX_NAMES:,} names in {self._root}"
                        raise PatternTooWideError(self._pattern, what)
                    yield entry
        except OSError:
            return


def _kind(entry: os.DirEntry[str]) -> tuple[bool, bool]:
    try:
        return entry.is_dir(), entry.is_symlink()
    except OSError:
        return False, False
