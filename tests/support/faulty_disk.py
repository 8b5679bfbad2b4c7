"""A disk that fails, or takes the process with it, when told to: the double of `cache.disk.Disk`.

    disk = FaultyDisk(at=7, fault=kill)           the 7th change is the end
    disk = FaultyDisk(at=7, fault=failing(errno.ENOSPC), halfway=True)

Counting starts at 1; without `index` it only counts. `halfway` lets a write do half of its work
first.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence

from tilusbuild.cache.disk import Disk

Fault = Callable[[str], None]
"""Told the path, it raises or does not return."""


def kill(path: str) -> None:
    """Die here and now, as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> Fault:
    """A fault that is an `OSError` with this errno."""

    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    return fail


def dies(work: Callable[[], object]) -> bool:
    """Do the work in a process of its own; whether that was killed before it came to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


class FaultyDisk(Disk):
    """Works until the operation `index`, and from the next one on. `operations` names them all."""

    def __init__(self, index: int = 0, fault: Fault = kill, *, halfway: bool = False) -> None:
        self.operations: list[str] = []
        self._at = index
        self._fault = fault
        self._halfway = halfway
        self._lock = threading.Lock()

    def make_directory(self, path: str) -> None:
        self._count("make_directory", path)
        super().make_directory(path)

    def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if self._is_next() and self._halfway:
            super().write_file(path, data[: len(data) // 2], mode)
        self._count("write", path)
        super().write_file(path, data, mode)

    def set_mode(self, path: str, mode: int) -> None:
        self._count("set_mode", path)
        super().set_mode(path, mode)

    def sync_files(self, paths: Sequence[str]) -> None:
        self._count("sync", paths[0])
        super().sync_files(paths)

    def sync_directory(self, path: str) -> None:
        self._count("sync_directory", path)
        super().sync_directory(path)

    def make_link(self, target: str, path: str) -> None:
        self._count("link", path)
        super().make_link(target, path)

    def make_hard_link(self, existing: str, path: str) -> None:
        self._count("share", path)
        super().make_hard_link(existing, path)

    def rename(self, old: str, new: str) -> None:
        self._count("rename", new)
        super().rename(old, new)

    def remove_tree(self, path: str) -> None:
        self._count("remove", path)
        super().remove_tree(path)

    def _is_next(self) -> bool:
        return len(self.operations) + 1 == self._at

    def _count(self, operation: str, path: str) -> None:
        with self._lock:
            due = self._is_next()
            self.operations.append(operation)
        if due:
            self._fault(path)
