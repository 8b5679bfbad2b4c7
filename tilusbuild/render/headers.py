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
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic, InputError, Location, input_error
from tilusbuild.render.closure import (
    HEADER_SUFFIXES,
    KEEP,
    Closure,
    Header,
    Outside,
    Overlap,
    PatternMatches,
    Root,
    find_overlap,
    format_manifest,
    has_links_before_parent,
    list_parents,
    list_passed_directories,
    match_below,
    match_declared,
    tell_twins_apart,
)
from tilusbuild.render.preprocessor import Include, Scan, scan_text
from tilusbuild.render.scans import ScanMemory
from tilusbuild.runtime.regular import read_bytes, try_read_text, try_stat
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_bytes, sha256_text
from tilusbuild.state.patterns import PatternTooWideError

_MAX_NOTES = 3
"""About names that macros make: a library has hundreds."""
_EMPTY = sha256_bytes(b"")
_MAX_LEVELS = 8
"""How far an include may lead above its tree: a project has no business at the root."""
_MAX_NAMES = 8
"""Names of one file by links. A circle of includes through a link makes longer ones without end."""


class SearchDirectory(NamedTuple):
    """A directory in which an include is looked for: `name` in the copy of the headers, `path` on
    disk. `tree` is the copy's top directory that it belongs to, "" outside the project."""

    tree: str
    name: str
    path: str


class HeaderFile(Struct, frozen=True, eq=False):
    """A header on disk. Outside the project its `tree` is "" and its `name` is its path."""

    tree: str
    name: str
    path: str
    digest: str
    scan: Scan


