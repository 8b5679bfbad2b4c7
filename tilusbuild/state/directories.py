"""Directories by handle: what is below one, and removing it, without being led anywhere else.

- Only the root that a caller names may be reached through links; below it none is followed.
- What is mounted below is another's: it is not entered, and nothing in it is removed.
- What is opened is what is looked at: no process can put a link in the way between the two.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tilusbuild.runtime.regular import read_bytes

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_DIRECTORY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_MAX_DEPTH = 64
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@contextmanager
def below(root: str, *names: str) -> Iterator[int]:
    """Open the directory `names` below `root` for a block. Raises `OSError`, of which
    `NotADirectoryError` for a link in the way."""
    handle = os.open(root, _FLAGS & ~os.O_NOFOLLOW)
    try:
        for name in names:
            handle, outer = _enter(handle, name), handle
            os.close(outer)
        yield handle
    finally:
        os.close(handle)


def _enter(above: int, name: str) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ELOOP:  # where Linux itself says ENOTDIR
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
        raise


def make_below(root: str, *names: str) -> None:
    """Make the directory `names` below `root`, which is there, with those above it. Raises
    `OSError`, of which `NotADirectoryError` for a link in the way."""
    for end in range(1, len(names) + 1):
        with below(root, *names[: end - 1]) as handle, suppress(FileExistsError):
            os.mkdir(names[end - 1], dir_fd=handle)
    with below(root, *names):
        pass


def make_unlinked(path: str) -> None:
    """Make a directory for files of ours, in one that is there: who deleted a cache shall not get a
    part of it back, without its mark. Raises `OSError`, of which `NotADirectoryError` for a link:
    where it leads, another's files are."""
    with suppress(FileExistsError):
        os.mkdir(path)
    if not is_directory(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def names_below(root: str, *names: str) -> list[str]:
    """Return the names in a directory, sorted; none where there is no directory but a link or a
    file. Raises other `OSError`s."""
    try:
        with below(root, *names) as handle:
            return sorted(os.listdir(handle))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_trouble(error: OSError, directory: str) -> bool:
    """Return whether a directory could not be read because of the machine: it is there, it is one,
    and we may. What we may not read a compiler may not either."""
    if isinstance(error, PermissionError):
        return os.access(directory, os.R_OK | os.X_OK)
    return error.errno not in _NO_DIRECTORY


def remove(path: str) -> None:
    """Remove a file, or a directory with what is in it; nothing where there is nothing.

    Raises `OSError`, with `EBUSY` for what is mounted below; that stays, and all that is above it.
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
    above = os.open(os.path.dirname(path) or ".", _FLAGS & ~os.O_NOFOLLOW)
    try:
        _remove_directory(above, os.path.basename(path), _mount(above), [])
    finally:
        os.close(above)


def _remove_directory(above: int, name: str, mount: tuple[int, int], around: list[int]) -> None:
    handle = os.open(name, _FLAGS, dir_fd=above)
    try:
        if _mount(handle) != mount:
            raise OSError(errno.EBUSY, "something is mounted there", name)
        # Again, as long as something comes: what is too deep comes up, into the topmost.
        while found := os.listdir(handle):
            for each in found:
                _remove_one(handle, each, mount, [*around, handle])
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=above)


def _remove_one(above: int, name: str, mount: tuple[int, int], around: list[int]) -> None:
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        if len(around) > _MAX_DEPTH:
            # A handle a level, and Python's own stack, do not reach to the bottom of every tree.
            os.rename(name, f"{os.urandom(8).hex()}", src_dir_fd=above, dst_dir_fd=around[0])
            return
        _remove_directory(above, name, mount, around)


def _mount(handle: int) -> tuple[int, int]:
    """Return what distinguishes mounts: the device is the same on both sides of a bind mount."""
    number = None
    with suppress(OSError):
        number = _MOUNT_ID.search(read_bytes(f"/proc/self/fdinfo/{handle}"))
    return os.fstat(handle).st_dev, int(number[1]) if number else -1


class Mount(NamedTuple):
    """A line of mountinfo (proc_pid_mountinfo(5)): what of which file system is where."""

    device: int
    """`st_dev`."""
    root: str
    point: str
    kind: str
    options: list[str]


def mounts(text: str) -> Iterator[Mount]:
    """Yield what the text of a mountinfo says; nothing of a line that is none."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        try:
            device = os.makedev(*map(int, words[2].split(":")))
            root, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), each) for each in words[3:5])
            yield Mount(device, root, point, rest[0], rest[2].split(","))
        except (ValueError, TypeError, IndexError):
            continue


def mounted(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """Return what is mounted; nothing where the system does not say."""
    try:
        return list(mounts(os.fsdecode(read_bytes(path))))
    except OSError:
        return []


def mounts_below(root: str) -> list[str]:
    """Return where something is mounted below `root`, relative to it, sorted."""
    above = os.path.realpath(root).rstrip("/") + "/"
    return sorted({m.point.removeprefix(above) for m in mounted() if m.point.startswith(above)})


def is_directory(path: str) -> bool:
    """Return whether there is a directory, and not only a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
