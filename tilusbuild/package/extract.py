"""Extract files from a package: each is listed, comes once, and has the listed size and digest.

All files of a package are read through `check_members`. Limits are checked on the list before a
file is unpacked, and name and size in the container are compared with the list before the content
is read. So a package takes at most the memory, disk and time of its list, which `Limits` bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.package import names
from tilusbuild.package.errors import PackageError, changed, missing, over_limit, unlisted
from tilusbuild.package.listing import FileEntry, FileList
from tilusbuild.package.model import ContainerFile, Reader, choose_mode
from tilusbuild.state.files import make_hasher

_MAX_SCRIPT_FILE = 32 << 20
"""Bytes of a file of a script, such as the list of 200,000 programs."""
_MAX_SCRIPTS = 1 << 30
"""Bytes of all files of all scripts, which every reader of a package unpacks."""

ErrorHandler = Callable[[PackageError], None]


class Limits(Struct, frozen=True):
    """Limits of a package: bytes of all files, and unpacked bytes for each packed one.

    Packages of nearly equal kernels shrink a few hundred times; a bomb shrinks 30,000 times.
    """

    total: int = 64 << 30
    ratio: int = 1000
    free: int = 256 << 20
    """Bytes that the ratio does not count."""


def _check_pieces(pieces: Iterator[bytes], path: str, entry: FileEntry) -> Iterator[bytes]:
    """Yield the pieces of a file. Raises `PackageError` after the last piece if the size or the
    digest of the file is not that of `entry`, and the errors of the reader."""
    hasher, remaining = make_hasher(), entry.size
    for piece in pieces:
        remaining -= len(piece)
        # A file that is too long may be endless, so the rest is not read.
        if remaining < 0:
            break
        hasher.update(piece)
        yield piece
    if remaining:
        raise changed(f"{path} does not have the {entry.size} bytes listed")
    if hasher.hexdigest() != entry.sha256:
        raise changed(f"{path} was modified: sha256 {hasher.hexdigest()}, listed {entry.sha256}")


def read_to_end(pieces: Iterator[bytes]) -> None:
    """Read the pieces and drop them, for the checks that are made as they are read."""
    for _ in pieces:
        pass


def write_member(member: ContainerFile, directory: str) -> Iterator[bytes]:
    """Write a file below `directory` while the caller iterates: yield each piece after it was
    written. `directory` is private and has no links. Raises `OSError` and the errors of the pieces.
    """
    path = os.path.join(directory, member.path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, choose_mode(member.path))  # not left to the umask, as in a build
        for piece in member.pieces:
            file.write(piece)
            yield piece


def raise_error(error: PackageError) -> NoReturn:
    """Raise the error. This is the usual `ErrorHandler`."""
    raise error


def check_limits(listing: FileList, reader: Reader, limits: Limits) -> None:
    """Raise `PackageError` for a list beyond the limits. No file is unpacked for that."""
    # A list may name petabytes, so the sizes are added up before anything is written.
    if listing.size > limits.total:
        raise over_limit(
            f"it holds {listing.size} bytes, more than {limits.total}",
            hint="--max-size allows more",
        )
    # Every verb unpacks scripts, also those that only read a package.
    script_files = [(e.size, p) for p, e in listing.files.items() if p.startswith(layout.SCRIPTS)]
    total_size = sum(size for size, _ in script_files)
    largest_size, largest_path = max(script_files, default=(0, ""))
    if total_size > _MAX_SCRIPTS or largest_size > _MAX_SCRIPT_FILE:
        raise over_limit(f"{largest_path} is larger than a file of a script can be")
    # A decompression bomb has a high ratio; a small package may have any ratio.
    packed_size = reader.packed
    if packed_size is not None and listing.size > limits.free + limits.ratio * packed_size:
        raise over_limit(
            f"{packed_size} bytes would unpack to {listing.size},"
            f" more than {limits.ratio} times as many"
        )


def check_members(
    reader: Reader, listing: FileList, refuse: ErrorHandler = raise_error
) -> Iterator[ContainerFile]:
    """Yield the listed files in the container's order. Reading their pieces raises `PackageError`
    for a content that is not the listed one.

    `refuse` is called with the error for a file with a wrong name or size, and for a missing file.
    If `refuse` returns, the file is left out. Raises the errors of the reader.
    """
    seen_paths: set[str] = set()
    for member in reader.stream():
        error = _find_member_problem(member, listing.files, seen_paths)
        seen_paths.add(member.path)
        if error is not None:
            refuse(error)
            continue
        checked_pieces = _check_pieces(member.pieces, member.path, listing.files[member.path])
        yield member._replace(pieces=checked_pieces)
    for path in sorted(listing.files.keys() - seen_paths):
        refuse(missing(f"{path} is listed, but missing"))


def _find_member_problem(
    member: ContainerFile, files: Mapping[str, FileEntry], seen_paths: set[str]
) -> PackageError | None:
    """Return the error for a member with an unsafe or unlisted name, a size that is not the listed
    one, or a name in `seen_paths`; else None."""
    try:
        names.check_path(member.path)
    except PackageError as error:
        return error
    entry = files.get(member.path)
    if entry is None:
        return unlisted(f"{member.path!r:.200} is in the package, but not listed")
    if member.path in seen_paths:
        return unlisted(f"{member.path} appears twice")
    if member.size != entry.size:
        return changed(f"{member.path} has {member.size} bytes, listed are {entry.size}")
    return None
