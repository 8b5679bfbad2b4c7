"""The search for headers: which ones a rendered source can reach, found without a compiler.

The closure takes every branch of every condition, so it holds at least the headers that any compile
reads from the include directories; more of them are harmless. A header in none of the directories
is the toolkit's or the system's; those are searched too where the project shadows one of them
(`render/closure.py`).

A name that macros make is not worked out: every header that it could name is taken
(`render/macros.py`; docs/design-notes.md says why depfiles and `-I` are not enough).
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct, field

from tilusbuild.errors import Diagnostic, Place, input_error
from tilusbuild.render.closure import (
    KEEP,
    UNDETERMINED,
    Closure,
    Declared,
    Header,
    Outside,
    Overlap,
    Root,
    climbs_within,
    declared,
    links_matter,
    manifest_of,
    names_in,
    overlap,
    parents,
    passed,
)
from tilusbuild.render.macros import Asked, Macros, spelled
from tilusbuild.render.preprocessor import Include, Scan, scan
from tilusbuild.render.scans import Scans
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_bytes, sha256_text

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
        self._declared: dict[str, tuple[Declared, ...]] = {}
        self._listed: dict[str, frozenset[str]] = {}

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
        # Where no text asks for a name that macros make, what the source defines plays no part.
        key = (found.includes, found.computed, tuple(extra), tuple(sorted(rendered)))
        keys = (key, (*key, found.directives))
        for each in keys:
            if (closure := self._closures.get(each)) is not None:
                return closure
        search = _Search(self, frozenset(rendered))
        closure = self._closures[keys[search.computed]] = search.run(found, source, extra)
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

    def spelled(self, asked: Asked, includer: File | None) -> tuple[set[str], set[str]]:
        """Return the names below the directories of the search, and above them in their trees, that
        consist of the pieces, `x/` for directories; and the directories that were read."""
        starts = {root.path: root.depth for root in self.roots}
        if includer is not None and includer.tree:
            depth = posixpath.dirname(includer.name).count("/") - includer.tree.count("/")
            starts[os.path.dirname(includer.path)] = depth
        if self.overlap.shadows:
            starts |= dict.fromkeys(self.outside.directories, 0)
        names: set[str] = set()
        read: set[str] = set()
        for directory, depth in starts.items():
            for up in range(depth + 1):
                above = f"{directory}/{'../' * up}"
                if not (up and links_matter(above)):
                    names.update(self._spelled(os.path.normpath(above), "../" * up, asked, read))
        return names, read

    def _spelled(
        self,
        directory: str,
        prefix: str,
        asked: Asked,
        read: set[str],
        around: tuple[str, ...] = (),
    ) -> Iterator[str]:
        if (real := os.path.realpath(directory)) in around:
            return
        read.add(directory)
        if directory not in self._listed:
            self._listed[directory] = names_in(directory)
        for name in spelled(self._listed[directory], asked.pieces):
            path = os.path.join(directory, name)
            if os.path.isdir(path):
                yield f"{prefix}{name}/"
                yield from self._spelled(path, f"{prefix}{name}/", asked, read, (*around, real))
            else:
                yield prefix + name

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
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return None
        except (OSError, ValueError):
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

    def declared(self, pattern: str) -> Iterable[Declared]:
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

    def find(self, include: Include, includer: File | None, *, sure: bool = True) -> None:
        """Look for what an include of a text asks for; without `sure` it may never be asked for."""
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
            if sure and ".." in include.name.split("/"):
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
    """A search in progress: what was reached, and the names that macros make."""

    macros: Macros = field(default_factory=Macros)
    computed: bool = False
    texts: list[tuple[Scan, File | None]] = field(default_factory=list)
    """Those whose directives are not looked at until one asks for a name that macros make."""
    asking: dict[tuple[str, File | None], None] = field(default_factory=dict)
    undetermined: dict[str, File | None] = field(default_factory=dict)
    resolved: set[tuple[Include, File | None]] = field(default_factory=set)

    def run(self, found: Scan, source: str, extra: Sequence[str]) -> Closure:
        unmatched = tuple(pattern for pattern in extra if not self._declare(pattern))
        if self.headers.overlap.shadows:
            for name in self.headers.outside.implied:
                self.find(Include(name, quoted=True), None)
        self._read(found, None)
        for include in found.includes:
            self.find(include, None)
        while self.queue or self._compute():
            if self.queue:
                file = self.queue.pop()
                self._read(file.scan, file)
                self.add(self.headers.reached(file, self.rendered))
        for operand, includer in [*self.undetermined.items()][:_MAX_NOTES]:
            self.note(
                operand, includer, f"which header {operand} names {UNDETERMINED}",
                "name a header of include-dirs in plain words, or declare those that it can name: "
                'headers = ["…/*.h"] in [build] or in the script',
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
        self.computed |= found.computed
        self.texts.append((found, includer))

    def _declare(self, pattern: str) -> bool:
        matched = False
        for tree, files, directories in self.headers.declared(pattern):
            self.probed.update(directories)
            for name, path in files:
                file = self.headers.file(tree, name, path)
                if file is not None:
                    matched = True
                    self.take(file)
        return matched

    def _compute(self) -> bool:
        """Look for the names that macros make by definitions so far; return whether any is new."""
        if not self.computed or not self.texts:
            return False
        for found, includer in self.texts:
            for directive in found.directives:
                word, _, rest = directive.partition(" ")
                if word == "define":
                    self.macros.define(rest)
                else:
                    self.asking[(directive, includer)] = None
        self.texts.clear()
        self.macros.settle(directive for directive, _ in self.asking)
        for directive, includer in list(self.asking):
            word, _, rest = directive.partition(" ")
            is_condition = word in ("if", "elif")
            asked = self.macros.condition(rest) if is_condition else self.macros.operand(rest)
            if asked is None:
                continue
            named = word in ("include", "include_next", "import", "embed")
            if asked.pieces and named and (includer is None or includer.tree):
                self.undetermined.setdefault(rest, includer)
            self._ask(asked, includer, following=asked.next or "_next" in directive)
        return True

    def _ask(self, asked: Asked, includer: File | None, *, following: bool) -> None:
        """Find what a directive can ask for."""
        names = set(asked.names)
        if asked.pieces:
            possible, read = self.headers.spelled(asked, includer)
            self.probed |= read
            through = {name for name in possible if name.endswith("/")}
            for name in possible - through:
                names.update((Include(name, True), Include(name, False)))
            # `..` passes through directories: those that it can must be in the copy.
            for name in through if {".", "/"} <= {*asked.pieces} else ():
                for tree, at, on_disk in self.headers.candidates(Include(name, True), includer):
                    if os.path.isdir(f"{on_disk}/{name}") and climbs_within(tree, at, name):
                        self.directories.add(posixpath.normpath(f"{at}/{name}"))
            # What a toolkit asks for, it has.
            self.unknown = self.unknown or includer is None or bool(includer.tree)
        for each in names:
            include = each._replace(next=each.next or following)
            if (include, includer) not in self.resolved:
                self.resolved.add((include, includer))
                self.find(include, includer, sure=each in asked.names)

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


def _diagnostic(
    source: str, includer: File | None, spelled: str, message: str, hint: str
) -> Diagnostic:
    """Return what is to be said of an include, at its place."""
    if includer is None:
        text, path = source, "source.cu"
    else:
        path = _shown(includer.name)
        try:
            text = read_text(includer.path, "replace")
        except OSError:
            text = ""
    return Diagnostic(message, _locate(text, path, spelled), hint, "warning")


def _locate(text: str, path: str, spelled: str) -> Place:
    for number, line in enumerate(text.split("\n"), 1):
        if "include" in line and spelled in line:
            return Place(path, number, line.index(spelled) + 1, line, len(spelled))
    return Place(path)


def _shown(name: str) -> str:
    """Return a header's name for messages, relative to the project if it is there."""
    return name.removeprefix("project/")
