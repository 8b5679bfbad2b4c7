"""Header directories: everything, besides the toolkit, that a compile can include.

A directory is named by the sha256 of its `MANIFEST`, which is in the form of `sha256sum`. So

    sha256sum MANIFEST         prints the directory's own name
    sha256sum -c MANIFEST      checks every header

A compile must never see other headers, so contents are compared before a directory is used. Large
directories share files by hard links: two closures of a project differ in few files, and a vendored
library has 26 MB of them. Each name of a shared file is checked.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tilusbuild.cache import layout
from tilusbuild.cache.disk import InputChangedError, wrap_oserror
from tilusbuild.cache.locks import LockName
from tilusbuild.cache.tree import Tree
from tilusbuild.runtime.regular import NotAFileError, read_bytes
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.state.files import sha256_bytes, sha256_file
from tilusbuild.state.stamp import read_stamp

# A directory with fewer files shares none: writing them is faster than reading other manifests.
_MIN_SHARING_FILES = 16
# Directories that are searched for files to share, the latest first.
_MAX_SEARCHED = 16
# A line of `sha256sum`, with a backslash in front if the name has escapes:
#     0f3c…e2  include/cute/tensor.hpp
_LINE = re.compile(rb"(\\?)([0-9a-f]{64})  ([^\n]+)\n")
_UNESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def parse_manifest(data: bytes) -> dict[str, str]:
    """Return the sha256 of each file that a MANIFEST lists, by name. Raises `CorruptFileError`."""
    digests: dict[str, str] = {}
    position = 0
    while position < len(data):
        line = _LINE.match(data, position)
        if line is None:
            raise CorruptFileError(f"{layout.MANIFEST} is malformed")
        backslash, digest, name = line.groups()
        if backslash:
            name = re.sub(rb"\\[\\nr]", lambda match: _UNESCAPES[match.group()], name)
        decoded = os.fsdecode(name)
        if not layout.is_inside(decoded):
            raise CorruptFileError(f"{layout.MANIFEST} names {decoded!r}")
        digests[decoded] = digest.decode()
        position = line.end()
    return digests


class Problem(NamedTuple):
    """A defect of a file: its name in the entry or the header directory, "" for all of it."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.name else self.message


def check_headers(
    digest: str, manifest: bytes | None, digests: Mapping[str, str | None]
) -> list[Problem]:
    """Return the problems of a header directory, sorted; an empty list when it is right.

    `manifest` is the content of its `MANIFEST`, None without one. `digests` has the sha256 of each
    file by relative name, None for a file whose content is not compared; `MANIFEST` may be among
    them.
    """
    if manifest is None:
        return [Problem(layout.MANIFEST, "is missing")]
    try:
        if sha256_bytes(manifest) != digest:
            raise CorruptFileError(
                f"the directory is not named by the hash of its {layout.MANIFEST}"
            )
        manifest_digests = parse_manifest(manifest)
    except CorruptFileError as error:
        return [Problem(layout.MANIFEST, str(error))]
    present_names = digests.keys() - {layout.MANIFEST}
    listed_names = manifest_digests.keys()
    problems = [Problem(name, "is not in the manifest") for name in present_names - listed_names]
    problems += [Problem(name, "is missing") for name in listed_names - present_names]
    problems += [
        Problem(name, "was modified")
        for name in present_names & listed_names
        if digests[name] not in (None, manifest_digests[name])
    ]
    return sorted(problems)


def check_include(path: str, digest: str, *, deep: bool = True) -> list[Problem]:
    """Return the problems of the header directory at `path`, sorted; none when it is right.

    Without `deep`, only names are compared, and not contents. Raises `FileNotFoundError` for a
    missing directory, and `OSError`.
    """
    digests: dict[str, str | None] = dict.fromkeys(layout.list_files_below(path))
    try:
        manifest = read_bytes(os.path.join(path, layout.MANIFEST))
    except FileNotFoundError:
        manifest = None
    except NotAFileError as error:
        return [Problem(layout.MANIFEST, str(error))]
    irregular_problems = []
    for name in digests:
        mode = os.lstat(os.path.join(path, name)).st_mode
        if not stat.S_ISREG(mode):
            message = "is a link" if stat.S_ISLNK(mode) else "is not a regular file"
            irregular_problems.append(Problem(name, message))
        elif deep:
            digests[name] = sha256_file(os.path.join(path, name))
    problems = check_headers(digest, manifest, digests)
    # A link that the manifest does not list has one problem, not two.
    names_with_problem = {problem.name for problem in problems}
    problems += [p for p in irregular_problems if p.name not in names_with_problem]
    return sorted(problems)


