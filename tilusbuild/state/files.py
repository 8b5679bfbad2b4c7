"""The one atomic writer, the one way to publish a directory by rename, and the hashers.

A reader of a file sees the old content or the new, never a part, whoever is killed: it is written
beside its final place under a name that starts with `.tmp-`, synced, and renamed over it, and the
directory is synced too, so that the rename survives a power failure. Its writer holds a lock of it,
so one without a holder is what a killed writer left: `sweep_temporary_files` removes it. A
directory is made elsewhere and moved to its place by `replace_directory` or `rename_if_free`, whose
callers sync; the cache tree has a stricter way of its own, under locks (`cache.tree`). What is not
a regular file is never replaced: `write_output` writes into a FIFO or a device that a user named.
Digests are sha256, always in full, always as 64 lower-case hex digits.

The price is two syncs for each file: a published program waits some 10 ms for the disk, while the
next compile begins (docs/performance.md).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from tilusbuild.runtime.regular import sha256_file as sha256_file

if TYPE_CHECKING:
    from hashlib import _Hash

# What renaming a directory, or onto one, raises when the new name is taken.
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_MAX_ATTEMPTS = 100
_TEMPORARY = ".tmp-"
_DESCRIPTOR_PATH = re.compile(r"/dev/std(?:out|err)|/(?:dev|proc/self)/fd/\d{1,9}", re.ASCII)


def write_atomic(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by a file that holds `data`. Raises `OSError`; the old file then stays."""
    with open_atomic(path, mode=mode) as file:
        file.write(data)


@contextmanager
def open_atomic(
    path: str | os.PathLike[str], *, mode: int = 0o644, durable: bool = True
) -> Iterator[BinaryIO]:
    """Yield a file for a block to write, then replace `path` by it. When the block or the disk
    fails, the old file stays. Raises `OSError`."""
    directory = os.path.dirname(os.path.abspath(path))
    # In the same directory: a rename is atomic only within one file system.
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(OSError):  # a file system without locks: no process sweeps there
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)  # mkstemp gives 0o600, whatever the umask
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(directory)


def write_output(path: str, data: bytes | bytearray) -> None:
    """Write an output that a user named (`-o FILE`). Raises `OSError`; a regular file then stays.

    A regular file is replaced in one step, and a link leads to the file that it names. Anything
    else is written to: a FIFO, a device, a descriptor of ours (`/dev/stdout`, `>(command)`).
    """
    try:
        with _open_target(path) as file:
            file.write(data)
    except OSError as error:
        error.filename = path  # not the temporary file's
        raise


def _open_target(path: str) -> AbstractContextManager[BinaryIO]:
    """Return the file of `write_output`, open: a temporary one that replaces a regular file or
    makes a missing one, or the FIFO, device or descriptor at `path`. Raises `OSError`."""
    if _DESCRIPTOR_PATH.fullmatch(path):
        number = {"/dev/stdout": 1, "/dev/stderr": 2}.get(path)
        if number is None:  # "/dev/fd/N" or "/proc/self/fd/N"
            number = int(path.rpartition("/")[2])
        # Copied, and not opened by the path: that would write from the start of the descriptor's
        # file, over what it has.
        return os.fdopen(os.dup(number), "wb")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | 0o644
    if stat.S_ISREG(mode):
        return open_atomic(os.path.realpath(path), mode=mode & 0o777)
    # Without O_NONBLOCK, opening a FIFO waits for a reader, perhaps for ever.
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            error.strerror = "no process reads from it"
        raise
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def sweep_temporary_files(directory: str, *, deep: bool = False) -> None:
    """Remove temporary files of killed writers from a directory of state; with `deep`, from those
    below it, too. Files that cannot be removed, and files behind links, stay."""
    if os.path.islink(directory):
        return
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if deep and entry.is_dir(follow_symlinks=False):
                sweep_temporary_files(entry.path, deep=True)
            elif entry.name.startswith(_TEMPORARY):
                _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Remove a temporary file unless its writer holds its lock. Ignores `OSError`."""
    # A file that was made this instant may not be locked yet. It is removed, too: its writer then
    # fails, and saves nothing.
    with suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(handle)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_directory(source: str, target: str, aside: str) -> None:
    """Rename `source` to `target` and replace an existing directory. Raises `OSError`; the old
    directory is then in its place.

    The old directory is moved into `aside`, for the caller to remove. Of several processes, the
    last one's directory stays.
    """
    for attempt in range(_MAX_ATTEMPTS):
        old_directory = os.path.join(aside, f"{attempt}-{os.path.basename(target)}")
        # No rename replaces a directory that is not empty. So the old one is moved away first: for
        # an instant there is none, but never a part of one. A file is replaced by the one rename.
        if os.path.isdir(target) and not os.path.islink(target):
            with suppress(FileNotFoundError):
                os.rename(target, old_directory)
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                continue  # another process was quicker: its directory is replaced, too
            if os.path.isdir(old_directory):
                os.rename(old_directory, target)
            raise
        return
    raise OSError(errno.EBUSY, "other processes keep replacing it", target)


def rename_if_free(source: str, target: str) -> bool:
    """Rename `source` to `target` when that name is free; return whether it was. Raise
    `OSError`."""
    # Checked first: a rename alone would replace a file or an empty directory.
    if os.path.lexists(target):
        return False
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in OCCUPIED and os.path.lexists(target):
            return False  # another process was quicker
        raise
    return True


def make_hasher() -> _Hash:
    """Return a sha256 object for content in pieces."""
    return hashlib.sha256()


def sha256_bytes(data: bytes) -> str:
    """Return the digest of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_text(text: str) -> str:
    """Return the digest of `text` in UTF-8, as `sha256sum` gives for a file that holds it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
