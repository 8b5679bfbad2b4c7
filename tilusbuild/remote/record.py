"""The record of a program in a remote cache: its key, and the list of its blobs by sha256 and size.

A record is an `ActionResult` of the Remote Execution API, so that every server of that protocol
keeps it, and checks that its blobs are there. It is kept under the digest of an Action that no
server executes and that follows from the program's hash alone. It lists the entry's files,
`meta.json` included, and as directories what the program was compiled with: `include/<digest>`,
headers and launcher. A record from elsewhere is a list of claims; reading one checks only that they
are possible: names, sizes, and how many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed
from tilusbuild.cache.garbage import headers_used
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

FORMAT = "1"
"""Of records. Another one is under other keys."""
MAX_BYTES = 1 << 30
"""Of all that a program consists of."""
MAX_FILES = 10_000


class Blob(NamedTuple):
    """Content by its digest and its size in bytes."""

    digest: str
    size: int


Sources: TypeAlias = dict[Blob, "bytes | str"]
"""Where blobs are: content, or the path of a file."""


class RecordError(ValueError):
    """A record, or something in it, that cannot be one of ours."""


@dataclass(frozen=True, slots=True)
class Record:
    """A program's blobs. `directories` has the Tree of each `include/<digest>`, by that digest."""

    files: Mapping[str, Blob]
    directories: Mapping[str, Blob]
    seconds: float
    """How long its compile took."""
    inlined: Mapping[Blob, bytes] = field(default_factory=dict, compare=False)
    """Content that came with the record, which is what its digest says."""


def _key_parts() -> tuple[bytes, bytes, bytes, bytes]:
    mark = "0" * 64
    command = reapi.Command(arguments=["tilusbuild", "program", FORMAT, mark])
    data = command.SerializeToString(deterministic=True)
    nothing = reapi.Digest(hash=sha256_bytes(b""))
    action = reapi.Action(
        command_digest=reapi.Digest(hash=mark, size_bytes=len(data)), input_root_digest=nothing
    )
    halves = (*data.split(mark.encode()), *action.SerializeToString().split(mark.encode()))
    command_before, command_after, action_before, action_after = halves
    return command_before, command_after, action_before, action_after


_BEFORE, _AFTER, _ACTION_BEFORE, _ACTION_AFTER = _key_parts()


def key(program: str) -> Blob:
    """Return the digest of the Action that stands for a program. Two messages of fixed length, so
    they are put together from their parts: a tenth of the time of encoding them."""
    command = sha256_bytes(_BEFORE + program.encode() + _AFTER)
    action = _ACTION_BEFORE + command.encode() + _ACTION_AFTER
    return Blob(sha256_bytes(action), len(action))


def key_of(*words: str) -> Blob:
    """Return the digest of the Action that stands for what is kept under these words."""
    command = reapi.Command(arguments=["tilusbuild", *words])
    action = reapi.Action(
        command_digest=digest_of(blob_for(command.SerializeToString(deterministic=True))),
        input_root_digest=reapi.Digest(hash=sha256_bytes(b"")),
    )
    return blob_for(action.SerializeToString(deterministic=True))


def encode(record: Record) -> reapi.ActionResult:
    """Return the message for a record."""
    result = reapi.ActionResult()
    for name, blob in sorted(record.files.items()):
        result.output_files.add(
            path=name, digest=digest_of(blob), is_executable=name == layout.COMPILE_SH
        )
    for name, blob in sorted(record.directories.items()):
        path = f"{layout.INCLUDE}/{name}"
        result.output_directories.add(path=path, tree_digest=digest_of(blob))
    whole = int(record.seconds)
    result.execution_metadata.execution_start_timestamp.seconds = 0
    completed = result.execution_metadata.execution_completed_timestamp
    completed.seconds, completed.nanos = whole, int((record.seconds - whole) * 1e9)
    return result


def decode(data: bytes) -> Record:
    """Return the record in a message. Raises `RecordError`."""
    try:
        result = reapi.ActionResult.FromString(data)
    except DecodeError:
        raise RecordError("its record cannot be read") from None
    files = {each.path: blob_of(each.digest) for each in result.output_files}
    directories = {
        each.path.removeprefix(f"{layout.INCLUDE}/"): blob_of(each.tree_digest)
        for each in result.output_directories
    }
    needed = {layout.META, layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.COMPILE_SH}
    strange = [name for name in files if not layout.is_inside(name)]
    strange += [name for name in directories if not layout.is_hash(name)]
    if strange:
        raise RecordError(f"its record names {strange[0]!r}")
    if missing := sorted(needed - files.keys()):
        raise RecordError(f"its record names no {missing[0]}")
    if result.exit_code or len(result.output_files) != len(files) or len(files) > MAX_FILES:
        raise RecordError("its record is not one of tilusbuild")
    _bound(files)
    metadata = result.execution_metadata
    start, end = metadata.execution_start_timestamp, metadata.execution_completed_timestamp
    seconds = end.seconds - start.seconds + (end.nanos - start.nanos) / 1e9
    inlined = {
        blob: each.contents
        for each in result.output_files
        if each.contents and (blob := blob_of(each.digest)) == blob_for(each.contents)
    }
    return Record(files, directories, min(max(seconds, 0.0), 1e6), inlined)


