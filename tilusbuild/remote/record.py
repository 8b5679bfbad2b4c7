"""The record of a program in a remote cache: its key, and the list of its blobs by sha256 and size.

A record is JSON, under a key that follows from the program's hash alone. It lists the entry's
files, `meta.json` included, and as directories what the program was compiled with, headers and
launcher: each `include/<digest>` as the blob of a listing. Short texts come with the record, so
that a hit takes a request for it and one for each file that is binary or long. A record from
elsewhere is a list of claims; reading one checks only that they are possible: names, sizes, and how
many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct, field

from tilusbuild.cache import layout
from tilusbuild.cache.entries import Entry, listed
from tilusbuild.cache.garbage import headers_used
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

FORMAT = 2
"""Of records. Another one is under other keys."""
MAX_RECORD = 4 << 20
"""Bytes of a record that is read."""
MAX_BYTES = 1 << 30
"""Of all that a program consists of."""
MAX_FILES = 10_000
MAX_TEXT = 16 << 10
"""Bytes of a file that comes with the record."""
MAX_SECONDS = 1e6
_NEEDED = {layout.META, layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.COMPILE_SH}


class Blob(NamedTuple):
    """Content by its digest and its size in bytes."""

    digest: str
    size: int


Sources: TypeAlias = dict[Blob, "bytes | str"]
"""Where blobs are: content, or the path of a file."""


class RecordError(ValueError):
    """A record, or something in it, that cannot be one of ours."""


class Record(Struct, frozen=True):
    """A program's blobs. `directories` has the listing of each `include/<digest>`, by that
    digest."""

    files: Mapping[str, Blob]
    directories: Mapping[str, Blob]
    seconds: float
    """How long its compile took."""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    """The content of some of the files, which is what their digests say."""

    @property
    def blobs(self) -> set[Blob]:
        """The files that are not in the record itself."""
        return {blob for name, blob in self.files.items() if name not in self.texts}


def blob_for(data: bytes) -> Blob:
    """Return what names this content."""
    return Blob(sha256_bytes(data), len(data))


def key(program: str) -> Blob:
    """Return what names a program's record."""
    return blob_for(f"tilusbuild program {FORMAT} {program}".encode())


def encode(record: Record) -> bytes:
    """Return the text of a record."""
    value = {
        "files": record.files,
        "directories": record.directories,
        "seconds": record.seconds,
        "texts": {name: data.decode() for name, data in record.texts.items()},
    }
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode()


def decode(data: bytes) -> Record:
    """Return the record in a text. Raises `RecordError`."""
    value = _parsed(data)
    files = _blobs(value.get("files"))
    directories = _blobs(value.get("directories"))
    if missing := sorted(_NEEDED - files.keys()):
        raise RecordError(f"its record names no {missing[0]}")
    if strange := [name for name in directories if not layout.is_hash(name)]:
        raise RecordError(f"its record names {strange[0]!r}")
    try:
        texts = {name: text.encode() for name, text in value.get("texts", {}).items()}
        seconds = float(value["seconds"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise RecordError("its record cannot be read") from None
    for name, text in texts.items():
        if files.get(name) != blob_for(text):
            raise RecordError(f"{name} has other bytes than its digest says")
    return Record(files, directories, seconds if 0 <= seconds < MAX_SECONDS else 0.0, texts)


def encode_listing(files: Mapping[str, Blob]) -> bytes:
    """Return the text that names the files of a directory."""
    return json.dumps(files, sort_keys=True).encode()


def decode_listing(data: bytes) -> dict[str, Blob]:
    """Return the files of a directory by relative name. Raises `RecordError`."""
    return _blobs(_parsed(data))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RecordError("its record cannot be read")
    return value


def _blobs(value: Any) -> dict[str, Blob]:
    """Return blobs by name, checked in form. Raises `RecordError`."""
    if not isinstance(value, dict) or len(value) > MAX_FILES:
        raise RecordError("its record is not one of tilusbuild")
    found: dict[str, Blob] = {}
    total = 0
    for name, each in value.items():
        match each:
            case [str(digest), int(size)] if layout.is_hash(digest) and 0 <= size <= MAX_BYTES:
                found[name] = Blob(digest, int(size))
                total += size
            case _:
                raise RecordError(f"its record has no digest and size of {name[:80]!r}")
        if not layout.is_inside(name):
            raise RecordError(f"its record names {name[:80]!r}")
    if total > MAX_BYTES:
        raise RecordError(f"it has more than {MAX_BYTES >> 20} MiB")
    return found


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
        texts: dict[str, bytes] = {}
        for name, blob in files.items():
            if blob.size <= MAX_TEXT:
                data = read_bytes(os.path.join(entry.path, name))
                if blob_for(data) != blob:
                    raise RecordError(f"{name} is damaged")
                if _is_text(data):
                    texts[name] = data
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


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _listing(directory: str) -> tuple[Blob, Sources]:
    """Return the blob of a header directory's listing, and where that and its files are. Raises
    `OSError`."""
    files: dict[str, Blob] = {}
    sources: Sources = {}
    for name in layout.files_below(directory):
        path = os.path.join(directory, name)
        files[name] = blob_for(read_bytes(path))
        sources[files[name]] = path
    data = encode_listing(files)
    sources[blob_for(data)] = data
    return blob_for(data), sources
