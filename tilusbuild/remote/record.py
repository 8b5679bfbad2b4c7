"""The record of a program in a remote cache: its key, and the list of its blobs by sha256 and size.

A record is JSON, under a key that follows from the program's hash alone. It lists the entry's
files, `meta.json` included, and as directories what the program was compiled with, headers and
launcher: each `include/<digest>` as the blob of a listing. Short texts come with the record, so
that a hit takes a request for it and one for each file that is binary or long. A record from
elsewhere is a list of claims; reading one checks only that they are possible, by the types of
`Record` (msgspec) and `_check`: names, sizes, and how many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

from msgspec import DecodeError, Meta, Struct, field, json

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed
from tilusbuild.cache.garbage import headers_used
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

FORMAT = 2
"""Of records. Another one is under other keys."""
MAX_RECORD = 512 << 10
"""Bytes of a record that is read: as many are held in memory as are asked for at once."""
MAX_LISTING = 4 << 20
"""Bytes of a directory's listing that is read."""
MAX_BYTES = 1 << 30
"""Of all that a program consists of."""
MAX_FILES, MAX_LISTED, MAX_DIRECTORIES = 1_000, 10_000, 8
"""Of a program, of a directory; and directories of a program."""
MAX_TEXT, MAX_TEXTS = 16 << 10, 128 << 10
"""Bytes of a file that comes with the record, and of all of them."""
MAX_SECONDS = 1e6
NEEDED = frozenset((layout.META, layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.COMPILE_SH))
_MOST = {layout.LOG: 16 << 20, **dict.fromkeys(NEEDED, MAX_LISTING)}
"""Bytes of files that are read."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
T = TypeVar("T")


class Blob(NamedTuple):
    """Content by its digest and its size in bytes."""

    digest: Digest
    size: Annotated[int, Meta(ge=0, le=MAX_BYTES)]


Blobs: TypeAlias = Annotated[dict[str, Blob], Meta(max_length=MAX_LISTED)]
"""Blobs by relative name."""

Source: TypeAlias = bytes | str
"""Content, or the path of the file that it is in."""
Sources: TypeAlias = dict[Blob, Source]


class RecordError(ValueError):
    """A record, or something in it, that cannot be one of ours."""


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """A program's blobs; `directories` has the listing of each `include/<digest>`."""

    files: Annotated[dict[str, Blob], Meta(max_length=MAX_FILES)]
    directories: Annotated[dict[Digest, Blob], Meta(max_length=MAX_DIRECTORIES)]
    seconds: Annotated[float, Meta(ge=0, lt=MAX_SECONDS)]
    """How long its compile took."""
    texts: dict[str, str] = field(default_factory=dict)
    """The content of some of the files, which is what their digests say."""

    @property
    def blobs(self) -> set[Blob]:
        """The files that are not in the record itself."""
        return {blob for name, blob in self.files.items() if name not in self.texts}


def blob_for(data: bytes) -> Blob:
    """Return what names this content."""
    return Blob(sha256_bytes(data), len(data))


def content(source: Source) -> bytes:
    """Raises `OSError`."""
    return source if isinstance(source, bytes) else read_bytes(source)


def key(program: str) -> Blob:
    """Return what names a program's record."""
    return blob_for(f"tilusbuild program {FORMAT} {program}".encode())


def encode(value: Record | Mapping[str, Blob]) -> bytes:
    """Return the text of a record, or of a directory's files by relative name."""
    return json.encode(value, order="deterministic")


def decode(data: bytes) -> Record:
    """Return the record in a text. Raises `RecordError`."""
    record = parsed(data, _RECORD, "its record")
    _check(record.files)
    if missing := sorted(NEEDED - record.files.keys()):
        raise RecordError(f"its record names no {missing[0]}")
    listings = {f"{layout.INCLUDE}/{name}": blob for name, blob in record.directories.items()}
    for name, blob in {**record.files, **listings}.items():
        if blob.size > (MAX_LISTING if name in listings else _MOST.get(name, MAX_BYTES)):
            raise RecordError(f"{name[:80]!r} has {blob.size} bytes")
    for name, text in record.texts.items():
        if record.files.get(name) != blob_for(text.encode()):
            raise RecordError(f"{name[:80]!r} does not match its digest")
    return record


def decode_listing(data: bytes) -> dict[str, Blob]:
    """Return the files of a directory by relative name. Raises `RecordError`."""
    files = parsed(data, _BLOBS, "a listing of headers")
    _check(files)
    return files


# Made here: msgspec ends the process where two threads meet a type for the first time.
_RECORD: json.Decoder[Record] = json.Decoder(Record)
_BLOBS: json.Decoder[dict[str, Blob]] = json.Decoder(Blobs)


def parsed(data: bytes, decoder: json.Decoder[T], what: str) -> T:
    """Return what a text says, checked by its type. Raises `RecordError`."""
    try:
        return decoder.decode(data)
    except (DecodeError, RecursionError) as error:
        raise RecordError(f"{what} cannot be read: {error!s:.200}") from None


def _check(files: Mapping[str, Blob]) -> None:
    """Check what no type says: that names stay inside, and the sum of the sizes."""
    if strange := [name for name in files if not layout.is_inside(name)]:
        raise RecordError(f"its record names {strange[0][:80]!r}")
    if sum(blob.size for blob in files.values()) > MAX_BYTES:
        raise RecordError(f"it has more than {MAX_BYTES >> 20} MiB")


class Describer:
    """Makes records of a cache's entries. A directory that many programs share is read once."""

    def __init__(self, include_path: Callable[[str], str]) -> None:
        """`include_path` returns the place of a header directory."""
        self._include_path = include_path
        self._listings: dict[str, tuple[Blob, Sources]] = {}

    def describe(self, entry: Entry, seconds: float) -> tuple[Record, Sources]:
        """Return an entry's record, and where the blobs are that it names. Raises `OSError`, and
        `RecordError` for an entry that is not what it says."""
        files = {name: Blob(digest, size) for name, size, digest in listed(entry.meta)}
        meta = read_bytes(os.path.join(entry.path, layout.META))
        files[layout.META] = blob_for(meta)
        texts: dict[str, str] = {}
        left = MAX_TEXTS
        # Those first without which nothing else is fetched.
        for name, blob in sorted(files.items(), key=lambda item: item[0] not in NEEDED):
            if blob.size <= min(MAX_TEXT, left):
                left -= blob.size
                data = read_bytes(os.path.join(entry.path, name))
                if blob_for(data) != blob:
                    raise RecordError(f"{name} is damaged")
                with suppress(UnicodeDecodeError):
                    texts[name] = data.decode()
        sources: Sources = {
            blob: os.path.join(entry.path, name)
            for name, blob in files.items()
            if name not in texts
        }
        directories: dict[str, Blob] = {}
        for digest in headers_used(entry.path):
            if digest not in self._listings:
                self._listings[digest] = _listing(self._include_path(digest))
            directories[digest], held = self._listings[digest]
            sources.update(held)
        return Record(files, directories, seconds, texts), sources


def _listing(directory: str) -> tuple[Blob, Sources]:
    """Return a header directory's listing as a blob, and where all files are. Raises `OSError`."""
    files: dict[str, Blob] = {}
    sources: Sources = {}
    for name in layout.files_below(directory):
        path = os.path.join(directory, name)
        files[name] = blob_for(read_bytes(path))
        sources[files[name]] = path
    data = encode(files)
    sources[blob_for(data)] = data
    return blob_for(data), sources
