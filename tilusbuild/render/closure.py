"""The closure of a source: the headers that it can reach, and how they lie in the copy.

Headers keep their places relative to each other, so `..`, shadowing and the order of directories
have the same effect in the copy. `render/headers.py` finds them, with what is here: the headers
that patterns declare, and those outside the project that one of the project may shadow.

A compiler searches the project's directories before the toolkit's and the system's, also for what
the toolkit's own headers include. So where the project has a header by a name that one outside has
(a vendored CCCL and the toolkit's), the search for headers goes through those outside as well, or a
compile would see the half of a library that the source names and the other half of the toolkit's.
Where no name is in both, none outside is read: what is looked at are directories only, and of those
only the ones that are on both sides.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic
from tilusbuild.runtime.regular import try_read_bytes, try_stat
from tilusbuild.state.directories import is_machine_error
from tilusbuild.state.files import sha256_bytes, sha256_text
from tilusbuild.state.patterns import PatternTooWideError, find_matches

MANIFEST = "MANIFEST"
KEEP = ".keep"


class Root(Struct, frozen=True):
    """A directory of the include path: `path` on disk, `name` in the copy that a compile sees.

    The first part of the name is that of its tree, in whose directory the last `depth` parts of
    both lead to it: the copy is laid out alike, so `..` may climb that far, and further through
    parts between these (`add_levels`). `make_root` makes one.
    """

    name: str
    path: str
    quoted_only: bool = False
    """Whether only `#include "…"` searches it (`-iquote`)."""
    depth: int = 0

    @property
    def tree(self) -> str:
        """The name of the tree."""
        return self.name.partition("/")[0]

    @property
    def base(self) -> tuple[str, str]:
        """The directory of the tree: its name in the copy and its path."""
        name, path = self.name, self.path
        for _ in range(self.depth):
            name, path = posixpath.dirname(name), os.path.dirname(path)
        return name, path

    def add_levels(self, count: int) -> Root:
        """Return this directory with `count` more directories of the copy above its tree's."""
        tree, slash, inner = self.name.partition("/")
        return replace(self, name="/".join([tree, *["_"] * count]) + slash + inner)


def make_root(tree: str, base: str, directory: str = "", *, quoted_only: bool = False) -> Root:
    """Return the root for `directory` of the tree `tree`, whose directory is `base`. Raises
    `ValueError` for a directory that leads out of it."""
    parts = [part for part in posixpath.normpath(directory or ".").split("/") if part != "."]
    if ".." in parts or directory.startswith("/"):
        raise ValueError(f"{directory} is not inside {base}")
    base = os.path.abspath(base)
    return Root("/".join([tree, *parts]), os.path.join(base, *parts), quoted_only, len(parts))


class Header(Struct, frozen=True):
    """A header of a closure: `name` is its path in the copy; `path`, on disk, is never hashed."""

    name: str
    sha256: str
    path: str | None
    """None for an empty file that only makes a directory exist."""
    content: bytes = b""
    """What the copy has in the place of the file's own content, for a twin (`tell_twins_apart`)."""


class Closure(Struct, frozen=True):
    """The headers that a source can reach, sorted by name."""

    headers: tuple[Header, ...]
    digest: str
    """sha256 of `manifest`: what the directory of the copy is called."""
    roots: tuple[Root, ...] = ()
    """Where the compile is to search the copy, in order."""
    notes: tuple[Diagnostic, ...] = ()
    """Includes that the compile will not find, and how to declare them: to be shown if it fails."""
    unmatched: tuple[str, ...] = ()
    """Declared globs that no header matches."""
    probed: tuple[str, ...] = ()
    """Directories in which a new file could change the answer."""
    external: tuple[str, ...] | None = ()
    """Included names that no root has: those of the toolkit and the system. None: not all known."""
    shadowing: frozenset[str] = frozenset()
    """Names of files and directories that would shadow a header outside the project, if one of
    `probed` came to have them."""

    @property
    def sought(self) -> frozenset[str] | None:
        """The names that its includes ask for, part by part; None for any."""
        if self.external is None:
            return None
        names = (*self.external, *(header.name for header in self.headers), *self.shadowing)
        return frozenset(part for name in names for part in name.split("/"))

    @property
    def manifest(self) -> str:
        """One line per header, as sha256sum writes and checks them."""
        return format_manifest(self.headers)


