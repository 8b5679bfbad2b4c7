"""Files and folders of a carrier that is a folder: with modes of their own, whatever the umask."""

from __future__ import annotations

import os
from typing import BinaryIO, Protocol


class Sink(Protocol):
    """Something to write bytes to."""

    def write(self, data: bytes, /) -> int: ...


def make_folder(path: str) -> None:
    """A new folder for all to read. Raises `OSError`."""
    os.mkdir(path)
    os.chmod(path, 0o755)  # noqa: S103 - what a deployment's other users load from


def write_file(path: str, data: bytes, *, executable: bool = False) -> None:
    """A new file for all to read, on the disk when this returns. Raises `OSError`."""
    with open(path, "xb") as file:
        file.write(data)
        finish(file, executable=executable)


def finish(file: BinaryIO, *, executable: bool = False) -> None:
    """Give a written file its mode, and have its content on the disk. Raises `OSError`."""
    file.flush()
    os.fchmod(file.fileno(), 0o755 if executable else 0o644)
    os.fsync(file.fileno())
