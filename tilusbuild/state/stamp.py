"""The one stamp of a file, and the one rule for when equal stamps mean equal content.

A stamp is what `stat` says of a file: size, mtime, ctime and inode. Different stamps mean that the
file may have changed. Equal stamps prove that it did not only when the file was already older than
the file system's tick when it was read: a file that changes again within one tick keeps its times.
How old it was, only the clock that stamps it can say (`tilusbuild.state.clock`).

`tilusbuild.noop` holds a minimal copy, because it may import nothing; tests/state/test_stamp.py
holds both against one table of cases.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from tilusbuild.runtime.regular import try_stat
from tilusbuild.state.clock import FileTime

# Nanoseconds. Linux stamps files with the time of its last timer tick, up to 10 ms ago.
TICK = 50_000_000
# Nanoseconds: the coarsest time stamp of a file system in use (FAT, some network ones).
COARSE_TICK = 2_000_000_000


class Stamp(NamedTuple):
    """What `stat` says of a file. Times are in ns since 1970."""

    size: int
    """In bytes; 0 for a directory, whose size says nothing and differs between file systems; -1
    where there is nothing."""
    mtime: int
    ctime: int
    """Cannot be set back: it changes even with an edit that restores size and mtime."""
    inode: int

    @property
    def newest(self) -> int:
        """The time of the last change."""
        return max(self.mtime, self.ctime)

    @property
    def tick(self) -> int:
        """How far the times may be apart from the clock. A file system that keeps whole seconds is
        recognised by its stamps."""
        whole_seconds = self.mtime % 1_000_000_000 == 0 and self.ctime % 1_000_000_000 == 0
        return COARSE_TICK if whole_seconds else TICK

    def is_settled(self, time: int) -> bool:
        """Return whether a later change would give another stamp, for a file that was read at
        `time` by the clock that stamps it."""
        return is_settled(self.newest, time, self.tick)


# The stamp of a path where there is nothing.
ABSENT = Stamp(-1, 0, 0, 0)


def is_settled(newest: int, time: int, tick: int = COARSE_TICK) -> bool:
    """Return whether a file that last changed at `newest` was old enough at `time` to trust its
    stamp.

    This is the only place that compares time stamps with a clock: `time` comes from
    `FileTime.get_time_on`. The default `tick` is the coarsest one, for digests that are kept for
    good.
    """
    return newest < time - tick


def read_stamp(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a path, links followed; `ABSENT` where nothing exists."""
    return read_device_stamp(path).stamp


def make_stamp(status: os.stat_result) -> Stamp:
    """Return the stamp of a status."""
    # A directory's size is left out: its times show each change of its names.
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return Stamp(size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class DeviceStamp(NamedTuple):
    """A stamp and the file system of the file."""

    stamp: Stamp
    device: int
    """`st_dev`; -1 where there is nothing."""

    def is_settled(self, time: FileTime) -> bool:
        """Return whether a change after `time` would have given another stamp."""
        return self.stamp == ABSENT or self.stamp.is_settled(time.get_time_on(self.device))


def read_device_stamp(path: str | os.PathLike[str]) -> DeviceStamp:
    """Return the stamp and the file system of a path, links followed."""
    status = try_stat(path)
    if status is None:
        return DeviceStamp(ABSENT, -1)
    return DeviceStamp(make_stamp(status), status.st_dev)


def are_settled(stamps: Iterable[DeviceStamp], time: FileTime) -> bool:
    """Return whether all stamps were old enough at `time` for digests that are kept for good."""
    return all(is_settled(s.newest, time.get_time_on(device)) for s, device in stamps)


class PathContent(Struct, frozen=True):
    """The stamp and the content of a path at one time."""

    stamp: Stamp
    content: str | frozenset[str] | None
    """A file's digest, the names in a directory, None for nothing."""
    settled: bool
    """Whether an equal stamp means equal content."""
    device: int = -1
    """`st_dev`; -1 where nothing exists."""

    def may_have_changed_since(self, moment: FileTime) -> bool:
        """Return whether the path may have changed after `moment`."""
        return not DeviceStamp(self.stamp, self.device).is_settled(moment)


def read_path_content(
    path: str,
    digest: Callable[[str], str],
    names: Callable[[str], frozenset[str]] = lambda directory: frozenset(os.listdir(directory)),
    *,
    now: Callable[[], FileTime],
    before: PathContent | None = None,
) -> PathContent:
    """Return the stamp and content of `path`; `before` itself when its stamp proves that nothing
    changed. The content is None for a path that is missing or cannot be read.

    `digest` returns the digest of a file, `names` the names in a directory that count; both may
    raise `OSError`. `now` returns an instant, as `FileClock.read_recent_time` does.
    """
    # The clock is read before `stat`: a change between the two must not count as settled.
    time = now()
    status = try_stat(path)
    if status is None:
        return PathContent(ABSENT, content=None, settled=True)
    path_stamp, device = make_stamp(status), status.st_dev
    if before is not None and before.settled and before.stamp == path_stamp:
        return before
    try:
        content = names(path) if stat.S_ISDIR(status.st_mode) else digest(path)
    except OSError:
        # `settled` is False: an error of the disk may pass without a change of the stamp.
        return PathContent(path_stamp, content=None, settled=False, device=device)
    settled = path_stamp.is_settled(time.get_time_on(device))
    return PathContent(path_stamp, content, settled, device)
