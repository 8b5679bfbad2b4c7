"""Directories by handle: what is below one, and removing it, without being led anywhere else.

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

from tilusbuild.runtime.regular import try_read_bytes

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@contextmanager
def open_below(root: str, *names: str) -> Iterator[int]:
    """Open the directory `names` below `root` for a block. Raises `OSError`, of which
    `NotADirectoryError` for a link in the way."""
    handle = os.open(root, _FLAGS & ~os.O_NOFOLLOW)
    try:
        for name in names:
            handle, outer = _open_child(handle, name), handle
            os.close(outer)
        yield handle
    finally:
        os.close(handle)


def _open_child(above: int, name: str) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ELOOP:  # where Linux itself says ENOTDIR
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
        raise


def make_directories_below(root: str, *names: str) -> None:
    """Make the directory `names` below `root`, which is there, with those above it. Raises
    `OSError`, of which `NotADirectoryError` for a link in the way."""
    for end in range(1, len(names) + 1):
        with open_below(root, *names[: end - 1]) as handle, suppress(FileExistsError):
            os.mkdir(names[end - 1], dir_fd=handle)
    with open_below(root, *names):
        pass


def make_directory(path: str) -> None:
    """Make a directory for files of ours, in one that is there: who deleted a cache shall not get a
    part of it back, without its mark. Raises `OSError`, of which `NotADirectoryError` for a link:
    where it leads, another's files are."""
    with suppress(FileExistsError):
        os.mkdir(path)
    if not is_real_directory(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def list_below(root: str, *names: str) -> list[str]:
    """Return the names in a directory, sorted; none where there is no directory but a link or a
    file. Raises other `OSError`s."""
    try:
        with open_below(root, *names) as handle:
            return sorted(os.listdir(handle))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_machine_error(error: OSError, directory: str) -> bool:
    """Return whether a directory could not be read because of the machine: it is there, it is one,
    and we may. What we may not read a compiler may not either."""
    if isinstance(error, PermissionError):
        return os.access(directory, os.R_OK | os.X_OK)
    return error.errno not in _NO_DIRECTORY


def remove_tree(path: str) -> None:
    """Remove a file, or a directory with its content; do nothing where neither exists.

    Raises `OSError`, with `EBUSY` for a directory in which something is mounted: all of it stays.
    """
    try:
        os.unlink(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        # A directory: EISDIR on Linux, EPERM where it goes by POSIX.
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    with suppress(OSError):
        os.rmdir(path)  # mostly what was in it has been moved to its place
        return
    real = os.path.realpath(path)
    if any(f"{mount.point}/".startswith(f"{real}/") for mount in list_mounts()):
        raise OSError(errno.EBUSY, "something is mounted there", path)
    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another process removes a part of it at the same time
        except RecursionError:
            raise OSError(errno.ENAMETOOLONG, "its directories are too deep", path) from None


class Mount(NamedTuple):
    """A line of mountinfo (proc_pid_mountinfo(5)): what of which file system is where."""

    device: int
    """`st_dev`."""
    root: str
    point: str
    kind: str
    options: list[str]


def parse_mounts(text: str) -> Iterator[Mount]:
    """Yield what the text of a mountinfo says; nothing of a line that is none."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        try:
            device = os.makedev(*map(int, fields[2].split(":")))
            root, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), each) for each in fields[3:5])
            yield Mount(device, root, point, rest[0], rest[2].split(","))
        except (ValueError, TypeError, IndexError):
            continue


def list_mounts(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """Return what is mounted; nothing where the system does not say."""
    return list(parse_mounts(os.fsdecode(try_read_bytes(path) or b"")))


def list_mounts_below(root: str) -> list[str]:
    """Return where something is mounted below `root`, relative to it, sorted."""
    above = os.path.realpath(root).rstrip("/") + "/"
    return sorted({m.point.removeprefix(above) for m in list_mounts() if m.point.startswith(above)})


def is_real_directory(path: str) -> bool:
    """Return whether there is a directory, and not only a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
