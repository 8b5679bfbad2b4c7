"""The model that readers and writers of packages share: containers, purposes of files, GPU code.

A `Reader` yields names and bytes in its container's order. `extract` compares both with the list
before anything else sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Meta, Struct

from tilusbuild.binary.elf import BinaryError, LibraryNeeds, read_needs
from tilusbuild.binary.fatbin import read_archs
from tilusbuild.cache import layout
from tilusbuild.package.errors import over_limit

READ_SIZE = 1 << 18
"""Bytes of a piece, at most."""
MAX_ATTESTATION_SIZE = 16 << 20
"""Bytes of a signature, a provenance or an SBOM."""


# Containers.


class ContainerFile(NamedTuple):
    """A file in a container, with the name and the size in bytes that the container claims."""

    path: str
    size: int
    pieces: Iterator[bytes]
    """The content. It can be read once, and only before the next file."""

    def read_content(self, limit: int) -> bytes:
        """Read the pieces, and return the whole content. Raises `PackageError` for more than
        `limit` bytes, and the errors of the reader."""
        if self.size > limit:
            raise over_limit(f"{self.path} has {self.size} bytes; at most {limit} are read")
        # The container's claim is not enough: a file can grow while it is read.
        pieces, size = [], 0
        for piece in self.pieces:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise over_limit(f"{self.path} has more than {limit} bytes")
        return b"".join(pieces)


class Reader(Protocol):
    """A package in its container. Every method raises `PackageError`.

    A reader knows its container and nothing of the list. It refuses entries that are not plain
    files, containers that are truncated or corrupt, and headers and windows that ask for too much
    memory. It never reads an entry whole unless asked to.
    """

    kind: str
    """The name of the format, for messages."""
    packed: int | None
    """The container's size in bytes, which limits how far its content may expand; None where
    nothing is compressed."""

    def list_bytes(self) -> bytes:
        """Return `tilus-package.json`, of at most `listing.MAX_LIST_SIZE` bytes."""

    def attestations(self) -> Mapping[str, bytes]:
        """Return the attestations that exist, by their names in `names.BESIDE`. Each has at most
        `MAX_ATTESTATION_SIZE` bytes."""

    def stream(self) -> Iterator[ContainerFile]:
        """Yield every file except the list and the attestations, in the container's order."""

    def close(self) -> None:
        """Close the container."""


# The purposes of files, which decide whether a file of a cache is packed.


Purpose: TypeAlias = Literal["runtime", "sources", "logs"]
"""`runtime`: needed by a call, and the texts that identify the program. `sources`: needed by
`compile.sh` to make the library again. `logs`: output of compilers and measurements."""

PROGRAM_FILES = (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META, layout.LIBRARY)
"""Every packed program has these."""
SCRIPT_FILES = (layout.SCRIPT_TXT, layout.SCRIPT_JSON)
"""Every packed script has these."""
_RUNTIME_OF_SCRIPT = (*SCRIPT_FILES, layout.SCHEDULE_TXT, *layout.TABLES)
_LOGS = f"{layout.LATENCY}/"


def classify_program_file(name: str) -> Purpose:
    """Return the purpose of a file below a program's directory."""
    if name in PROGRAM_FILES:
        return "runtime"
    return "logs" if name == layout.LOG else "sources"


def classify_script_file(name: str) -> Purpose | None:
    """Return the purpose of a file below a script's directory; None for one that is never packed.

    Links and locks are never packed: a package names programs by their hashes.
    """
    if name in _RUNTIME_OF_SCRIPT:
        return "runtime"
    if name.startswith(f"{layout.DISPATCH}/"):
        return "sources" if name.endswith(".c") else "runtime"
    return "logs" if name.startswith(_LOGS) and name.endswith((".json", ".txt")) else None


def choose_mode(path: str) -> int:
    """Return the permissions of a packed file: libraries and scripts can be executed."""
    return 0o755 if path.endswith((".so", ".sh")) else 0o644


# What a list is made of.


Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\Z")]
"""A name or version: letters, digits, `_`, `.`, `+` and `-`."""
Version: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9]{1,6}(\.[0-9]{1,6}){0,3}\Z")]
"""Numbers with dots between."""
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


# GPU code.


MAX_LIBRARY_SIZE = 256 << 20
"""Bytes of a library: libraries are read whole."""


class Image(Struct, frozen=True, forbid_unknown_fields=True):
    """GPU code in a library, as read from the binary: `binary.CodeImage` without its size."""

    kind: Literal["sass", "ptx"]
    arch: Name


def format_code(images: Iterable[tuple[str, str]], machine: str | None) -> str:
    """Describe the code of a library, as "code for sm_90 (sass), x86_64". `images` has
    (architecture, kind) of its GPU images; `machine` is that of its host code."""
    parts = sorted(f"{arch} ({kind})" for arch, kind in images)
    return f"code for {', '.join([*parts, *([machine] if machine else [])]) or 'no GPU'}"


def read_code(data: bytes) -> tuple[tuple[Image, ...], LibraryNeeds | None]:
    """Return the GPU images in a file, and the needs of its host code (None: no host code)."""
    images: tuple[Image, ...] = ()
    needs = None
    # A cubin has no host code, and a library may have no GPU code. A fatbin has images, but no ELF
    # header to read needs from.
    with suppress(BinaryError):
        images = tuple(dict.fromkeys(Image(i.kind, i.arch) for i in read_archs(data)))
    with suppress(BinaryError):
        needs = read_needs(data)
    return images, needs


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as "2.17"; of a post-release, those of its release."""
    return tuple(int(word) for word in version.partition(".post")[0].split("."))
