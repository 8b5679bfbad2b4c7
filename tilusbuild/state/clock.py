"""Moments by the clock that stamps files, which may be that of another machine.

A file server, or the host of a virtual machine, may be behind our clock by seconds or ahead of it,
and a stamp says nothing of what happened after a moment that is only known by another clock.

So a moment is taken from a file that is made at that moment, on the file system of the cache.

- Local file systems are stamped by this kernel: one moment serves all of them.
- Of a remote one that is not the cache's, no file is made. Its clock is unknown, and is taken to be
  behind by no more than `REMOTE_LAG`.
- A moment is never later than the instant at which it was asked for: to be early costs reading.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from tilusbuild.runtime.regular import open_regular, try_read_text
from tilusbuild.state.directories import list_mounts

# Nanoseconds that the clock of a remote file system may be behind ours. The price: files there that
# are younger are read in each build.
REMOTE_LAG = 600_000_000_000
# Nanoseconds for which a moment is recent: a new one is a round trip to a server.
_FRESH = 20_000_000
# These have no block device, and are stamped by this kernel all the same.
_LOCAL = frozenset(("tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "aufs", "zfs"))
# These have a block device, and other machines stamp them, too.
_SHARED = frozenset(("gfs2", "ocfs2"))


class FileTime(NamedTuple):
    """An instant in the past, by each clock that stamps files, in ns since 1970."""

    local: int
    """By the clock of this kernel."""
    device: int = -1
    """The file system that was asked (`st_dev`); -1 for none."""
    device_time: int = 0
    """By the clock of that file system."""
    remote: frozenset[int] = frozenset()
    """The file systems that other machines stamp."""

    def get_time_on(self, device: int) -> int:
        """Return the instant by the clock of a file system. For a remote one whose clock is
        unknown, return an earlier time."""
        if device == self.device:
            return self.device_time
        return self.local - REMOTE_LAG if device in self.remote else self.local

    def subtract(self, nanoseconds: int) -> FileTime:
        """Return the instant that is `nanoseconds` earlier."""
        return self._replace(
            local=self.local - nanoseconds, device_time=self.device_time - nanoseconds
        )


class FileClock:
    """The clock that stamps files in `directory`, which need not exist yet, and on local file
    systems. Without a directory, or where no file can be made, it is the kernel's."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._read_at = 0
        self._last: FileTime | None = None

    def read_recent_time(self) -> FileTime:
        """Return an instant at most `_FRESH` ns old."""
        now = time.monotonic_ns()
        if self._last is None or now - self._read_at > _FRESH:
            self._last, self._read_at = self.read_time(), now
        return self._last

    def read_time(self) -> FileTime:
        """Return an instant that has just passed."""
        remote = find_remote_devices()
        kernel_time = time.time_ns()
        status = None if self._directory is None else _stat_probe_file(self._directory)
        if status is None:
            return FileTime(kernel_time, remote=remote)
        device, device_time = status.st_dev, status.st_mtime_ns
        # The kernel stamps files with the time of its last tick, a little behind our clock: if the
        # probe file is local, its time is that of all local files.
        local_time = kernel_time if device in remote else device_time
        return FileTime(local_time, device, device_time, remote)


def _stat_probe_file(directory: str) -> os.stat_result | None:
    """Return the status of a file made now, in the directory or in the nearest one above that
    exists; None if no file can be made.

    The file has no name or, where the system needs one, is `clock` in `directory`, and stays.
    """
    nearest = os.path.abspath(directory)
    while not os.path.isdir(nearest) and nearest != os.path.dirname(nearest):
        nearest = os.path.dirname(nearest)
    with suppress(OSError):
        # Without a name where the system can do that: no directory changes.
        handle = os.open(nearest, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            return os.fstat(handle)
        finally:
            os.close(handle)
    # A file with a name is made only in `directory`, which is ours, and in none above it.
    with suppress(OSError):
        path = os.path.join(directory, "clock")
        os.close(open_regular(path, os.O_WRONLY | os.O_CREAT, follow=False))
        os.utime(path)  # by the server's clock, as no time is given
        return os.stat(path)
    return None


def find_remote_devices() -> frozenset[int]:
    """Return `st_dev` of each mounted file system that other machines or programs stamp."""
    text = try_read_text("/proc/filesystems")
    if text is None:
        return frozenset()
    # A line is "nodev\tKIND", or "\tKIND" for a kind that needs a block device.
    rows = [line.split("\t") for line in text.splitlines()]
    block_device_kinds = {kind for nodev, kind in rows if nodev != "nodev"}
    local_kinds = _LOCAL | (block_device_kinds - _SHARED)
    return frozenset(mount.device for mount in list_mounts() if mount.kind not in local_kinds)
