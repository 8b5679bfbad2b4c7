"""The seam through which a cache is written: few operations, in whose order its safety lies.

Every change of the tree is one call here, so that a double can fail or die at each of them. Nothing
is durable before it is synced. Reading does not come this way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from tilusbuild.state.files import sync_directory


class Disk(Protocol):
    """Changes of a tree. Every method raises `OSError`."""

    def make_directory(self, path: str) -> None:
        """Make one directory; nothing when it is there."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""
        ...

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file."""
        ...

    def sync(self, paths: Sequence[str]) -> None:
        """Make the content of files durable. One call for many costs little more than for one."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def link(self, target: str, path: str) -> None:
        """Make a symbolic link."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Move within the file system, over a file or an empty directory if there is one."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing when there is none."""
        ...


class RealDisk:
    """The disk."""

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def write(self, path: str, data: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fchmod(handle, 0o644)

    def set_mode(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def sync(self, paths: Sequence[str]) -> None:
        # Writing is begun for all before any is waited for. Synced one by one, each file of a file
        # system with delayed allocation would cost a journal commit of its own.
        for operation in (_begin_writing, os.fsync):
            for path in paths:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    operation(handle)
                finally:
                    os.close(handle)

    def sync_directory(self, path: str) -> None:
        sync_directory(path)

    def link(self, target: str, path: str) -> None:
        os.symlink(target, path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            import shutil

            shutil.rmtree(path)


def _begin_writing(handle: int) -> None:
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
