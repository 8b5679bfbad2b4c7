"""The closure of a source: the headers that it can reach, and how they lie in the copy.

Headers keep their places relative to each other, so `..`, shadowing and the order of directories
have the same effect in the copy. `render/headers.py` finds them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from tilusbuild.errors import Diagnostic
from tilusbuild.lazy_dataclass import dataclass
from tilusbuild.state.files import sha256_text

MANIFEST = "MANIFEST"
KEEP = ".keep"


@dataclass(frozen=True, slots=True)
class Root:
    """A directory of the include path: `path` on disk, `name` in the copy that a compile sees.

    It belongs to a tree, of which the last `depth` parts of both lead to it: `..` may climb that
    far, since the copy is laid out alike. `inside` makes one.
    """

    name: str
    path: str
    quoted_only: bool = False
    """Whether only `#include "…"` searches it (`-iquote`)."""
    depth: int = 0

    @property
    def tree(self) -> str:
        """The name of the tree."""
        parts = self.name.split("/")
        return "/".join(parts[: len(parts) - self.depth])

    @property
    def base(self) -> str:
        """The directory of the tree."""
        path = self.path
        for _ in range(self.depth):
            path = os.path.dirname(path)
        return path


def inside(tree: str, base: str, directory: str = "", *, quoted_only: bool = False) -> Root:
    """Return the root for `directory` of the tree `tree`, whose directory is `base`. Raises
    `ValueError` for a directory that leads out of it."""
    parts = [part for part in posixpath.normpath(directory or ".").split("/") if part != "."]
    if ".." in parts or directory.startswith("/"):
        raise ValueError(f"{directory} is not inside {base}")
    base = os.path.abspath(base)
    return Root("/".join([tree, *parts]), os.path.join(base, *parts), quoted_only, len(parts))


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a closure: `name` is its path in the copy; `path`, on disk, is never hashed."""

    name: str
    sha256: str
    path: str | None
    """None for an empty file that only makes a directory exist."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The headers that a source can reach, sorted by name."""

    headers: tuple[Header, ...]
    digest: str
    """sha256 of `manifest`: what the directory of the copy is called."""
    notes: tuple[Diagnostic, ...] = ()
    """Includes that the compile will not find, and how to declare them: to be shown if it fails."""
    unmatched: tuple[str, ...] = ()
    """Declared globs that no header matches."""
    probed: tuple[str, ...] = ()
    """Directories in which a new file could change the answer."""
    external: tuple[str, ...] | None = ()
    """Names that no directory has: the toolkit's and the system's; None when they cannot be
    known."""
    shadowing: frozenset[str] = frozenset()
    """Names of files and directories that would shadow a header outside the project, if one of
    `probed` came to have them."""

    @property
    def manifest(self) -> str:
        """One line per header, as sha256sum writes and checks them."""
        return manifest_of(self.headers)


def closure_of(files: Iterable[Header]) -> Closure:
    """Return the closure that holds these files and no other."""
    headers = tuple(sorted(files, key=lambda header: header.name))
    return Closure(headers, sha256_text(manifest_of(headers)))


def layout(found: Closure) -> Mapping[str, bytes | str]:
    """Return the copy's files by relative path: bytes, or the path of a file to copy."""
    # A header may change until it is copied: the caller must compare the sha256 of what it reads.
    files: dict[str, bytes | str] = {MANIFEST: found.manifest.encode("utf-8", "surrogateescape")}
    for header in found.headers:
        files[header.name] = b"" if header.path is None else header.path
    return files


def manifest_of(headers: Sequence[Header]) -> str:
    """Return one line per header, as sha256sum writes and checks them."""
    lines = []
    for header in headers:
        name = header.name
        if any(c in name for c in "\\\n\r"):
            # sha256sum escapes such names, and marks the line with a backslash.
            name = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
            lines.append(f"\\{header.sha256}  {name}\n")
        else:
            lines.append(f"{header.sha256}  {name}\n")
    return "".join(lines)


def parents(name: str) -> Iterable[str]:
    """Yield the directories that a name in the copy lies in."""
    while name := posixpath.dirname(name):
        yield name


def climbs_within(tree: str, directory: str, name: str) -> bool:
    """Return whether `directory/name`, followed part by part, stays in the tree."""
    limit = tree.count("/") + 1
    depth = directory.count("/") + 1
    for part in name.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < limit:
            return False
    return True


def links_matter(path: str) -> bool:
    """Return whether `..` in an existing path follows a symbolic link, so that it leads elsewhere
    than in the copy, which has no links."""
    by_name = os.path.normpath(path)
    return os.path.realpath(path) != os.path.realpath(by_name) and (
        os.path.exists(path) or os.path.exists(by_name)
    )


def passed(directory: str, name: str) -> Iterable[str]:
    """Yield the directories that must exist for `..` in `directory/name` to be followed."""
    parts = directory.split("/")
    for part in name.split("/"):
        if part == "..":
            yield "/".join(parts)
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
