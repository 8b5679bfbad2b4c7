"""The files of a library: what its patterns match.

It is asked of the file system whenever a manifest is loaded, also when its checks are remembered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tilusbuild.state.patterns import PatternTooWideError, matching

if TYPE_CHECKING:
    from tilusbuild.manifest.library import LibrarySection

SOURCES = ".sources"
"""What the name of the script of a library's sources ends in."""
SOURCE = "source"
"""Its one parameter."""
LANGUAGES = {".cu": "cu", ".c": "c", **dict.fromkeys((".cc", ".cpp", ".cxx"), "c++")}
"""What a source is compiled as, by its suffix."""
LINKED = {"shared": (".o", ".a"), "static": (".o",)}
"""What `objects` may hold, by kind: an archive of archives is none."""


def files_matching(root: str, pattern: str) -> tuple[str, ...]:
    """Return the files that a pattern matches, sorted, relative to `root`. Raises
    `PatternTooWideError`."""
    found = matching(root, pattern).names
    return tuple(name for name in found if os.path.isfile(os.path.join(root, name)))


def files_of(root: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that patterns match, each once, in the patterns' order; none of one that is
    too wide, which is a mistake of its own (`check_libraries`)."""
    found: dict[str, None] = {}
    for pattern in patterns:
        with suppress(PatternTooWideError):
            found.update(dict.fromkeys(map(os.path.normpath, files_matching(root, pattern))))
    return tuple(found)


def searched(root: str, library: LibrarySection) -> Iterator[str]:
    """Yield the directories in which a new file could match a pattern, by path."""
    for pattern in (*library.sources, *library.objects):
        with suppress(PatternTooWideError):
            yield from matching(root, pattern).directories
