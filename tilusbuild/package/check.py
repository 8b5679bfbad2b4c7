"""Is a package what its list says? Offline, and without running anything of it.

Names, sizes and digests are compared as the files arrive; then each program and each script is
checked for itself as soon as its files are there. What is held in memory is bounded: one program's
library and texts, or several where a container mixes them up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.arriving import (
    Arrival,
    Limits,
    Refuse,
    arrivals,
    check_limits,
    raising,
    written,
)
from tilusbuild.package.check_program import READ, check_include, check_program
from tilusbuild.package.check_script import check_script
from tilusbuild.package.check_wheel import check_wheel
from tilusbuild.package.errors import OverLimit, PackageError
from tilusbuild.package.formats.read_wheel import WheelReader
from tilusbuild.package.kinds import ContentChecker, kind_with_key
from tilusbuild.package.layers import layers
from tilusbuild.package.listing import FileEntry, FileList, parse
from tilusbuild.package.reader import Reader

_LARGEST_LIBRARY = 256 << 20
_LARGEST_TEXT = 64 << 20
_MOST_WAITING = 512 << 20
"""Bytes of programs that have not come whole."""
_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found. `listing` is None when there is no list to go by."""

    listing: FileList | None
    problems: tuple[PackageError, ...]


def verify(reader: Reader, limits: Limits) -> Verified:
    """Check everything, and collect what is wrong; what makes going on impossible comes last."""
    problems: list[PackageError] = []

    def refuse(error: PackageError) -> None:
        problems.append(error)
        if len(problems) >= _MOST_PROBLEMS:
            raise OverLimit(f"more than {_MOST_PROBLEMS} things are wrong")

    listing = None
    try:
        listing = parse(reader.list_bytes())
        check_limits(listing, reader, limits)
        reader.attestations()
        with tempfile.TemporaryDirectory(prefix="tilusbuild-verify-") as folder:
            checker = Checker(listing, folder, refuse)
            for arrival in arrivals(reader, listing, layers(listing), refuse=refuse):
                try:
                    checker.take(arrival, keep=arrival.path.startswith(layout.SCRIPTS))
                except PackageError as error:
                    refuse(error)
            checker.finish()
        if isinstance(reader, WheelReader):
            check_wheel(reader, listing)
    except PackageError as error:
        problems.append(error)
    return Verified(listing, tuple(problems))


@dataclass(slots=True)
class Checker:
    """Takes the files of a package as they come, and keeps those that are wanted below `folder`.

    `refuse` is told of each thing that is wrong, and raises or returns.
    """

    listing: FileList
    folder: str
    refuse: Refuse = raising
    _data: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """What was read of the programs and header folders that are not whole yet."""
    _files: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)
    """How many files of each script have not been kept."""
    _waiting: int = 0
    _content: ContentChecker | None = None
    """Of a package of another kind."""

    def __post_init__(self) -> None:
        if self.listing.part is not None:
            self._content = kind_with_key(self.listing.part.key).checker(self.listing)
        for path, entry in self.listing.files.items():
            kind, _, digest = names.root_of(path)
            if kind == layout.SCRIPTS:
                self._left[digest] = self._left.get(digest, 0) + 1
            else:
                self._files.setdefault(f"{kind}/{digest}", {})[_within(path)] = entry

    def take(self, arrival: Arrival, *, keep: bool) -> None:
        """Read a file to its end. Raises `FileChanged`, `OverLimit`, and what the reader raises."""
        if self._content is not None:
            self._take_part(self._content, arrival, keep=keep)
            return
        kind, _, digest = names.root_of(arrival.path)
        name = _within(arrival.path)
        wanted = {layout.PROGRAMS: READ, layout.INCLUDE: (layout.MANIFEST,)}.get(kind, ())
        pieces = written(arrival, self.folder) if keep else arrival.pieces()
        if name not in wanted:
            for _ in pieces:
                pass
            if keep and kind == layout.SCRIPTS:
                self._left[digest] -= 1
            return
        self._admit(arrival, _LARGEST_LIBRARY if name == layout.LIBRARY else _LARGEST_TEXT)
        root = f"{kind}/{digest}"
        data = self._data.setdefault(root, {})
        data[name] = b"".join(pieces)
        if len(data) == len(wanted):
            self._waiting -= sum(map(len, self._data.pop(root).values()))
            if kind == layout.PROGRAMS:
                self._told(check_program, self.listing, digest, data, self._files[root])
            else:
                self._told(check_include, digest, data[name], self._files[root])

    def finish(self) -> None:
        """Check the scripts that were kept whole."""
        for script in self.listing.scripts:
            if not self._left[script.hash]:
                self._told(check_script, self.listing, script, self.folder)

    def _take_part(self, checker: ContentChecker, arrival: Arrival, *, keep: bool) -> None:
        wanted = checker.wants(arrival)
        pieces = written(arrival, self.folder) if keep else arrival.pieces()
        data = b"".join(piece if wanted else b"" for piece in pieces)
        if wanted:
            self._told(checker.check, arrival.path, data)

    def _admit(self, arrival: Arrival, most: int) -> None:
        if arrival.entry.size > most:
            raise OverLimit(f"{arrival.path} has more than {most} bytes")
        self._waiting += arrival.entry.size
        if self._waiting > _MOST_WAITING:
            raise OverLimit("the files of its programs are too far apart")

    def _told(self, check: Callable[..., None], *arguments: object) -> None:
        try:
            check(*arguments)
        except PackageError as error:
            self.refuse(error)


def _within(path: str) -> str:
    """A file's name within its program or header folder."""
    return path.split("/", 2)[2]
