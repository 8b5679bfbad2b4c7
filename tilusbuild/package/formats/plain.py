"""Files and folders of a carrier that is a folder: with modes of their own, whatever the umask."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol

from tilusbuild.cache.disk import RealDisk


class Sink(Protocol):
    """Something to write bytes to."""

    def write(self, data: bytes, /) -> int: ...


def make_folder(path: str) -> None:
    """A new folder for all to read. Raises `OSError`."""
    os.mkdir(path)
    os.chmod(path, 0o755)  # noqa: S103 - what a deployment's other users load from


def write_file(path: str, data: bytes, *, executable: bool = False) -> None:
    """A new file for all to read. Raises `OSError`."""
    with open(path, "xb") as file:
        file.write(data)
        os.fchmod(file.fileno(), 0o755 if executable else 0o644)


def finish(file: BinaryIO) -> None:
    """Have a file that was written for all to read on the disk. Raises `OSError`."""
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def settle(path: str) -> None:
    """Have a whole folder on the disk: all of its files, then their names. Raises `OSError`."""
    disk = RealDisk()
    found = list(os.walk(path))
    disk.sync([os.path.join(folder, name) for folder, _, files in found for name in files])
    for folder, _, _ in found:
        disk.sync_folder(folder)
