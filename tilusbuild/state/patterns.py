"""What a pattern of a manifest matches below a directory: `*`, `?`, `[…]`, and `**` for any depth.

The names are those of Python's `glob`, but to look costs what is there and not what the pattern
says: a directory is read once, however many ways through `**` lead to it; one that a link leads
back to is not entered again, nor is a cache below it, by its CACHEDIR.TAG; and after so many names
it is an error. The directories that were looked into come with the answer: a new file in any other
one matches nothing.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field

from tilusbuild.runtime.where import is_within

# The names that one pattern may look at: `**` above a home directory would never end.
MAX_NAMES = 200_000
_MAGIC = re.compile(r"[*?[]")
_ANY_DEPTH = "**"
_CACHE_TAG = "CACHEDIR.TAG"


class PatternTooWideError(Exception):
    """A pattern looks at more names, or matches more files, than it may; `reason` says which."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f'"{pattern}" {reason}')
        self.pattern = pattern
        self.reason = reason


class Matches(Struct):
    """The names, sorted and relative to the root, of files and of directories; and the directories
    that were looked into, by path."""

    names: list[str] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)


class _Search(NamedTuple):
    """A directory in which a part of the pattern is to match."""

    name: str
    """The directory, relative to the root."""
    part_index: int
    link_origins: tuple[str, ...]
    """The real paths of the directories whose links led here."""


def find_matches(root: str, pattern: str, *, hidden_names: bool = False) -> Matches:
    """Return the files and directories that a pattern matches below `root`, and the directories
    that were read. `hidden_names`: a `**` at the end matches names with a leading dot, too, but
    leads into none of them. Raises `PatternTooWideError`."""
    parts = [part for part in pattern.split("/") if part]
    part_matchers = [re.compile(fnmatch.translate(part)).match for part in parts]
    matched_names: set[str] = set()
    directories: set[str] = set()
    visited: set[tuple[str, int]] = set()
    listings: dict[str, list[os.DirEntry[str]]] = {}
    pending = [_Search("", part_index=0, link_origins=())] if parts else []
    name_count = 0
    while pending:
        name, part_index, link_origins = pending.pop()
        if (name, part_index) in visited:
            continue
        visited.add((name, part_index))
        path = os.path.join(root, name)
        directories.add(os.path.normpath(path))
        part = parts[part_index]
        is_last = part_index == len(parts) - 1
        is_deep = part == _ANY_DEPTH
        if is_deep and not is_last:
            # `**` may stand for no directory: then the next part matches in this one.
            pending.append(_Search(name, part_index + 1, link_origins))
        # A part without `*`, `?` and `[` is looked up by its name, which works also in a directory
        # that cannot be listed.
        if not _MAGIC.search(part):
            literal_path = os.path.join(path, part)
            relative = os.path.join(name, part)
            if is_last and os.path.lexists(literal_path):
                matched_names.add(relative)
            elif not is_last and os.path.isdir(literal_path):
                pending.append(_Search(relative, part_index + 1, link_origins))
            continue
        # Each directory is listed once, though several ways through `**` lead to it.
        if name not in listings:
            listings[name] = _list_entries(path, is_root=not name)
            name_count += len(listings[name])
            if name_count > MAX_NAMES:
                reason = f"looks at more than {MAX_NAMES:,} names in {root}"
                raise PatternTooWideError(pattern, reason)
        for entry in listings[name]:
            relative = os.path.join(name, entry.name)
            is_match = _matches_part(entry.name, part, part_matchers[part_index])
            # `**` matches every name that has no leading dot.
            if is_last and (is_match or (hidden_names and is_deep)):
                matched_names.add(relative)
            can_enter = is_match and (is_deep or not is_last)
            entry_origins = _follow_entry(path, entry, link_origins) if can_enter else None
            if entry_origins is not None:
                # `**` is to match again below: it stands for any number of directories.
                next_index = part_index if is_deep else part_index + 1
                pending.append(_Search(relative, next_index, entry_origins))
    return Matches(sorted(matched_names), directories)


def _matches_part(name: str, part: str, match: Callable[[str], object]) -> bool:
    """Return whether a name matches one part of a pattern. A leading dot must be written, as in a
    shell."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == _ANY_DEPTH or match(name) is not None


def _follow_entry(
    path: str, entry: os.DirEntry[str], link_origins: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the real directories that links have led away from, with the one of this entry added;
    None for an entry that is not a directory, or leads back into one of them."""
    if not entry.is_symlink():
        return link_origins if entry.is_dir() else None
    if not os.path.isdir(entry.path):
        return None
    entry_origins = (*link_origins, os.path.realpath(path))
    entry_target = os.path.realpath(entry.path)
    leads_back = any(is_within(origin, entry_target) for origin in entry_origins)
    return None if leads_back else entry_origins


def _list_entries(path: str, *, is_root: bool) -> list[os.DirEntry[str]]:
    """Return the entries of a directory; none if it cannot be read, or is a cache and not the root.

    At most `MAX_NAMES` and one more are read, so that the caller sees that there are too many.
    """
    try:
        with os.scandir(path) as entries:
            listing = list(islice(entries, MAX_NAMES + 1))
    except OSError:
        return []
    is_cache = not is_root and any(entry.name == _CACHE_TAG for entry in listing)
    return [] if is_cache else listing