def make_closure(files: Iterable[Header]) -> Closure:
    """Return the closure that holds these files and no other."""
    headers = tuple(sorted(files, key=lambda header: header.name))
    return Closure(headers, sha256_text(format_manifest(headers)))


def add_files(closure: Closure, files: Sequence[Header]) -> Closure:
    """Return a closure with further files in its layout."""
    if not files:
        return closure
    extended = make_closure([*closure.headers, *files])
    return replace(closure, headers=extended.headers, digest=extended.digest)


def map_layout(closure: Closure) -> Mapping[str, bytes | str]:
    """Return the copy's files by relative path: bytes, or the path of a file to copy."""
    # A header may change before it is copied, so the caller must compare the sha256 of what it
    # reads with `Header.sha256`.
    files: dict[str, bytes | str] = {MANIFEST: closure.manifest.encode("utf-8", "surrogateescape")}
    for header in closure.headers:
        files[header.name] = header.content or header.path or b""
    return files


def tell_twins_apart(headers: Iterable[Header]) -> Iterator[Header]:
    """Yield the headers, such that two of them have one content only if they are one file.

    After `#pragma once`, compilers know a file by its content and time, or by its inode. No medium
    that a copy goes through keeps both. So blank lines are added to a file with the content of
    another; the names of one file, by links, keep one content.
    """
    by_digest: dict[str, list[Header]] = {}
    for header in headers:
        by_digest.setdefault(header.sha256, []).append(header)
    digests = {*by_digest}
    for digest, twins in by_digest.items():
        data = (try_read_bytes(twins[0].path or "") if len(twins) > 1 else None) or b""
        # Blank lines would change other data, which a program may embed. A file that has changed
        # since it was hashed is an error where it is copied.
        if b"once" not in data or sha256_bytes(data) != digest:
            yield from twins
            continue
        content_of_file: dict[tuple[int, int], bytes] = {}
        for header in sorted(twins, key=lambda header: header.name):
            status = try_stat(header.path or "")
            inode = (status.st_dev, status.st_ino) if status else (0, 0)
            if content_of_file and inode not in content_of_file:
                while sha256_bytes(data) in digests:
                    data += b"\n"
                digests.add(sha256_bytes(data))
            content = content_of_file.setdefault(inode, data)
            yield replace(header, sha256=sha256_bytes(content), content=content)


def format_manifest(headers: Sequence[Header]) -> str:
    """Return one line per header, as sha256sum writes and checks them."""
    lines = []
    for header in headers:
        name = header.name
        if any(character in name for character in "\\\n\r"):
            # sha256sum escapes such names, and marks the line with a backslash.
            name = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
            lines.append(f"\\{header.sha256}  {name}\n")
        else:
            lines.append(f"{header.sha256}  {name}\n")
    return "".join(lines)


def list_parents(name: str) -> Iterable[str]:
    """Yield the directories that a name in the copy lies in."""
    while name := posixpath.dirname(name):
        yield name


def has_links_before_parent(path: str) -> bool:
    """Return whether `..` in an existing path follows a symbolic link, so that it leads elsewhere
    than in the copy, which has no links."""
    by_name = os.path.normpath(path)
    # Without links both paths name the same file. If neither exists nothing is read, so it does not
    # matter where they lead.
    return os.path.realpath(path) != os.path.realpath(by_name) and (
        os.path.exists(path) or os.path.exists(by_name)
    )


def list_passed_directories(directory: str, name: str) -> tuple[list[str], int]:
    """Return the directories that must exist for `..` in `directory/name` to be followed, `a/b` for
    `a/b` and `../x.h`; and how many levels above its tree the path leads."""
    passed_directories: list[str] = []
    if ".." not in name:
        return passed_directories, 0
    parts = directory.split("/")
    levels = 0
    # The path is followed part by part, as a compiler does: `a/../../b/c` leaves the tree though
    # its end is inside.
    for part in name.split("/"):
        if part == "..":
            passed_directories.append("/".join(parts))
            # The parts end at the tree's own, however far the path leads.
            levels += len(parts) == 1
            parts = parts[:-1] or parts
        elif part not in ("", "."):
            parts.append(part)
    return passed_directories, levels


MAX_FILES, MAX_BYTES = 20_000, 512 << 20
"""Of the headers of one directory: each is read, and is copied for compiles."""

HEADER_SUFFIXES = (".h", ".hh", ".hpp", ".cuh", ".inl", ".inc")