class Headers:
    """The headers that the sources of one plan can include. Each is read and resolved once.

    `roots` are in search order, and `outside` comes after them. `scans` may be shared by several.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        digests: DigestMemory,
        outside: Outside | None = None,
        scans: ScanMemory | None = None,
    ) -> None:
        self.roots = tuple(roots)
        self.base_names = {root.base[0] for root in self.roots}
        self.source_directories = {root.name for root in self.roots if root.quoted_only}
        # Lists, since a large project has a hundred thousand includes.
        self._quoted_directories, self._directories = (
            [SearchDirectory(r.tree, r.name, r.path) for r in self.roots if r.quoted_only == quoted]
            for quoted in (True, False)
        )
        self.outside = outside or Outside(())
        self._digests = digests
        self._scans = scans = scans or ScanMemory()
        self._closures: dict[object, Closure] = {}
        # These methods read the disk: each answer is kept for all sources.
        self.find_file = cache(self._read_file)
        self.find_existing_ancestor = cache(self._find_existing_ancestor)
        self.match_declared = cache(lambda pattern: [*match_declared(self.roots, pattern)])
        self.list_below = cache(self._match_headers)
        self.follow_includes = cache(self._follow_includes)
        self.add_levels = cache(
            lambda count: Headers(
                [root.add_levels(count) for root in roots],
                digests=digests, outside=outside, scans=scans,
            )
        )  # fmt: skip

    def find_closure(
        self,
        source: str,
        *,
        extra: Sequence[str] = (),
        rendered: Collection[str] = (),
    ) -> Closure:
        """Return the headers that `source` can reach, and those that match a pattern of `extra`.

        Patterns are relative to a root or to a root's tree. `rendered` are the names of generated
        headers, which lie beside the source; `source` contains their texts. Raises
        `PatternTooWideError`, and `InputError` for a header that cannot be read.
        """
        source_scan = scan_text(source)
        key = source_scan, tuple(extra), tuple(sorted(rendered))
        if (closure := self._closures.get(key)) is None:
            search = _ClosureSearch(self, frozenset(rendered))
            closure = search.run_search(source_scan, source, extra)
            if search.levels:
                deeper = self.add_levels(search.levels)
                closure = deeper.find_closure(source, extra=extra, rendered=rendered)
            self._closures[key] = closure
        return closure

    def _follow_includes(self, includer: HeaderFile, rendered: frozenset[str]) -> ReachedHeaders:
        """Return the headers that the includes of one header name. Their own includes are not
        followed, so the answer is the same for every source."""
        reached = ReachedHeaders(self, rendered)
        for include in includer.scan.includes:
            reached.resolve_include(include, includer)
        return reached

    @cached_property
    def overlap(self) -> Overlap:
        """What the roots and the directories outside have in common."""
        return find_overlap(dict.fromkeys(r.path for r in self.roots), self.outside.directories)

    def list_candidates(
        self, include: Include, includer: HeaderFile | None
    ) -> Iterable[SearchDirectory]:
        """Yield the directories in which a compiler looks for an include, in its order."""
        if include.quoted and includer is not None:
            yield _get_directory(includer)
        # gcc searches all of `-iquote` before any of `-I`, and both for `#include_next <x.h>` of a
        # header that was found beside another.
        if include.quoted or include.next:
            yield from self._quoted_directories
        yield from self._directories

    def _match_headers(self, tree: str, name: str, path: str) -> PatternMatches:
        """Return the files below a directory that may be headers. Raises `PatternTooWideError`."""
        # A name that macros make may be that of a hidden file.
        matches = match_below(tree, name, path, hidden_names=True)

        def is_header(file: str) -> bool:
            """Return whether a file may be a header: by its suffix at the top of a tree, which is
            often a project with few headers, and if it is hidden; else any but a template."""
            is_hidden = posixpath.basename(file).startswith(".")
            if is_hidden or name in self.base_names:
                return file.endswith(HEADER_SUFFIXES)
            return not file.endswith(".j2")

        return replace(matches, files=tuple(file for file in matches.files if is_header(file[0])))

    def find_outside(self, directory: str, include: Include) -> HeaderFile | None:
        """Return the header that an include means in a directory outside the project; None if the
        directory has none."""
        path = os.path.normpath(os.path.join(directory, include.name))
        return self.find_file("", path, path)

    def _read_file(self, tree: str, name: str, path: str) -> HeaderFile | None:
        """Return the file at a path; None if there is none. It is scanned only if its digest is
        new. Raises `InputError` if it cannot be read."""
        # A pipe or a device is not a header, and reading one could wait for ever.
        status = try_stat(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        try:
            digest = self._digests.digest_file(path)
            if (header_scan := self._scans.get_scan(digest)) is None:
                data = read_bytes(path)
                # The file may have changed since it was digested, so the scan is kept under the
                # digest of the bytes that were scanned.
                digest = sha256_bytes(data)
                header_scan = scan_text(data.decode("utf-8", "surrogateescape"))
                self._scans.put_scan(digest, header_scan)
        except OSError as error:
            raise input_error(
                f"cannot read the header {name.removeprefix('project/')}: {error.strerror}",
                location=Location(path),
            ) from None
        return HeaderFile(tree, name, path, digest, header_scan)

    def _find_existing_ancestor(self, directory: str) -> str:
        """Return a directory if it exists, else its nearest existing ancestor: this one is watched,
        because creating the directory changes it."""
        parent = os.path.dirname(directory)
        if parent == directory or os.path.isdir(directory):
            return directory
        return self.find_existing_ancestor(parent)


_Sight: TypeAlias = "tuple[str, HeaderFile | None]"


class ReachedHeaders(Struct):
    """The headers that some includes name, and the names and directories that decided it."""

    headers: Headers
    rendered: frozenset[str]
    files: dict[str, HeaderFile] = field(default_factory=dict)
    """By name, those outside the project too."""
    directories: set[str] = field(default_factory=set)
    """Directories of the copy that `..` of an include passes through."""
    probed: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)
    sought: set[str] = field(default_factory=set)
    """Names that headers outside the project ask for."""
    unknown: bool = False
    """Whether an include was not followed, so that `external` is incomplete."""
    levels: int = 0
    """How far `..` of an include leads above its tree. The search is then made again with so many
    directories more."""
    sights: dict[tuple[str, str | None], _Sight] = field(default_factory=dict)
    """By a name that an include means in the copy and its file's path (None: there is none), the
    include and its includer."""
    has_links: bool = False
    """Whether `..` of an include follows a link, so that a name may have two files."""
    notes: dict[tuple[HeaderFile | None, str, str, str], bool] = field(default_factory=dict)
    queue: list[HeaderFile] = field(default_factory=list)
    """Files whose includes were not followed yet."""

    def add_reached(self, reached: ReachedHeaders) -> None:
        """Add all that `reached` has. Its files are queued if they are new."""
        for file in reached.files.values():
            self.add_file(file)
        self.directories |= reached.directories
        self.probed |= reached.probed
        self.external |= reached.external
        self.sought |= reached.sought
        self.unknown |= reached.unknown
        self.levels = max(self.levels, reached.levels)
        self.has_links |= reached.has_links
        self.notes |= reached.notes

    def resolve_include(self, include: Include, includer: HeaderFile | None) -> None:
        """Add the headers that an include can mean, in the order of a compiler's search.

        `includer` is the header with the include, None for the source. Directories without the
        header are added to `probed`, the names of headers outside the project to `external` or
        `sought`, and includes that the compile will not find to `notes`.

        An absolute path is not followed. A quoted include of a header outside means first a file
        beside that header. Then the roots are searched and, if a header of the project shadows one
        outside, the directories outside. `#include_next` means all of these files.
        """
        outside_includer = includer if includer is not None and not includer.tree else None
        if include.name.startswith("/"):
            if outside_includer is None:
                self.unknown = True
                self.add_note(
                    include.name, includer, "the include is an absolute path",
                    "put the header in a directory of include-dirs and include it by its name "
                    "there",
                )  # fmt: skip
            return
        if outside_includer is not None and include.quoted:
            directory = os.path.dirname(outside_includer.path)
            is_beside = self.add_file(self.headers.find_outside(directory, include))
            if is_beside:
                return
        project_includer = None if outside_includer else includer
        is_in_roots = self._resolve_in_roots(include, project_includer)
        if is_in_roots and not include.next:
            return
        if outside_includer:
            self.sought.add(include.name)
        else:
            if ".." in include.name.split("/"):
                self.add_note(
                    include.name, includer, f'"{include.name}" leads out of include-dirs',
                    "add the directory above both headers to include-dirs, and include the one "
                    "that includes from there",
                )  # fmt: skip
            self.external.add(include.name)
        if self.headers.overlap.shadows:
            for directory in self.headers.outside.directories:
                file = self.headers.find_outside(directory, include)
                if self.add_file(file) and not include.next:
                    return

    def _resolve_in_roots(self, include: Include, includer: HeaderFile | None) -> bool:
        """Add the headers that an include means in the roots; directories without it are added to
        `probed`. Return whether a root has one, or the source's directory a rendered one."""
        is_resolved = False
        is_rendered = include.quoted and include.name in self.rendered
        for tree, directory, disk_directory in self.headers.list_candidates(include, includer):
            # A generated header lies beside the source: no file of its name is looked for there.
            if is_rendered and directory in self.headers.source_directories:
                return True
            path = f"{disk_directory}/{include.name}"
            name = posixpath.normpath(f"{directory}/{include.name}")
            passed_directories, levels = list_passed_directories(directory, include.name)
            if levels:
                self.levels = max(self.levels, levels if levels <= _MAX_LEVELS else 0)
                continue
            if ".." in include.name and has_links_before_parent(path):
                self.has_links = True
                # A path through a link to nothing leads to no file. A header that is a link itself
                # is in the directory that has the link.
                if os.path.exists(path):
                    directory_path, _, base_name = path.rpartition("/")
                    path = f"{os.path.realpath(directory_path)}/{base_name}"
            file = self.headers.find_file(tree, name, path)
            found_path = None if file is None else os.path.normpath(path)
            # `..` cannot follow a directory that is missing, here and in the copy.
            before, climb, _ = path.rpartition("/../")
            if file is not None or not climb or os.path.isdir(before):
                self.sights.setdefault((name, found_path), (include.name, includer))
            if file is None:
                self.probed.add(self.headers.find_existing_ancestor(os.path.dirname(path)))
                continue
            is_resolved = True
            self.add_file(file)
            self.directories.update(passed_directories)
            # Where `#include_next` goes on depends on where the compiler found the including file,
            # which is not known here: the headers of all directories are taken.
            if not include.next:
                break
        return is_resolved

    def add_file(self, file: HeaderFile | None) -> bool:
        """Add a header, and queue it if it is new, so that its includes are followed. Return False
        for None."""
        if file is not None and file.name not in self.files:
            self.files[file.name] = file
            self.queue.append(file)
        return file is not None

    def add_note(
        self,
        include_text: str,
        includer: HeaderFile | None,
        message: str,
        hint: str,
        *,
        undetermined: bool = False,
    ) -> None:
        """Add what an error about this include would say; `undetermined` is as in `Diagnostic`."""
        self.notes[includer, include_text, message, hint] = undetermined


