"""The files of a library: what its patterns match, and the two scripts that it stands for.

Each is asked of the file system whenever a manifest is loaded, also when its checks are remembered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tilusbuild.state.patterns import PatternTooWideError, matching

if TYPE_CHECKING:
    from tilusbuild.manifest.library import LibrarySection
    from tilusbuild.manifest.script import ScriptSection

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


def scripts_of(
    root: str,
    libraries: Mapping[str, LibrarySection],
    sources: Callable[..., ScriptSection],
    link: Callable[..., ScriptSection],
) -> dict[str, ScriptSection]:
    """Return the scripts that libraries stand for, by name, sources before what links them; the
    two make them of their values."""
    found: dict[str, ScriptSection] = {}
    for name, library in libraries.items():
        files = files_of(root, library.sources)
        if files:
            found[name + SOURCES] = sources(
                targets=library.targets,
                template=files[0],
                library=name,
                include_dirs=library.include_dirs,
                headers=library.headers,
                flags=library.flags,
                unsafe_flags=library.unsafe_flags,
                defines=library.defines,
                files=files,
                rdc=library.rdc,
            )
        found[name] = link(
            targets=library.targets,
            template="",
            description=library.description,
            owner=library,
            libs=files_of(root, library.objects),
        )
    return found
