"""The search for headers: which ones a rendered source can reach, found without a compiler.

The closure takes every branch of every condition, so it holds at least the headers that any compile
reads from the include directories; more of them are harmless. A header in none of the directories
is the toolkit's or the system's; those are searched too where the project shadows one of them
(`render/closure.py`).

No macro is expanded. Where a text of the project asks for a name that macros make, every file below
the include directories is taken (docs/design-notes.md says why depfiles and `-I` are not enough).
The price is a rebuild when one of them is edited. A text of the toolkit that does so counts for
nothing: nearly every kernel reaches one.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic, InputError, Place, input_error
from tilusbuild.render.closure import (
    HEADER_SUFFIXES,
    KEEP,
    UNDETERMINED,
    Closure,
    Header,
    Matched,
    Outside,
    Overlap,
    Root,
    climbs_within,
    declared,
    files_below,
    links_matter,
    manifest_of,
    overlap,
    parents,
    passed,
)
from tilusbuild.render.preprocessor import Include, Scan, scan
from tilusbuild.render.scans import Scans
from tilusbuild.runtime.regular import read_bytes, try_read_text, try_stat
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_bytes, sha256_text
from tilusbuild.state.patterns import PatternTooWideError

_MAX_NOTES = 3
"""About names that macros make: a library has hundreds."""
_EMPTY = sha256_bytes(b"")


class File(Struct, frozen=True, eq=False):
    """A header that was found. One outside the project has no tree, and its path for a name."""

    tree: str
    name: str
    path: str
    digest: str
    scan: Scan


class Headers:
    """The headers below some roots, as one plan sees them: each is read and resolved once.

    `roots` are in search order, and `outside` comes after them. `scans` may be shared between
    instances.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        digests: DigestMemory,
        outside: Outside | None = None,
        scans: Scans | None = None,
    ) -> None:
        self.roots = tuple(roots)
        self.outside = outside or Outside(())
        self._digests = digests
        self._scans = scans or Scans()
        self._files: dict[str, File | None] = {}
        self._closures: dict[object, Closure] = {}
        self._reached: dict[tuple[File, frozenset[str]], Reached] = {}
        self._ancestors: dict[str, str] = {}
        self._declared: dict[str, tuple[Matched, ...]] = {}
        self._below: dict[tuple[str, str, str], Matched] = {}

    def closure(
        self,
        source: str,
        *,
        extra: Sequence[str] = (),
        rendered: Collection[str] = (),
    ) -> Closure:
        """Return what `source` can reach, and what the globs `extra` declare, which are relative to
        a root or to a root's tree. `rendered` are the names of headers that lie beside the source
        and are a part of its text here. Raises `InputError` for a header that cannot be read, and
        `PatternTooWideError`."""
        found = scan(source)
        key = found, tuple(extra), tuple(sorted(rendered))
        if (closure := self._closures.get(key)) is None:
            closure = _Search(self, frozenset(rendered)).run(found, source, extra)
            self._closures[key] = closure
        return closure

    def reached(self, includer: File, rendered: frozenset[str]) -> Reached:
        """Return what a header's own includes lead to: many sources reach the same ones."""
        key = includer, rendered
        if key not in self._reached:
            self._reached[key] = Reached(self, rendered)
            for include in includer.scan.includes:
                self._reached[key].find(include, includer)
        return self._reached[key]

    @cached_property
    def overlap(self) -> Overlap:
        """What the roots and the directories outside have in common."""
        return overlap(dict.fromkeys(r.path for r in self.roots), self.outside.directories)

    def candidates(self, include: Include, includer: File | None) -> Iterable[tuple[str, str, str]]:
        """Yield an include's places in search order: tree, directory in the copy, and on disk."""
        if include.quoted and includer is not None:
            yield includer.tree, posixpath.dirname(includer.name), os.path.dirname(includer.path)
        for quoted_only in (True, False):
            for root in self.roots:
                if root.quoted_only == quoted_only and (include.quoted or not quoted_only):
                    yield root.tree, root.name, root.path

    def below(self, tree: str, name: str, path: str) -> Matched:
        """Return the files below a directory that may be headers. Raises `PatternTooWideError`."""
        key = tree, name, path
        if key not in self._below:
            found = files_below(*key)
            # Most of what lies in a tree's own directory is none.
            is_header = _has_suffix if name == tree else _is_no_template
            files = tuple(file for file in found.files if is_header(file[0]))
            self._below[key] = replace(found, files=files)
        return self._below[key]

    def is_of_source(self, directory: str) -> bool:
        """Return whether the source is taken to lie in a directory of the copy."""
        return any(root.quoted_only and root.name == directory for root in self.roots)

    def beside(self, include: Include, includer: File) -> File | None:
        """Return the header outside that lies beside the one outside that includes it."""
        path = os.path.normpath(os.path.join(os.path.dirname(includer.path), include.name))
        return self.file("", path, path)

    def beyond(self, include: Include) -> Iterator[str]:
        """Yield the places of an include outside, in search order."""
        for directory in self.outside.directories:
            yield os.path.normpath(os.path.join(directory, include.name))

    def file(self, tree: str, name: str, path: str) -> File | None:
        """Return the file at a path, if it exists; it is scanned only if its digest is new."""
        key = f"{name}\0{path}"
        if key not in self._files:
            self._files[key] = self._read(tree, name, path)
        return self._files[key]

    def _read(self, tree: str, name: str, path: str) -> File | None:
        status = try_stat(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        try:
            digest = self._digests.digest(path)
            if (found := self._scans.get(digest)) is None:
                data = read_bytes(path)
                digest = sha256_bytes(data)
                found = scan(data.decode("utf-8", "surrogateescape"))
                self._scans.put(digest, found)
        except OSError as error:
            raise input_error(
                f"cannot read the header {_shown(name)}: {error.strerror}", place=Place(path)
            ) from None
        return File(tree, name, path, digest, found)

    def ancestor(self, directory: str) -> str:
        """Return the nearest directory that exists, which a new file would change."""
        if (known := self._ancestors.get(directory)) is None:
            parent = os.path.dirname(directory)
            known = (
                directory
                if parent == directory or os.path.isdir(directory)
                else self.ancestor(parent)
            )
            self._ancestors[directory] = known
        return known

    def declared(self, pattern: str) -> Iterable[Matched]:
        """Return what a glob matches below each directory. Raises `PatternTooWideError`."""
        if (found := self._declared.get(pattern)) is None:
            found = self._declared[pattern] = tuple(declared(self.roots, pattern))
        return found


class Reached(Struct):
    """What includes lead to, whatever other texts there are."""

    headers: Headers
    rendered: frozenset[str]
    files: dict[str, File] = field(default_factory=dict)
    outside: dict[str, File] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    probed: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    sought: set[str] = field(default_factory=set)
    unknown: bool = False
    notes: dict[tuple[File | None, str, str, str], None] = field(default_factory=dict)
    queue: list[File] = field(default_factory=list)
    """Files whose includes are still to be found."""

    def add(self, other: Reached) -> None:
        """Take in what other includes lead to."""
        for file in other.files.values():
            self.take(file)
        for file in other.outside.values():
            self._enter(file)
        self.directories |= other.directories
        self.probed |= other.probed
        self.external |= other.external
        self.sought |= other.sought
        self.unknown |= other.unknown
        self.notes |= other.notes

    def find(self, include: Include, includer: File | None) -> None:
        """Look for the header that an include of a text names."""
        beyond = includer if includer is not None and not includer.tree else None
        if include.name.startswith("/"):
            if beyond is None:
                self.unknown = True
                self.note(
                    include.name, includer, "the include is an absolute path",
                    "put the header in a directory of include-dirs and include it by its name "
                    "there",
                )  # fmt: skip
            return
        if beyond and include.quoted and self._enter(self.headers.beside(include, beyond)):
            return
        if self._find_own(include, None if beyond else includer) and not include.next:
            return
        if beyond:
            self.sought.add(include.name)
        else:
            if ".." in include.name.split("/"):
                self._leads_out(include, includer, "include-dirs")
            self.external.add(include.name)
        if self.headers.overlap.shadows:
            for path in self.headers.beyond(include):
                if self._enter(self.headers.file("", path, path)) and not include.next:
                    return

    def _find_own(self, include: Include, includer: File | None) -> bool:
        """Look for an include in the roots. Return whether it is there."""
        found = False
        is_rendered = include.quoted and include.name in self.rendered
        for tree, directory, on_disk in self.headers.candidates(include, includer):
            if is_rendered and self.headers.is_of_source(directory):
                return True
            path = f"{on_disk}/{include.name}"
            name = posixpath.normpath(f"{directory}/{include.name}")
            if ".." in include.name and links_matter(path):
                self.note(
                    include.name, includer, '".." after a symbolic link leads elsewhere in a copy',
                    "include the header by a path without the link",
                )  # fmt: skip
                path = os.path.realpath(path)
            file = self.headers.file(tree, name, path)
            if file is None:
                self.probed.add(self.headers.ancestor(os.path.dirname(path)))
                continue
            found = True
            # Compilers would read it, but the copy does not reach above a tree.
            if not climbs_within(tree, directory, include.name):
                self._leads_out(include, includer, tree)
            else:
                self.take(file)
                self.directories.update(passed(directory, include.name))
            # Where `#include_next` goes on depends on where the compiler found this file: take all.
            if not include.next:
                break
        return found

    def _enter(self, file: File | None) -> bool:
        """Go on in a header outside. Return whether it is there."""
        if file is not None and file.path not in self.outside:
            self.outside[file.path] = file
            self.queue.append(file)
        return file is not None

    def take(self, file: File) -> None:
        """Go on in a header of the project."""
        if file.name not in self.files:
            self.files[file.name] = file
            self.queue.append(file)

    def _leads_out(self, include: Include, includer: File | None, tree: str) -> None:
        self.note(
            include.name,
            includer,
            f'"{include.name}" leads out of the directory that is copied ({tree})',
            "add the directory above both headers to include-dirs, and include the one that "
            "includes from there",
        )

    def note(self, spelled: str, includer: File | None, message: str, hint: str) -> None:
        """Remember what is to be said of an include."""
        self.notes[includer, spelled, message, hint] = None


class _Search(Reached):
    """A search in progress: what was reached, and what texts with computed includes can name."""

    is_computed: bool = False
    """Whether macros make a name in a text of the project."""
    climbs: bool = False
    """Whether such a name may have `..` in it."""
    beside: dict[tuple[str, str, str], None] = field(default_factory=dict)
    """The directories of the headers with computed includes: tree, name in the copy, and path."""
    searched: set[tuple[str, str, str]] = field(default_factory=set)
    """The directories of which every file was taken."""
    operands: dict[str, File | None] = field(default_factory=dict)
    """The operands of computed includes, and their texts."""

    def run(self, found: Scan, source: str, extra: Sequence[str]) -> Closure:
        unmatched = tuple(pattern for pattern in extra if not self._declare(pattern))
        if self.headers.overlap.shadows:
            for name in self.headers.outside.implied:
                self.find(Include(name, quoted=True), None)
        self._read(found, None)
        for include in found.includes:
            self.find(include, None)
        while self.queue or self._take_computed(source):
            if self.queue:
                file = self.queue.pop()
                self._read(file.scan, file)
                self.add(self.headers.reached(file, self.rendered))
        for operand, includer in [*self.operands.items()][:_MAX_NOTES]:
            self.note(
                operand, includer, f"which header {operand} names {UNDETERMINED}",
                "those that it can name are looked for in include-dirs: put them there, or declare "
                'them: headers = ["…/*.h"] in [build] or in the script',
            )  # fmt: skip
        kept = self._kept()
        shared = self.headers.overlap
        return Closure(
            kept, sha256_text(manifest_of(kept)),
            tuple(dict.fromkeys(_diagnostic(source, *note) for note in self.notes)), unmatched,
            tuple(sorted(self.probed | shared.probed)),
            None if self.unknown else tuple(sorted(self.external)),
            frozenset(self.sought | shared.sought),
        )  # fmt: skip

    def _read(self, found: Scan, includer: File | None) -> None:
        if includer is not None and not includer.tree:
            return
        self.climbs |= found.climbs
        if not found.is_computed:
            return
        self.is_computed = self.unknown = True
        for operand in found.operands:
            self.operands.setdefault(operand, includer)
        if includer is not None:
            name, path = posixpath.dirname(includer.name), os.path.dirname(includer.path)
            self.beside[includer.tree, name, path] = None

    def _declare(self, pattern: str) -> bool:
        matched = False
        for found in self.headers.declared(pattern):
            matched |= self._take_matched(found)
        return matched

    def _take_matched(self, found: Matched) -> bool:
        """Go on in the files that a pattern matches. Return whether there is one."""
        matched = False
        self.probed.update(path for _, path in found.directories)
        for name, path in found.files:
            if (file := self.headers.file(found.tree, name, path)) is not None:
                matched = True
                self.take(file)
        return matched

    def _take_computed(self, source: str) -> bool:
        """Take what computed includes of the texts so far can name. Return whether any is new.
        Raises `InputError` for more than a program may carry."""
        if not self.is_computed:
            return False
        roots = self.headers.roots
        directories = dict.fromkeys((root.tree, root.name, root.path) for root in roots)
        directories |= self.beside
        # Of `..` only what is before it is in the text: it may lead up to the tree's own directory.
        above = {(root.tree, root.tree, root.base) for root in roots} if self.climbs else set()
        for directory in (*directories, *sorted(above)):
            if directory in self.searched:
                continue
            self.searched.add(directory)
            try:
                found = self.headers.below(*directory)
            except PatternTooWideError as error:
                if directory in above:
                    continue  # what is not there, the compile misses, and its note says why
                raise self._too_wide(source, error) from None
            self._take_matched(found)
            if self.climbs:
                self.directories.update(name for name, _ in found.directories)
        return bool(self.queue)

    def _too_wide(self, source: str, error: PatternTooWideError) -> InputError:
        operand, includer = next(iter(self.operands.items()), ("", None))
        message = (
            f"which header {operand or 'a macro'} names {UNDETERMINED}, and the directory is too "
            f"large for all of it to be a part of the program: {error.what}"
        )
        hint = (
            "name the header in plain words, or put those that it can name into a smaller "
            "directory of include-dirs"
        )
        found = _diagnostic(source, includer, operand, message, hint)
        return InputError(found._replace(severity="error"))

    def _kept(self) -> tuple[Header, ...]:
        """Return the headers, and an empty file in each directory that only `..` passes through."""
        headers = [Header(f.name, f.digest, f.path) for f in self.files.values()]
        existing = {parent for file in self.files for parent in parents(file)}
        headers += [
            Header(f"{directory}/{KEEP}", _EMPTY, None)
            for directory in self.directories
            if directory not in existing
        ]
        return tuple(sorted(headers, key=lambda header: header.name))


def _has_suffix(name: str) -> bool:
    return name.endswith(HEADER_SUFFIXES)


def _is_no_template(name: str) -> bool:
    return not name.endswith(".j2")


def _diagnostic(
    source: str, includer: File | None, spelled: str, message: str, hint: str
) -> Diagnostic:
    """Return what is to be said of an include, at its place."""
    if includer is None:
        text, path = source, "source.cu"
    else:
        path = _shown(includer.name)
        text = try_read_text(includer.path, "replace") or ""
    return Diagnostic(message, _locate(text, path, spelled), hint, "warning")


def _locate(text: str, path: str, spelled: str) -> Place:
    for number, line in enumerate(text.split("\n"), 1):
        if "include" in line and spelled in line:
            return Place(path, number, line.index(spelled) + 1, line, len(spelled))
    return Place(path)


def _shown(name: str) -> str:
    """Return a header's name for messages, relative to the project if it is there."""
    return name.removeprefix("project/")
