"""What each part of a plan depends on, and which parts a set of changes is about. Pure.

A part is the manifest, the tools, or one script for one target. A file counts by its content; of a
folder only the names in it count, and of those only the ones that the part asks for, so that saving
an unrelated file beside a template plans nothing again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MANIFEST = ("manifest",)
TOOLS = ("tools",)
REFERENCES = ("references",)

Part = tuple[str, ...]
"""`MANIFEST`, `TOOLS`, `REFERENCES`, or a script and a target."""

_DROPPING = re.compile(
    r"""\..*\.sw[a-z]      # vim's swap files
    | .*~                  # backups
    | \d{4,5}              # vim tries whether it can write: 4913, 5036, ...
    | \.\#.* | \#.*\#      # Emacs' locks and autosaves
    | .*___jb_(?:tmp|old)___
    | \.goutputstream-.*
    | .*\.kate-swp
    | sed[A-Za-z0-9]{6}    # sed -i
    """,
    re.VERBOSE,
)


def is_dropping(name: str) -> bool:
    """Whether a file's name is one that editors give to files of their own."""
    return _DROPPING.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Change:
    """A path that is not what it was. `names` came to a folder or went from it; None for a file,
    and for what became a file or a folder."""

    path: str
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a part depends on."""

    paths: frozenset[str] = frozenset()
    """Files and folders, also such that are not there yet."""
    names: frozenset[str] | None = None
    """What it asks for in the folders; None is anything."""

    def touched(self, change: Change) -> bool:
        """Whether a change is about this part."""
        if change.path not in self.paths:
            return False
        if change.names is None or self.names is None:
            return True
        return not self.names.isdisjoint(change.names)


def affected(needs: Mapping[Part, Needs], changes: Mapping[str, Change]) -> dict[Part, list[str]]:
    """The parts that changes are about, with the paths that make them so."""
    found: dict[Part, list[str]] = {}
    for part, each in needs.items():
        if why := [path for path, change in changes.items() if each.touched(change)]:
            found[part] = why
    return found