class _ClosureSearch(ReachedHeaders):
    """A search in progress. An include is computed if macros make the name of its header."""

    is_computed: bool = False
    """Whether macros make a name in a text of the project."""
    climbs: bool = False
    """Whether such a name may have `..` in it."""
    includer_directories: dict[SearchDirectory, None] = field(default_factory=dict)
    """The directories of the headers with computed includes."""
    taken_directories: set[SearchDirectory] = field(default_factory=set)
    """The directories of which every file was taken."""
    operands: dict[str, HeaderFile | None] = field(default_factory=dict)
    """The header with a computed include (None: the source), by the include's operand."""
    name_counts: Counter[str] = field(default_factory=Counter)
    """The names of each file since `has_links`, by its real path."""

    def run_search(self, source_scan: Scan, source: str, extra: Sequence[str]) -> Closure:
        """Return the closure of a source, whose scan is `source_scan`. Raises `InputError`."""
        unmatched = []
        for pattern in extra:
            has_matches = [self._add_matches(m) for m in self.headers.match_declared(pattern)]
            if not any(has_matches):
                unmatched.append(pattern)
        # nvcc includes these by itself; only where a header of the project may be taken for one
        # that they include, it matters which headers they reach.
        if self.headers.overlap.shadows:
            for name in self.headers.outside.implied:
                self.resolve_include(Include(name, quoted=True), None)
        self._note_scan(source_scan, None)
        for include in source_scan.includes:
            self.resolve_include(include, None)
        # When the queue is empty, the files for computed includes are added to it: they may have
        # includes, too. The search ends when there are no new ones.
        while self.queue or self._add_computed(source):
            file = self.queue.pop()
            self._note_scan(file.scan, file)
            self.add_reached(self.headers.follow_includes(file, self.rendered))
            if self.has_links:
                self.name_counts[real_path := os.path.realpath(file.path)] += 1
                if self.name_counts[real_path] > _MAX_NAMES:
                    break
        # With `levels` this search is thrown away: one over deeper roots follows.
        if self.has_links and not self.levels:
            self._check_names(source)
        for operand, includer in [*self.operands.items()][:_MAX_NOTES]:
            self.add_note(
                operand, includer, f"which header {operand} names is not known before the compile",
                "those that it can name are looked for in include-dirs: put them there, or declare "
                'them: headers = ["…/*.h"] in [build] or in the script', undetermined=True,
            )  # fmt: skip
        headers = self._list_headers()
        overlap = self.headers.overlap
        notes = [
            _make_diagnostic(source, *note)._replace(undetermined=undetermined)
            for note, undetermined in self.notes.items()
        ]
        return Closure(
            headers,
            sha256_text(format_manifest(headers)),
            roots=self.headers.roots,
            notes=tuple(dict.fromkeys(notes)),
            unmatched=tuple(unmatched),
            probed=tuple(sorted(self.probed | overlap.probed)),
            external=None if self.unknown else tuple(sorted(self.external)),
            shadowing=frozenset(self.sought | overlap.sought),
        )

    def _check_names(self, source: str) -> None:
        """Raise `InputError` if a name in the copy, which has no links, would mean two files, or a
        file where there is none; also if a file has more than `_MAX_NAMES`."""
        sights: dict[tuple[str, str | None], _Sight] = {
            (file.name, os.path.normpath(file.path)): ("", None) for file in self.files.values()
        } | self.sights
        for file in self.files.values():
            sights |= self.headers.follow_includes(file, self.rendered).sights
        path_of_name: dict[str, str | None] = {}
        # The error names an include with `..`, which is looked at last.
        ordered_sights = sorted(sights.items(), key=lambda item: ".." in item[1][0])
        for (name, path), (include_text, includer) in ordered_sights:
            real_path = path and os.path.realpath(path)
            is_endless = include_text and self.name_counts[real_path or ""] > _MAX_NAMES
            if path_of_name.setdefault(name, real_path) != real_path or is_endless:
                message = '".." after a symbolic link leads elsewhere in a copy'
                hint = "include the header by a path without the link"
                diagnostic = _make_diagnostic(source, includer, include_text, message, hint)
                raise InputError(diagnostic._replace(severity="error"))

    def _note_scan(self, text_scan: Scan, includer: HeaderFile | None) -> None:
        """Note whether a text has computed includes, their operands, and the directory of the
        includer (None: the source). Those of a header outside the project do not count."""
        if includer is not None and not includer.tree:
            return
        self.climbs |= text_scan.climbs
        if not text_scan.is_computed:
            return
        self.is_computed = self.unknown = True
        for operand in text_scan.operands:
            self.operands.setdefault(operand, includer)
        if includer is not None:
            self.includer_directories[_get_directory(includer)] = None

    def _add_matches(self, matches: PatternMatches) -> bool:
        """Add the files that a pattern matches, and to `probed` the directories where a new file
        could match. Return whether there is a file."""
        has_match = False
        self.probed.update(path for _, path in matches.directories)
        for name, path in matches.files:
            has_match |= self.add_file(self.headers.find_file(matches.tree, name, path))
        return has_match

    def _add_computed(self, source: str) -> bool:
        """Add every file that a computed include of the texts so far can name. Return whether the
        queue has new ones. Raises `InputError` for more files than a program may carry."""
        if not self.is_computed:
            return False
        roots = self.headers.roots
        directories = dict.fromkeys(
            SearchDirectory(root.tree, root.name, root.path) for root in roots
        )
        directories |= self.includer_directories
        # If the name may have `..` in it, it may lead to any directory up to the tree's own.
        tree_directories = set()
        if self.climbs:
            tree_directories = {SearchDirectory(root.tree, *root.base) for root in roots}
        for directory in (*directories, *sorted(tree_directories)):
            if directory in self.taken_directories:
                continue
            self.taken_directories.add(directory)
            try:
                matches = self.headers.list_below(*directory)
            except PatternTooWideError as error:
                # Its files are left out. If the compile misses one, the note of the include says
                # why.
                if directory in tree_directories:
                    continue
                raise self._make_too_wide_error(source, error) from None
            self._add_matches(matches)
            if self.climbs:
                self.directories.update(name for name, _ in matches.directories)
        return bool(self.queue)

    def _make_too_wide_error(self, source: str, error: PatternTooWideError) -> InputError:
        """Return the error for a directory of which a program cannot carry all files."""
        operand, includer = next(iter(self.operands.items()), ("", None))
        message = (
            f"which header {operand or 'a macro'} names is not known before the compile, and the "
            f"directory is too large for all of it to be a part of the program: {error.reason}"
        )
        hint = (
            "name the header in plain words, or put those that it can name into a smaller "
            "directory of include-dirs"
        )
        diagnostic = _make_diagnostic(source, includer, operand, message, hint)
        return InputError(diagnostic._replace(severity="error"))

    def _list_headers(self) -> tuple[Header, ...]:
        """Return the headers, and an empty file in each directory that only `..` passes through."""
        project_files = (file for file in self.files.values() if file.tree)
        headers = [
            *tell_twins_apart(Header(file.name, file.digest, file.path) for file in project_files)
        ]
        existing_directories = {
            parent for header in headers for parent in list_parents(header.name)
        }
        headers += [
            Header(f"{directory}/{KEEP}", _EMPTY, None)
            for directory in self.directories
            if directory not in existing_directories
        ]
        return tuple(sorted(headers, key=lambda header: header.name))


def _get_directory(file: HeaderFile) -> SearchDirectory:
    """Return the directory of a header."""
    return SearchDirectory(file.tree, posixpath.dirname(file.name), os.path.dirname(file.path))


def _make_diagnostic(
    source: str, includer: HeaderFile | None, include_text: str, message: str, hint: str
) -> Diagnostic:
    """Return a warning at the line of an include, in the text of its includer (None: `source`)."""
    if includer is None:
        text, path = source, "source.cu"
    else:
        path = includer.name.removeprefix("project/")
        text = try_read_text(includer.path, "replace") or ""
    return Diagnostic(message, _locate_include(text, path, include_text), hint, "warning")


def _locate_include(text: str, path: str, include_text: str) -> Location:
    """Return the place of the first include of `include_text`; without one that of the file."""
    for number, line in enumerate(text.split("\n"), 1):
        if "include" in line and include_text in line:
            return Location(path, number, line.index(include_text) + 1, line, len(include_text))
    return Location(path)