class PatternMatches(Struct, frozen=True):
    """What a pattern matches below one directory of a tree."""

    tree: str
    files: tuple[tuple[str, str], ...]
    """Names in the copy, and paths."""
    directories: tuple[tuple[str, str], ...]
    """Names and paths of the directories where a new file could match."""


def match_below(
    tree: str, name: str, path: str, pattern: str = "**", *, hidden_names: bool = False
) -> PatternMatches:
    """Return what a pattern matches below the directory `path`, which is `name` in the copy;
    `hidden_names` is as in `find_matches`. Raises `PatternTooWideError` beyond `MAX_FILES` files or
    `MAX_BYTES`."""
    matches = find_matches(path, pattern, hidden_names=hidden_names)
    files = tuple(_list_files(path, matches.names))
    total_bytes = sum(size for _, size in files)
    if len(files) > MAX_FILES or total_bytes > MAX_BYTES:
        raise PatternTooWideError(
            pattern,
            f"matches {len(files):,} files of {total_bytes >> 20:,} MiB in {path}; headers are at "
            f"most {MAX_FILES:,} of {MAX_BYTES >> 20} MiB",
        )
    return PatternMatches(
        tree,
        tuple((posixpath.join(name, file), os.path.join(path, file)) for file, _ in files),
        tuple(
            (posixpath.normpath(posixpath.join(name, os.path.relpath(inner, path))), inner)
            for inner in sorted(matches.directories)
        ),
    )


def match_declared(roots: Sequence[Root], pattern: str) -> Iterator[PatternMatches]:
    """Yield what a pattern matches below each root and each tree's directory; nothing for a pattern
    that leads out of them. Raises `PatternTooWideError`."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return
    # Users write patterns relative to a root or to its tree's directory, so both are searched.
    directories = {(root.tree, root.name, root.path) for root in roots}
    directories |= {(root.tree, *root.base) for root in roots}
    for tree, name, path in sorted(directories):
        yield match_below(tree, name, path, pattern)


def _list_files(directory: str, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each of `names` that is a regular file in `directory`, with its size in bytes."""
    for name in names:
        status = try_stat(os.path.join(directory, name))
        if status is not None and stat.S_ISREG(status.st_mode):
            yield name, status.st_size


class Outside(Struct, frozen=True):
    """The directories that a compiler searches after the project's, in order."""

    directories: tuple[str, ...]
    implied: tuple[str, ...] = ()
    """Names of the headers that the compiler includes before the source."""


class Overlap(Struct):
    """What the project's directories and those outside have in common, as it was looked for."""

    shadows: bool = False
    """Whether a header of the project has the name of one outside."""
    probed: set[str] = field(default_factory=set)
    """The project's directories that were read, and a header that shadows another."""
    sought: set[str] = field(default_factory=set)
    """The names that would make a difference in them."""


def find_overlap(directories: Iterable[str], outside: Sequence[str]) -> Overlap:
    """Return what the project's directories have in common with those outside, by names.

    A directory that both have is compared in turn. The comparison ends at the first header that
    shadows another. Raises `OSError` as `list_names`.
    """
    result = Overlap()
    pending = [(directory, tuple(outside)) for directory in directories]
    # One header that shadows another is enough: the headers outside are then read as well.
    while pending and not result.shadows:
        project_directory, directories_outside = pending.pop()
        names_outside = [(directory, list_names(directory)) for directory in directories_outside]
        result.probed.add(project_directory)
        for _, names in names_outside:
            result.sought |= names
        for name in sorted(list_names(project_directory)):
            path = os.path.join(project_directory, name)
            paths_outside = [
                os.path.join(directory, name) for directory, names in names_outside if name in names
            ]
            if not paths_outside:
                continue
            # A header and a directory of the same name do not shadow each other.
            if os.path.isdir(path):
                inner_outside = tuple(filter(os.path.isdir, paths_outside))
                if inner_outside:
                    pending.append((path, inner_outside))
            elif any(map(os.path.isfile, paths_outside)):
                result.shadows = True
                result.probed.add(path)
    return result


def list_names(directory: str) -> frozenset[str]:
    """Return the names in a directory; none if it does not exist or may not be read. Raises
    `OSError` for an error of the machine, such as a failing disk."""
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        # If the disk fails, a header that is there could be missed.
        if is_machine_error(error, directory):
            raise
        return frozenset()