def publish_include(tree: Tree, digest: str, files: Mapping[str, bytes | str]) -> str:
    """Make or repair the directory with these headers; return its path.

    `files` has each file by relative name, MANIFEST included: its bytes, or the path of a file to
    copy. Raises `CacheError`, `InputChangedError` for a header with another digest than that of the
    manifest, and `ValueError` for a manifest that does not match `digest` or `files`.
    """
    path = tree.include_path(digest)
    if is_include_whole(path, digest):
        return path
    manifest = files.get(layout.MANIFEST)
    if not isinstance(manifest, bytes) or sha256_bytes(manifest) != digest:
        raise ValueError(f"{digest} is not the digest of this manifest")
    try:
        digests = parse_manifest(manifest)
    except CorruptFileError as error:
        raise ValueError(str(error)) from None
    if files.keys() - {layout.MANIFEST} != digests.keys():
        raise ValueError("the manifest does not list these files")
    # The lock keeps two builders from writing the same 26 MB.
    with tree.hold_locks(LockName("include", digest)):
        # Another process may have made it while this one waited for the lock.
        if not is_include_whole(path, digest):
            _write_include(tree, path, digest, files, digests)
    return path


def is_include_whole(path: str, digest: str, *, deep: bool = True) -> bool:
    """Return whether `check_include` finds no problem in a header directory."""
    try:
        return not check_include(path, digest, deep=deep)
    except OSError:
        return False  # missing or not readable: the caller makes it again, or reports why not


def _write_include(
    tree: Tree,
    path: str,
    digest: str,
    files: Mapping[str, bytes | str],
    digests: Mapping[str, str],
) -> None:
    """Write a header directory in private, sync it, and move it to `path`, where it replaces a
    damaged one. `digests` has the sha256 of each file. Raises as `publish_include`."""
    with wrap_oserror(path):
        private = tree.make_private()
        try:
            directories = {""}
            shareable_files = _find_shareable_files(tree, digests)
            # Those that are shared are durable: their directories are in place.
            unsynced_files = [os.path.join(private.path, layout.MANIFEST)]
            for name, file_digest in digests.items():
                make_directories(tree, private.path, os.path.dirname(name), directories)
                new_file = os.path.join(private.path, name)
                shareable = shareable_files.get(file_digest)
                if shareable is None or not _share_file(tree, shareable, new_file, file_digest):
                    tree.disk.write_file(new_file, _read_content(files[name], file_digest))
                    unsynced_files.append(new_file)
                # One file has one content and one inode here, by all of its names.
                shareable_files[file_digest] = new_file
            tree.disk.write_file(unsynced_files[0], _read_content(files[layout.MANIFEST], digest))
            tree.disk.sync_files(unsynced_files)
            # The deepest first: a directory's name is durable only when its parent is synced.
            for directory in sorted(directories, reverse=True):
                tree.disk.sync_directory(os.path.join(private.path, directory))
            tree.move_into_place(private.path, path)
        finally:
            private.discard()


def _find_shareable_files(tree: Tree, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of files with these contents in the latest header directories, by digest.

    `digests` has the digest of each file by name. A digest without such a file is left out; with
    few `digests` nothing is searched.
    """
    if len(digests) < _MIN_SHARING_FILES:
        return {}
    missing_digests = set(digests.values())
    latest_first = sorted(
        (tree.include_path(digest) for digest in tree.list_names(layout.INCLUDE)),
        key=lambda path: read_stamp(path).mtime,
        reverse=True,
    )
    path_of_digest: dict[str, str] = {}
    # Edits of one project follow each other: the latest directories have most files in common.
    for path in latest_first[:_MAX_SEARCHED]:
        if len(missing_digests) < _MIN_SHARING_FILES:
            break
        try:
            digest_of_name = parse_manifest(read_bytes(os.path.join(path, layout.MANIFEST)))
            present_names = set(layout.list_files_below(path))
        except (OSError, NotAFileError, CorruptFileError):
            continue
        for name, digest in digest_of_name.items():
            if digest in missing_digests and name in present_names:
                path_of_digest[digest] = os.path.join(path, name)
        missing_digests -= path_of_digest.keys()
    return path_of_digest


def _share_file(tree: Tree, existing: str, path: str, digest: str) -> bool:
    """Make `path` a hard link to an existing file; return whether that worked and the content has
    this digest. If not, `path` does not exist."""
    try:
        tree.disk.make_hard_link(existing, path)
    except OSError:  # too many links, another user's file, or a file system without links
        return False  # the caller writes the file then, and reports an error of that
    # Read again through the new name: a file that another process has damaged is not shared.
    with suppress(OSError):
        if not os.path.islink(path) and sha256_file(path) == digest:
            return True
    tree.disk.remove_tree(path)
    return False


def make_directories(tree: Tree, top: str, directory: str, existing: set[str]) -> None:
    """Make `directory`, relative to `top`, with its parents, and add them to `existing`.

    Directories that are in `existing` already are skipped. It must contain "", which is `top`.
    Raises `OSError`.
    """
    # The recursion ends at the latest at "", the parent of a name without a slash.
    if directory not in existing:
        make_directories(tree, top, os.path.dirname(directory), existing)
        tree.disk.make_directory(os.path.join(top, directory))
        existing.add(directory)


def _read_content(source: bytes | str, digest: str) -> bytes:
    """Return `source`, or the content of the file at this path. Raises `InputChangedError` for a
    file that cannot be read or has another digest; bytes are not compared."""
    if isinstance(source, bytes):
        return source
    try:
        data = read_bytes(source)
    except OSError:
        raise InputChangedError(source) from None
    if sha256_bytes(data) != digest:
        raise InputChangedError(source)
    return data
