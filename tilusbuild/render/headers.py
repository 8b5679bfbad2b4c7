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
from tilusbuild.render.known import KnownClosures
from tilusbuild.render.macros import Asked, Macros, spelled
from tilusbuild.render.preprocessor import Include, Scan, scan
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_bytes, sha256_text

_MAX_NOTES = 3
"""About names that macros make: a library has hundreds."""
_EMPTY = sha256_bytes(b"")


class File(Struct, frozen=True):
    """A header that was found. One outside the project has no tree, and its path for a name."""

    tree: str
    name: str
    path: str
    digest: str
    scan: Scan


Scans = dict[str, tuple[str, Scan]]
"""By path: the digest of a file's content, and the scan of that content."""


class Headers:
    """The headers below some roots, as one plan sees them: each is read and resolved once.

    `roots` are in search order, and `outside` comes after them. `scans` may be shared between
    instances; it has one item per file. `known` are the closures of earlier plans.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        digests: DigestMemory,
        outside: Outside | None = None,
        scans: Scans | None = None,
        known: KnownClosures | None = None,
    ) -> None:
        self.roots = tuple(roots)
        self._known = known
        # What is found once is not looked for again, so every closure is as old as the oldest look.
        self._since = None if known is None else known.moment()
        self.outside = outside or Outside(())
        self._digests = digests
        self._scans = {} if scans is None else scans
        self._files: dict[str, File | None] = {}
        self._closures: dict[object, Closure] = {}
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
        known = None if extra else self._known
        for each in keys:
            if known is not None and (closure := known.get(_name_of(each))) is not None:
                self._closures[each] = closure
                return closure
        search = _Search(self, found, source, frozenset(rendered))
        closure = self._closures[keys[search.computed]] = search.run(extra)
        if known is not None and self._since is not None:
            outside = {path: file.digest for path, file in search.outside.items()}
            places = sorted(search.absent | self.overlap.outside)
            known.put(_name_of(keys[search.computed]), closure, self._since, outside, places)
        return closure

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
            known, found = self._scans.get(path) or ("", None)
            if found is None or known != digest:
                data = read_bytes(path)
                digest = sha256_bytes(data)
                found = scan(data.decode("utf-8", "surrogateescape"))
                self._scans[path] = digest, found
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


class _Search(Struct):
    """A search in progress: the files found, and those whose includes are still to be found."""

    headers: Headers
    source_scan: Scan
    source: str
    rendered: frozenset[str] = frozenset()
    files: dict[str, File] = field(default_factory=dict)
    queue: list[File] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)
    probed: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    outside: dict[str, File] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    sought: set[str] = field(default_factory=set)
    unknown: bool = False
    notes: dict[Diagnostic, None] = field(default_factory=dict)
    macros: Macros = field(default_factory=Macros)
    computed: bool = False
    texts: list[tuple[Scan, File | None]] = field(default_factory=list)
    """Those whose directives are not looked at until one asks for a name that macros make."""
    asking: dict[tuple[str, File | None], None] = field(default_factory=dict)
    undetermined: dict[str, File | None] = field(default_factory=dict)
    resolved: set[tuple[Include, File | None]] = field(default_factory=set)

    def run(self, extra: Sequence[str]) -> Closure:
        unmatched = tuple(pattern for pattern in extra if not self._declare(pattern))
        if self.headers.overlap.shadows:
            for name in self.headers.outside.implied:
                self._find(Include(name, quoted=True), None)
        self._follow(self.source_scan, None)
        while self.queue or self._compute():
            if self.queue:
                file = self.queue.pop()
                self._follow(file.scan, file)
        for operand, includer in [*self.undetermined.items()][:_MAX_NOTES]:
            self._note(
                Include(operand, quoted=False), includer,
                f"which header {operand} names {UNDETERMINED}",
                "name a header of include-dirs in plain words, or declare those that it can name: "
                'headers = ["…/*.h"] in [build] or in the script',
            )  # fmt: skip
        found = self._kept()
        shared = self.headers.overlap
        return Closure(
            found, sha256_text(manifest_of(found)), tuple(self.notes), unmatched,
            tuple(sorted(self.probed | shared.probed)),
            None if self.unknown else tuple(sorted(self.external)),
            frozenset(self.sought | shared.sought),
        )  # fmt: skip

    def _follow(self, found: Scan, includer: File | None) -> None:
        self.computed = self.computed or found.computed
        self.texts.append((found, includer))
        for include in found.includes:
            self._find(include, includer)

    def _find(self, include: Include, includer: File | None, *, sure: bool = True) -> None:
        beyond = includer if includer is not None and not includer.tree else None
        if include.name.startswith("/"):
            if beyond is None:
                self._absolute(include, includer)
            return
        if beyond and include.quoted:
            if self._enter(self.headers.beside(include, beyond)):
                return
            self.absent.add(os.path.dirname(beyond.path))
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
                if self._enter(self.headers.file("", path, path)):
                    if not include.next:
                        return
                else:
                    self.absent.add(self.headers.ancestor(os.path.dirname(path)))

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
                self._note(
                    include, includer, '".." after a symbolic link leads elsewhere in a copy',
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
                self._take(file)
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

    def _absolute(self, include: Include, includer: File | None) -> None:
        self.unknown = True
        self._note(
            include, includer, "the include is an absolute path",
            "put the header in a directory of include-dirs and include it by its name there",
        )  # fmt: skip

    def _take(self, file: File) -> None:
        known = self.files.get(file.name)
        if known is None:
            self.files[file.name] = file
            self.queue.append(file)

    def _declare(self, pattern: str) -> bool:
        matched = False
        for tree, files, directories in self.headers.declared(pattern):
            self.probed.update(directories)
            for name, path in files:
                file = self.headers.file(tree, name, path)
                if file is not None:
                    matched = True
                    self._take(file)
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
                self._find(include, includer, sure=each in asked.names)

    def _leads_out(self, include: Include, includer: File | None, tree: str) -> None:
        self._note(
            include,
            includer,
            f'"{include.name}" leads out of the directory that is copied ({tree})',
            "add the directory above both headers to include-dirs, and include the one that "
            "includes from there",
        )

    def _note(self, include: Include, includer: File | None, message: str, hint: str) -> None:
        spelled = include.name
        if includer is None:
            text, path = self.source, "source.cu"
        else:
            path = _shown(includer.name)
            try:
                text = read_text(includer.path, "replace")
            except OSError:
                text = ""
        self.notes[Diagnostic(message, _locate(text, path, spelled), hint, "warning")] = None

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


def _name_of(key: tuple[object, ...]) -> str:
    return sha256_text(repr(key))


def _locate(text: str, path: str, spelled: str) -> Place:
    for number, line in enumerate(text.split("\n"), 1):
        if "include" in line and spelled in line:
            return Place(path, number, line.index(spelled) + 1, line, len(spelled))
    return Place(path)


def _shown(name: str) -> str:
    """Return a header's name for messages, relative to the project if it is there."""
    return name.removeprefix("project/")
