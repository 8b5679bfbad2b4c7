"""A package as a directory: the files under their own names, ready to be loaded from in place.

What is written has modes of its own, whatever the umask, and is on the disk before the writer
returns. What is read is plain files only: links are detected and refused, never followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tilusbuild.cache.disk import Disk
from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import no_package, over_limit, unreadable, unsafe_entry
from tilusbuild.package.formats import PackageFormat
from tilusbuild.package.listing import MAX_FILES, MAX_LIST_SIZE
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, READ_SIZE, ContainerFile, choose_mode
from tilusbuild.runtime.regular import NotAFileError, open_regular

_MAX_ENTRIES = 2 * MAX_FILES


# Writing.


def write_directory(contents: Contents, path: str, *, time: int) -> None:
    """Write the directory `path`, which must not exist. All modification times are `time`, in
    seconds since 1970. Raises `PackageError` and `OSError`."""
    write_tree(path, list_files(contents), time=time)


def list_files(contents: Contents) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each file of a package, the list last. Raises `PackageError`."""
    yield from ((name, contents.read_listed(name)) for name in contents.listed.files)
    yield from {**contents.beside, names.LIST: contents.encoded}.items()


def write_tree(path: str, files: Iterable[tuple[str, bytes]], *, time: int) -> None:
    """Write a new directory with these files, (name, bytes), and sync it. `time` becomes the
    modification time of all, in seconds since 1970. Raises `OSError` and the errors of `files`."""
    os.mkdir(path)
    for name, data in files:
        file = os.path.join(path, name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        write_file(file, data, choose_mode(name))
        os.utime(file, (time, time))
    # Below before above, and after all files: whatever is put into a directory changes its time.
    for directory, _, _ in os.walk(path, topdown=False):
        make_directory_readable(directory)
        os.utime(directory, (time, time))
    sync_tree(path)


def make_directory_readable(path: str) -> None:
    """Let everybody read a directory. Raises `OSError`."""
    # Not by the mode of mkdir, which the umask cuts: a deployment's other users load from it.
    os.chmod(path, 0o755)  # noqa: S103


def write_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a new file with this mode. Raises `OSError`."""
    with open(path, "xb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def sync_public_file(file: BinaryIO) -> None:
    """Sync a file that was written for everybody to read. Raises `OSError`."""
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def sync_tree(path: str) -> None:
    """Sync a whole directory: all of its files, then their names. Raises `OSError`."""
    disk = Disk()
    tree = list(os.walk(path))
    # Content before names: after a power failure no name leads to an empty file.
    disk.sync_files(
        [os.path.join(directory, name) for directory, _, files in tree for name in files]
    )
    for directory, _, _ in tree:
        disk.sync_directory(directory)


# Reading.


class DirectoryReader:
    """Reads the package in the directory at `path`. Raises `PackageError`."""

    kind = "directory"
    packed: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    def list_bytes(self) -> bytes:
        return read_plain(os.path.join(self.path, names.LIST), names.LIST, MAX_LIST_SIZE)

    def attestations(self) -> dict[str, bytes]:
        """Return the attestations that exist, by their names in `names.BESIDE`."""
        paths = {name: os.path.join(self.path, name) for name in names.BESIDE}
        return {
            name: read_plain(path, name, MAX_ATTESTATION_SIZE)
            for name, path in paths.items()
            if os.path.lexists(path)
        }

    def stream(self) -> Iterator[ContainerFile]:
        """Yield every file except the list and the attestations, each open until the next."""
        for name in _walk_files(self.path):
            if name != names.LIST and name not in names.BESIDE:
                with _open_item(os.path.join(self.path, name), name) as item:
                    yield item

    def close(self) -> None:
        return None


def holds_list(path: str) -> bool:
    """Return whether a directory has a package's list."""
    return os.path.lexists(os.path.join(path, names.LIST))


FORMAT = PackageFormat(
    title="a directory",
    file_name=lambda stem, _: stem,
    write=write_directory,
    recognize=lambda path, start: not start and holds_list(path),
    read=DirectoryReader,
)


def read_plain(path: str, name: str, limit: int) -> bytes:
    """Return a plain file's content. Raises `PackageError` when it is missing, for
    anything else than a file, and for more than `limit` bytes."""
    with _open_item(path, name) as item:
        return item.read_content(limit)


@contextmanager
def _open_item(path: str, name: str) -> Iterator[ContainerFile]:
    """Open a plain file as a `ContainerFile`. Raises `PackageError`, also for an `OSError`."""

    def pieces() -> Iterator[bytes]:
        try:
            while piece := file.read(READ_SIZE):
                yield piece
        except OSError as error:
            raise unreadable(f"{name!r:.200} cannot be read: {error.strerror}") from None

    with os.fdopen(open_plain(path, name), "rb", buffering=0) as file:
        yield ContainerFile(name, os.fstat(file.fileno()).st_size, pieces())


def open_plain(path: str, name: str) -> int:
    """Open a plain file for reading, and return its descriptor. Raises as `read_plain`."""
    try:
        return open_regular(path, follow=False)
    except FileNotFoundError:
        raise no_package(f"there is no {name}") from None
    except (NotAFileError, IsADirectoryError) as error:
        kind = getattr(error, "kind", "a directory")
        raise unsafe_entry(f"{name!r:.200} is {kind}, not a plain file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise unreadable(f"{name!r:.200} cannot be read: {reason}") from None


def _walk_files(directory: str) -> Iterator[str]:
    """Yield the path of every file, relative to `directory`, sorted in each directory. Links count
    as files. Raises `PackageError`, also for more than `_MAX_ENTRIES` names."""
    pending = [""]
    count = 0
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.path.join(directory, prefix)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            raise unreadable(f"{prefix or '.'!r} cannot be read: {error.strerror}") from None
        count += len(entries)
        # Millions of empty directories would keep a verifier busy with nothing that is listed.
        if count > _MAX_ENTRIES:
            raise over_limit(f"more than {_MAX_ENTRIES} names")
        directories = {e.name for e in entries if e.is_dir(follow_symlinks=False)}
        # The last is the next: a stack in the place of a recursion, which a deep tree would end.
        pending += [f"{prefix}{name}/" for name in sorted(directories, reverse=True)]
        yield from (prefix + e.name for e in entries if e.name not in directories)