class Describer:
    """Makes records of a cache's entries. A directory that many programs share is read once."""

    def __init__(self, include_path: Callable[[str], str]) -> None:
        """`include_path` returns the place of a header directory."""
        self._include_path = include_path
        self._trees: dict[str, tuple[Blob, Sources]] = {}

    def describe(self, entry: Entry, seconds: float) -> tuple[Record, Sources]:
        """Return an entry's record, and where its blobs are. Raises `OSError`."""
        files = {name: Blob(digest, size) for name, size, digest in listed(entry.meta)}
        sources: Sources = {blob: os.path.join(entry.path, name) for name, blob in files.items()}
        meta = read_bytes(os.path.join(entry.path, layout.META))
        files[layout.META] = blob_for(meta)
        sources[files[layout.META]] = meta
        directories: dict[str, Blob] = {}
        for digest in headers_used(entry.path):
            if digest not in self._trees:
                tree, held = tree_of(self._include_path(digest))
                self._trees[digest] = blob_for(tree), {blob_for(tree): tree, **held}
            directories[digest], held = self._trees[digest]
            sources.update(held)
        return Record(files, directories, seconds), sources


def tree_of(directory: str) -> tuple[bytes, Sources]:
    """Return a header directory as the bytes of a Tree, and where the blobs in it are: its
    Directories, too, without which casd answers for no record that names the Tree. Raises
    `OSError`."""
    sources: Sources = {}
    contents: dict[str, reapi.Directory] = {"": reapi.Directory()}
    for name in layout.files_below(directory):
        path = os.path.join(directory, name)
        blob = blob_for(read_bytes(path))
        sources[blob] = path
        parent, base = os.path.split(name)
        _with_parents(contents, parent).files.add(name=base, digest=digest_of(blob))
    children = []
    # A directory's digest is of its subdirectories' digests: the deepest first.
    for name in sorted(filter(None, contents), key=lambda each: -each.count("/")):
        data = _sorted(contents[name]).SerializeToString(deterministic=True)
        parent, base = os.path.split(name)
        sources[blob_for(data)] = data
        contents[parent].directories.add(name=base, digest=digest_of(blob_for(data)))
        children.append(contents[name])
    tree = reapi.Tree(root=_sorted(contents[""]), children=children)
    return tree.SerializeToString(deterministic=True), sources


def _with_parents(contents: dict[str, reapi.Directory], name: str) -> reapi.Directory:
    if name not in contents:
        _with_parents(contents, os.path.dirname(name))
        contents[name] = reapi.Directory()
    return contents[name]


def _sorted(directory: reapi.Directory) -> reapi.Directory:
    directory.files.sort(key=lambda node: node.name)
    directory.directories.sort(key=lambda node: node.name)
    return directory


def files_of_tree(data: bytes) -> dict[str, Blob]:
    """Return the files of a Tree by relative name. Raises `RecordError`."""
    try:
        tree = reapi.Tree.FromString(data)
    except DecodeError:
        raise RecordError("a Tree cannot be read") from None
    children = {
        sha256_bytes(each.SerializeToString(deterministic=True)): each for each in tree.children
    }
    found: dict[str, Blob] = {}
    waiting = [("", tree.root)]
    for prefix, directory in waiting:
        for node in directory.files:
            found[prefix + node.name] = blob_of(node.digest)
        for below in directory.directories:
            child = children.get(below.digest.hash)
            if child is None:
                raise RecordError("a directory is missing in a Tree")
            waiting.append((f"{prefix}{below.name}/", child))
        # Few directories can name each other so often that they hold any number of files.
        if len(found) > MAX_FILES or len(waiting) > MAX_FILES:
            raise RecordError(f"a Tree has more than {MAX_FILES} files")
    for name in found:
        if not layout.is_inside(name):
            raise RecordError(f"a Tree names {name!r}")
    _bound(found)
    return found


def _bound(files: Mapping[str, Blob]) -> None:
    if sum(blob.size for blob in files.values()) > MAX_BYTES:
        raise RecordError(f"it has more than {MAX_BYTES >> 20} MiB")


def blob_for(data: bytes) -> Blob:
    """Return what names this content."""
    return Blob(sha256_bytes(data), len(data))


def blob_of(digest: reapi.Digest) -> Blob:
    """Return a digest of a message, checked in form. Raises `RecordError`."""
    if not layout.is_hash(digest.hash) or not 0 <= digest.size_bytes <= MAX_BYTES:
        raise RecordError(f"no such digest: {digest.hash[:80]!r} of {digest.size_bytes} bytes")
    return Blob(digest.hash, digest.size_bytes)


def digest_of(blob: Blob) -> reapi.Digest:
    """Return the message that names a blob."""
    return reapi.Digest(hash=blob.digest, size_bytes=blob.size)
