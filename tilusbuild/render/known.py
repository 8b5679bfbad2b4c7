"""The closures of earlier plans, so that a plan does not search for headers where none can differ.

A closure follows from the includes of its source, from the search path, from the content of the
headers that were found, and from what is in the directories where one was looked for. It is kept
with the stamps of all of these, and given again only when each is what it was: a header whose stamp
differs is read, and a directory whose stamp differs is listed, where only the names that an include
asks for count. What changed within a tick of the search is not kept (`tilusbuild.state.stamp`), and
neither is a closure with declared patterns, whose directories are not all known.

The price is a stamp of every header and directory of the closure at each plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

from tilusbuild.errors import Diagnostic
from tilusbuild.render.closure import Closure, Header, names_sought
from tilusbuild.state.clock import Moment
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_text
from tilusbuild.state.stamp import Stamp, sighting

_ENVELOPE = Envelope("closures 2")
_SPARE = 16
"""So many closures that no source asks for are kept: those of includes that may come back."""


class Row(Struct, frozen=True, array_like=True):
    """A header of a closure, or one outside the project, which has no name; and its stamp."""

    path: str
    name: str
    sha256: str
    stamp: tuple[int, ...]


class Entry(Struct, frozen=True, array_like=True):
    """A closure; `headers` and `outside` are numbers of rows. Each directory is kept with its stamp
    and the digest of the names that count in it."""

    headers: list[int]
    outside: list[int]
    digest: str
    notes: tuple[Diagnostic, ...]
    probed: list[tuple[str, tuple[int, ...], str | None]]
    places: list[tuple[str, tuple[int, ...], str | None]]
    external: tuple[str, ...] | None
    shadowing: frozenset[str]


class _Known(Struct, array_like=True):
    """What a file has."""

    rows: list[Row] = field(default_factory=list)
    closures: dict[str, Entry] = field(default_factory=dict)


class KnownClosures:
    """The closures over one search path, in a file that is read when it is asked for and written by
    `save` only. The files that they have in common are kept once."""

    def __init__(
        self, path: str, memory: DigestMemory, places: Mapping[str, str] | None = None
    ) -> None:
        """`places` are directories by what stands for them in the file: where the same files lie
        elsewhere, their names and contents are compared, and nothing is searched for."""
        self._path = path
        self._places = sorted((places or {}).items(), key=lambda each: -len(each[1]))
        self._memory = memory
        self._loaded: _Known | None = None
        self._valid: dict[int, bool] = {}
        self._used: dict[str, None] = {}
        self._changed = False
        # Of `put`, which many sources of a plan ask for the same: directories, and rows.
        self._listed = cache(lambda path, stamp, sought: _names(path, sought))
        self._numbers: dict[Row, int] | None = None

    def look_again(self) -> None:
        """Look at every file again when it is asked for."""
        self._valid.clear()

    def forget(self) -> None:
        """Drop all that is known."""
        self._loaded, self._changed, self._numbers = _Known(), True, None
        self._used.clear()

    def moment(self) -> Moment:
        """Return when a search begins."""
        return self._memory.moment()

    def get(self, key: str) -> Closure | None:
        """Return a closure that a search would find again; None where that is not known."""
        known = self._read()
        entry = known.closures.get(key)
        if entry is None or not self._holds(known.rows, entry):
            return None
        self._used[key] = None
        found = [known.rows[index] for index in entry.headers]
        return Closure(
            tuple(Header(row.name, row.sha256, row.path or None) for row in found),
            entry.digest,
            entry.notes,
            (),
            tuple(path for path, _, _ in entry.probed),
            entry.external,
            entry.shadowing,
        )

    def put(
        self,
        key: str,
        found: Closure,
        since: Moment,
        outside: Mapping[str, str],
        places: Sequence[str],
    ) -> None:
        """Keep a closure that was searched for since a moment. `outside` are the headers outside
        the project that led to some of it, with their digests, `places` the directories there."""
        named = [(h.path or "", h.name, h.sha256) for h in found.headers]
        named += [(path, "", digest) for path, digest in outside.items()]
        paths = (*(path for path, _, _ in named if path), *found.probed, *places)
        seen = {path: sighting(path) for path in paths}
        if not all(each.is_settled(since) for each in seen.values()):
            return
        sought = found.sought
        stamps = {path: tuple(each.stamp) for path, each in seen.items()}
        probed = [(p, stamps[p], self._listed(p, stamps[p], sought)) for p in found.probed]
        beyond = [(p, stamps[p], self._listed(p, stamps[p], None)) for p in places]
        if any(names is None for _, _, names in probed):
            return
        known = self._read()
        if self._numbers is None:
            self._numbers = {row: index for index, row in enumerate(known.rows)}
        indices = []
        for path, name, digest in named:
            row = Row(path, name, digest, stamps[path] if path else ())
            indices.append(self._numbers.setdefault(row, len(known.rows)))
            if indices[-1] == len(known.rows):
                known.rows.append(row)
        split = len(found.headers)
        known.closures[key] = Entry(
            indices[:split], indices[split:], found.digest, found.notes, probed, beyond,
            found.external, found.shadowing,
        )  # fmt: skip
        self._used[key] = None
        self._changed = True

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        if not self._changed:
            return
        known = self._read()
        spare = [key for key in known.closures if key not in self._used][-_SPARE:]
        kept = {key: known.closures[key] for key in (*spare, *self._used)}
        wanted = dict.fromkeys(i for e in kept.values() for i in (*e.headers, *e.outside))
        number = {old: new for new, old in enumerate(wanted)}
        written = {
            key: replace(
                each,
                headers=[number[i] for i in each.headers],
                outside=[number[i] for i in each.outside],
            )
            for key, each in kept.items()
        }
        body = _Known([known.rows[index] for index in wanted], written)
        body = _moved(body, [(place, name) for name, place in self._places])
        with suppress(UnicodeEncodeError):  # a path that is not UTF-8
            _ENVELOPE.write(self._path, msgpack.encode(body))
        self._changed = False

    def _read(self) -> _Known:
        if self._loaded is None:
            body = _ENVELOPE.read(self._path)
            self._loaded = _Known() if body is None else msgpack.decode(body, type=_Known)
            self._loaded = _moved(self._loaded, self._places)
        return self._loaded

    def _holds(self, rows: Sequence[Row], entry: Entry) -> bool:
        indices = (*entry.headers, *entry.outside)
        return all(self._is_current(index, rows[index]) for index in indices) and (
            self._same_names(entry)
        )

    def _is_current(self, index: int, row: Row) -> bool:
        if index not in self._valid:
            self._valid[index] = not row.path or self._is_same(row)
        return self._valid[index]

    def _is_same(self, row: Row) -> bool:
        if self._memory.look(row.path) == row.stamp:
            return True
        try:
            return self._memory.digest(row.path) == row.sha256
        except OSError:
            return False

    def _same_names(self, entry: Entry) -> bool:
        changed = _changed(entry.probed)
        beyond = _changed(entry.places)
        if any(names is None or _names(path, None) != names for path, names in beyond):
            return False
        if not changed:
            return True
        names = tuple(self._read().rows[i].name for i in entry.headers)
        sought = names_sought(entry.external, names, entry.shadowing)
        return all(_names(path, sought) == names for path, names in changed)


def _moved(known: _Known, places: Sequence[tuple[str, str]]) -> _Known:
    """Return what is known with other names for directories."""
    if not places:
        return known

    def moved(path: str) -> str:
        for old, new in places:
            if path.startswith(old) and path[len(old) : len(old) + 1] in ("", "/"):
                return new + path[len(old) :]
        return path

    return _Known(
        [replace(row, path=moved(row.path)) for row in known.rows],
        {
            key: replace(
                each,
                probed=[(moved(path), *rest) for path, *rest in each.probed],
                places=[(moved(path), *rest) for path, *rest in each.places],
            )
            for key, each in known.closures.items()
        },
    )


def _changed(
    directories: Iterable[tuple[str, Sequence[int], str | None]],
) -> list[tuple[str, str | None]]:
    """Return those that have another stamp, with the names that were in them."""
    return [
        (path, names) for path, stamp, names in directories if sighting(path).stamp != Stamp(*stamp)
    ]


def _names(path: str, sought: frozenset[str] | None) -> str | None:
    """Return the digest of those names in a directory that count, each with what it is; what there
    is where it is none. None where an answer would not last: what a link leads to may come."""
    try:
        with os.scandir(path) as entries:
            counted = [entry for entry in entries if sought is None or entry.name in sought]
            kinds = [(e.name, "/" if e.is_dir() else "" if e.is_file() else None) for e in counted]
    except NotADirectoryError:
        return "file"
    except OSError:
        return "nothing"
    if any(kind is None for _, kind in kinds):
        return None
    return sha256_text("\n".join(sorted(f"{name}{kind}" for name, kind in kinds)))
