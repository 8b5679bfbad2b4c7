"""Writing no-op records, and reading them in full, for a build that does not answer from one.

The bytes are those that `tilusbuild.noop.record` reads; it alone runs when there is nothing to do,
and imports nothing of this. What a record proves is what the plan read: each input has the stamp
that was seen before it was read, and one that could have changed after that without another stamp
makes that there is no record. So no clock is asked what happened during the build.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tilusbuild.noop.record import (
    BETWEEN,
    COUNT,
    HEAD,
    MAGIC,
    STAMP,
    groups_of,
    pieces_of,
)
from tilusbuild.state.clock import Moment
from tilusbuild.state.stamp import ABSENT, Sighting, Stamp, sighting

_BETWEEN = BETWEEN.decode()
_GROUP_SIZE = 1000
"""Entries: so many names are made at once."""

Endings: TypeAlias = "tuple[str, ...]"
_Group: TypeAlias = tuple[tuple[str, str], list[str], list[Stamp]]
"""What the names begin with, their endings with `BETWEEN` between them, the words, the stamps."""


def make(
    name: bytes,
    summary: bytes,
    inputs: Mapping[str, Sighting],
    entries: Mapping[tuple[str, Endings], Sequence[str]],
    started: Moment,
    is_whole: Callable[[str, str], bool] = lambda before, word: True,
) -> bytes | None:
    """Return a record; None when an input was too young at `started`, when the build began to read,
    for its stamp to show whether it changed after that.

    `inputs` are as they were before they were read. `entries` maps a prefix and endings to the
    words between: each path of prefix, word and ending is there. `is_whole` is asked for each
    prefix and word that changed after the start, when its stamps were taken: else a part that was
    removed meanwhile would be recorded as missing.
    """
    if not all(seen.is_settled(started) for seen in inputs.values()):
        return None
    files = sorted(inputs)
    groups = _by_directory(files, [inputs[file].stamp for file in files])
    for (before, endings), words in sorted(entries.items()):
        for start in range(0, len(words), _GROUP_SIZE):
            some = list(words[start : start + _GROUP_SIZE])
            seen = [sighting(before + word + ending) for word in some for ending in endings]
            found = [each.stamp for each in seen]
            most = len(endings)
            young = {at // most for at, each in enumerate(seen) if not each.is_settled(started)}
            if ABSENT in found or not all(is_whole(before, some[at]) for at in young):
                return None
            groups.append(((before, _BETWEEN.join(endings)), some, found))
    parts = [_packed(name), _packed(summary)]
    for around, middles, found in groups:
        names = "\0".join([*around, *middles]).encode("utf-8", "surrogateescape")
        parts += [_packed(names), _packed(b"".join(STAMP.pack(*stamp) for stamp in found))]
    body = b"".join(parts)
    return MAGIC + HEAD.pack(zlib.crc32(body), len(body)) + body


def _by_directory(files: Sequence[str], stamps: Sequence[Stamp]) -> list[_Group]:
    """Return the inputs as groups, each of one directory: there, a name is found sooner than by its
    whole path. What is missing, or has no absolute path, comes first and by its whole name."""
    directories: dict[str, tuple[list[str], list[Stamp]]] = {"": ([], [])}
    for file, stamp in zip(files, stamps, strict=True):
        directory, name = os.path.split(file)
        whole = stamp == ABSENT or not name or not os.path.isabs(file)
        key = "" if whole else os.path.join(directory, "")
        names, found = directories.setdefault(key, ([], []))
        names.append(file if whole else name)
        found.append(stamp)
    return [((directory, ""), *group) for directory, group in directories.items()]


def _packed(data: bytes) -> bytes:
    return COUNT.pack(len(data)) + data


def inputs(data: bytes) -> list[str]:
    """Return the inputs that a record names; none when it is damaged."""
    found = []
    for names, _ in groups_of(pieces_of(data)):
        before, after, *words = str(names, "utf-8", "surrogateescape").split("\0")
        if not after:
            found += [before + word for word in words]
    return sorted(found)
