"""Directories by handle: listed, made and removed without being led anywhere else.

- Only the root that a caller names may be reached through links; below it none is followed, also
  where a process puts one in the way meanwhile.
- A directory with a mount in it is not removed: the mounted files are another's.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tilusbuild.runtime.regular import try_read_bytes, try_stat

# Linux answers O_NOFOLLOW with O_DIRECTORY for a link with ENOTDIR, not with ELOOP.
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
# mountinfo writes a space in a path as \040.
_ESCAPE = re.compile(r"\\([0-7]{3})")


@contextmanager
def open_below(root: str, *names: str) -> Iterator[int]:
    """Open the directory `names` below `root` for a block; yield its descriptor. Raises `OSError`:
    `NotADirectoryError` for a link on the way."""
    handle = os.open(root, _OPEN_FLAGS & ~os.O_NOFOLLOW)
    try:
        for name in names:
            # One name at a time: O_NOFOLLOW is about the last name of a path only.
            parent_handle = handle
            handle = os.open(name, _OPEN_FLAGS, dir_fd=parent_handle)
            os.close(parent_handle)
        yield handle
    finally:
        os.close(handle)


def make_directories_below(root: str, *names: str) -> None:
    """Make the directory `names` and those above it, below `root`, which exists. Raises `OSError`:
    `NotADirectoryError` for a link on the way."""
    for end in range(1, len(names) + 1):
        with open_below(root, *names[: end - 1]) as handle, suppress(FileExistsError):
            os.mkdir(names[end - 1], dir_fd=handle)
    # Opened only for the error: a link may have been in the place of the last directory.
    with open_below(root, *names):
        pass


def make_directory(path: str) -> None:
    """Make a directory in one that exists. Its parents are not made: a deleted cache must not come
    back in part, without its mark. Raises `OSError`: `NotADirectoryError` for a link, since another
    owner's files may be behind it."""
    with suppress(FileExistsError):
        os.mkdir(path)
    if not is_real_directory(path):
        raise NotADirectoryError(errno.ENOTDIR, "a link or a file is in the way", path)


def list_below(root: str, *names: str) -> list[str]:
    """Return the sorted names in a directory; none for a link, a file, and a missing one. Raise
    `OSError` for any other error."""
    try:
        with open_below(root, *names) as handle:
            return sorted(os.listdir(handle))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_machine_error(error: OSError, directory: str) -> bool:
    """Return whether reading a directory failed because of the machine, as by an error of the disk.

    Return False if there is no directory at the path, or if we may not read it: then a compiler may
    not either.
    """
    if isinstance(error, PermissionError):
        return os.access(directory, os.R_OK | os.X_OK)
    return error.errno not in _NO_DIRECTORY


def remove_tree(path: str) -> None:
    """Remove a file, or a directory with its content; do nothing where neither exists.

    Raises `OSError`, with `EBUSY` for a directory in which something is mounted: all of it stays.
    """
    with suppress(OSError):
        # In most cases the directory is empty, as its content was moved to its place.
        os.rmdir(path)
        return
    while os.path.lexists(path):
        try:
            if not is_real_directory(path):
                os.unlink(path)
                continue
            _check_mounts(path)
            shutil.rmtree(path)  # follows no link, also none that appears meanwhile
        except FileNotFoundError:
            continue  # another process removes a part of it at the same time
        except RecursionError:
            raise OSError(errno.ENAMETOOLONG, "its directories are too deep", path) from None


def _check_mounts(path: str) -> None:
    """Raise `OSError` for a directory in which something is mounted."""
    real = os.path.realpath(path)
    # By mounts, not by devices: a bind mount may have the device of what is around it.
    if any(f"{mount.point}/".startswith(f"{real}/") for mount in list_mounts()):
        raise OSError(errno.EBUSY, "something is mounted there", path)


class Mount(NamedTuple):
    """A line of mountinfo, see proc_pid_mountinfo(5)."""

    device: int
    """`st_dev`."""
    root: str
    point: str
    kind: str
    options: list[str]


def parse_mounts(text: str) -> Iterator[Mount]:
    """Yield the mounts in the text of a mountinfo. Malformed lines are skipped."""
    for line in text.splitlines():
        # ID PARENT MAJOR:MINOR ROOT POINT OPTIONS … - KIND SOURCE OPTIONS,…
        mount_part, _, kind_part = line.partition(" - ")
        mount_fields, kind_fields = mount_part.split(" "), kind_part.split(" ")
        try:
            device = os.makedev(*map(int, mount_fields[2].split(":")))
            root, point = (
                _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path) for path in mount_fields[3:5]
            )
            yield Mount(device, root, point, kind_fields[0], kind_fields[2].split(","))
        except (ValueError, TypeError, IndexError):
            continue


def list_mounts(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """Return the mounts of this process; none where /proc has no mountinfo."""
    return list(parse_mounts(os.fsdecode(try_read_bytes(path) or b"")))


def list_mounts_below(root: str) -> list[str]:
    """Return the mount points below `root`, relative to it, sorted."""
    prefix = os.path.realpath(root).rstrip("/") + "/"
    points = {mount.point for mount in list_mounts()}
    return sorted(point.removeprefix(prefix) for point in points if point.startswith(prefix))


def is_real_directory(path: str) -> bool:
    """Return whether a path is a directory, and not a link to one."""
    status = try_stat(path, follow=False)
    return status is not None and stat.S_ISDIR(status.st_mode)
