"""All changes of a cache on the disk, and the errors of a failed change.

Each change of a tree is one call of a `Disk`, so that tests can let each of them fail or kill the
process. Nothing is durable before it is synced. Reading goes elsewhere. A `CacheError` is an
`OSError` with the errno of the system, so that code that handles a full disk handles it, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilusbuild.errors import TilusbuildError, find_shortage
from tilusbuild.runtime.regular import NotAFileError, open_regular
from tilusbuild.state.directories import make_directory, remove_tree
from tilusbuild.state.files import sync_directory

# Files that are open at once while they are synced: far below the usual limit of 1024.
_MAX_OPEN_FILES = 64


class Disk:
    """Changes of a tree. Every method raises `OSError`."""

    def make_directory(self, path: str) -> None:
        """Make a directory; do nothing if it exists."""
        make_directory(path)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a new file with these permissions."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb", buffering=0) as file:
            unwritten = memoryview(data)  # one system call may write only a part
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
            os.fchmod(handle, mode)  # not left to the umask: other users may read a cache

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file."""
        os.chmod(path, mode)

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make the content of files durable. A call for many costs little more than for one."""
        # Writing is begun for all before any is waited for. Synced one by one, each file of a file
        # system with delayed allocation would cost a journal commit of its own.
        for start in range(0, len(paths), _MAX_OPEN_FILES):
            handles: list[int] = []
            try:
                for path in paths[start : start + _MAX_OPEN_FILES]:
                    handles.append(open_regular(path, follow=False))
                    # Linux starts to write a file's dirty pages then, and does not wait for them.
                    os.posix_fadvise(handles[-1], 0, 0, os.POSIX_FADV_DONTNEED)
                for handle in handles:
                    os.fsync(handle)
            finally:
                for handle in handles:
                    os.close(handle)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        sync_directory(path)

    def make_link(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        os.symlink(target, path)

    def make_hard_link(self, existing: str, path: str) -> None:
        """Make a second name of an existing file."""
        # Of a link itself, if one was put there: its target is not shared.
        os.link(existing, path, follow_symlinks=False)

    def rename(self, old: str, new: str) -> None:
        """Rename within the file system; a file or an empty directory at `new` is replaced."""
        os.rename(old, new)

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory and all below it; do nothing if it does not exist."""
        remove_tree(path)


# EACCES and EPERM: another user's cache is read-only for this one.
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)
BY_HAND = "tilusbuild did not write it: move it elsewhere or delete it"


class CacheError(TilusbuildError, OSError):
    """A change of the cache failed at `path`, which holds the old state or the new one."""

    def __init__(self, path: str, cause: OSError) -> None:
        reason = cause.strerror or str(cause)
        super().__init__(cause.errno, reason, path)
        self.path = path
        self.reason = reason
        self._is_foreign = isinstance(cause, NotAFileError | IsADirectoryError)

    def __str__(self) -> str:
        return f"cannot write {self.path}: {self.reason}\n  {self._format_advice()}"

    def _format_advice(self) -> str:
        """Return what the user can do, or what is in trouble: the second line of the message."""
        shortage = find_shortage(self)
        if self.errno in _FULL:
            advice = "make room, for example with `tilusbuild cache gc`"
            return f"{shortage.resource}: {advice}" if shortage is not None else advice
        if shortage is not None:
            return str(shortage)
        if self._is_foreign:
            return BY_HAND
        return "the disk or the file system under the cache is in trouble"


class CacheReadOnlyError(CacheError):
    """A change of a cache that this process can only read."""

    def _format_advice(self) -> str:
        return "this cache is read-only here; build into another one with --cache-dir"


class InputChangedError(TilusbuildError):
    """An input file changed after the plan had read it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while the build ran\n  build again")
        self.path = path


@contextmanager
def wrap_oserror(path: str) -> Iterator[None]:
    """Raise a `CacheError` for an `OSError` of the block, with its path or, without one, `path`."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        # A failed link or rename names two paths: the second one is the one that is written.
        name = error.filename2 or error.filename
        failed_path = os.fsdecode(name) if isinstance(name, str | bytes) else path
        raise make_cache_error(failed_path, error) from error


def make_cache_error(path: str, cause: OSError) -> CacheError:
    """Return a `CacheReadOnlyError` if this process may not write there, else a `CacheError`."""
    return (CacheReadOnlyError if cause.errno in _READ_ONLY else CacheError)(path, cause)
