"""What all of a package's readers and writers share: containers, file purposes, GPU code, JSON.

A `Reader` yields names and bytes in its container's order; `extract` trusts none of them before it
has compared them with the list. The JSON is untrusted, too: `Field` reads it into values of the
expected form and refuses everything else. Objects have exactly the expected keys, each once.
Numbers are whole and not negative. Reading raises only `MalformedListError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from tilusbuild.binary import BinaryError, read_archs, read_needs
from tilusbuild.cache import layout
from tilusbuild.package.errors import MalformedListError, OverLimitError
from tilusbuild.runtime import direct

MAX_ATTESTATION_SIZE = 16 << 20
"""Bytes of a signature, a provenance or an SBOM."""


# Containers.


class ContainerFile(NamedTuple):
    """A file in a container, with the name and the size in bytes that the container claims."""

    path: str
    size: int
    read: Callable[[int], bytes]
    """Return the next bytes, at most so many; b"" at the end. Valid until the next item."""

    def content(self, limit: int) -> bytes:
        """Return the whole content. Raises `OverLimitError` for more than `limit` bytes."""
        if self.size > limit:
            raise OverLimitError(f"{self.path} has {self.size} bytes; at most {limit} are read")
        # What a container claims is not what it holds: a file can grow while it is read.
        found, size = [], 0
        while piece := self.read(1 << 20):
            found.append(piece)
            size += len(piece)
            if size > limit:
                raise OverLimitError(f"{self.path} has more than {limit} bytes")
        return b"".join(found)


class Reader(Protocol):
    """A package in its container. Every method raises `PackageError`.

    A reader knows its container and nothing of the list. It refuses entries that are not plain
    files, containers that are truncated or corrupt, and headers and windows that ask for too much
    memory. It never reads an entry whole unless asked to.
    """

    kind: str
    """The name of the format, for messages."""
    packed: int | None
    """Bytes of the container; None where nothing is compressed."""

    def list_bytes(self) -> bytes:
        """Return `tilus-package.json`, of at most `listing.MAX_LIST_SIZE` bytes."""
        ...

    def attestations(self) -> Mapping[str, bytes]:
        """Return the attestations that exist, by their names in `names.BESIDE`. Each has at most
        `MAX_ATTESTATION_SIZE` bytes."""
        ...

    def stream(self, layers: int, skip: Container[int]) -> Iterator[ContainerFile]:
        """Yield every file except the list and the attestations.

        `layers` is the number of layers that the list makes. The files of those in `skip` may be
        left out.
        """
        ...

    def close(self) -> None:
        """Close the container."""
        ...


# What each file of a cache is for: this decides whether it is packed.


Purpose: TypeAlias = Literal["runtime", "sources", "logs"]
"""`runtime`: what a call needs, and the texts that identify the program. `sources`: what
`compile.sh` needs to make the library again. `logs`: output of compilers and measurements."""

PROGRAM_FILES = (layout.PROGRAM_TXT, layout.OPTIONS_TXT, layout.META, layout.LIBRARY)
"""Every packed program has these."""
SCRIPT_FILES = (layout.SCRIPT_TXT, layout.SCRIPT_JSON)
"""Every packed script has these."""
_RUNTIME_OF_SCRIPT = (
    *SCRIPT_FILES,
    layout.SCHEDULE_TXT,
    layout.TABLE_JSON,
    layout.TABLE_TXT,
)
_LOGS = f"{layout.LATENCY}/"


def purpose_of_program(name: str) -> Purpose:
    """Return the purpose of a file below a program's directory."""
    if name in PROGRAM_FILES:
        return "runtime"
    return "logs" if name == layout.LOG else "sources"


def purpose_of_script(name: str) -> Purpose | None:
    """Return the purpose of a file below a script's directory; None for one that is never packed.

    Links and locks are never packed: a package names programs by their hashes.
    """
    if name in _RUNTIME_OF_SCRIPT:
        return "runtime"
    if name.startswith(f"{direct.DIRECTORY}/"):
        return "sources" if name.endswith(".c") else "runtime"
    return "logs" if name.startswith(_LOGS) and name.endswith((".json", ".txt")) else None


def mode_of(path: str) -> int:
    """Return the mode of a packed file."""
    return 0o755 if path.endswith((".so", ".sh")) else 0o644


# GPU code.


MAX_LIBRARY_SIZE = 256 << 20
"""Bytes of a library: libraries are read whole."""


class Image(Struct, frozen=True):
    """A piece of GPU code in a library, as read from the binary: `binary.CodeImage` without its
    size."""

    kind: Literal["sass", "ptx"]
    arch: str


def images_text(images: Iterable[tuple[str, str]]) -> str:
    """Return the (kind, architecture) of images for people."""
    return ", ".join(sorted(f"{arch} ({kind})" for kind, arch in images)) or "no GPU"


def read_images(field: Field) -> tuple[Image, ...]:
    """Return the images in a list. Raises `MalformedListError`."""
    return field.array(
        lambda each: each.record(Image, kind=lambda f: f.one_of("sass", "ptx"), arch=Field.name)
    )


def code_of(data: bytes) -> tuple[tuple[Image, ...], str | None]:
    """Return the GPU images in a file, and the machine of its host code (None: no host code)."""
    try:
        images = tuple(dict.fromkeys(Image(i.kind, i.arch) for i in read_archs(data)))
    except BinaryError:
        images = ()
    try:
        return images, read_needs(data).machine
    except BinaryError:
        return images, None


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as "2.17"."""
    return tuple(int(word) for word in version.split("."))


# JSON.


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", re.ASCII)
_MAX_DIGITS = 16
_MIN_BYTES_EACH = 16
"""Bytes of text that an object or array of a list has at least, on average."""
_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=str)


def decode(data: bytes) -> Any:
    """Return the JSON value. Raises `MalformedListError`, whatever the bytes are."""
    # An empty array is two bytes of text and sixty of memory.
    if data.count(b"{") + data.count(b"[") > 1000 + len(data) // _MIN_BYTES_EACH:
        raise MalformedListError("it is nested too deeply, or is made of nothing but brackets")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise MalformedListError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise MalformedListError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise MalformedListError(f"it is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of a key that is there twice, readers differ in which value they believe.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedListError("an object has a key twice")
    return found


def _whole_number(text: str) -> int:
    # Python takes time that is quadratic in the number of digits, and JSON's own numbers end at
    # 2^53.
    if len(text) > _MAX_DIGITS or text.startswith("-"):
        _no_number(text)
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise MalformedListError(f"{text:.40} is not a number that a list can hold")


def plain(value: Any) -> Any:
    """Return a value of structs, mappings and tuples as JSON has it: `Field`'s opposite."""
    if isinstance(value, Struct):
        return {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


class Field(Struct, frozen=True):
    """A value, and its place in the list, for the message when it is not what it should be."""

    where: str
    value: Any

    def table(self, *keys: str) -> tuple[Field, ...]:
        """Return the values of an object with these keys and no other, in this order."""
        value = self._an_object()
        if value.keys() != set(keys):
            odd = min(set(keys) ^ value.keys())
            self._refuse(f"has {'no' if odd in keys else 'an unknown'} key {odd!r:.60}")
        return tuple(Field(f"{self.where}.{key}".lstrip("."), value[key]) for key in keys)

    def record(self, make: Callable[..., _T], **parts: Callable[[Field], object]) -> _T:
        """Return `make` of the values of an object with these keys and no other, each as its
        function reads it."""
        values = self.table(*parts)
        return make(
            **{key: read(value) for (key, read), value in zip(parts.items(), values, strict=True)}
        )

    def mapping(self, read: Callable[[Field], _T], limit: int = 1_000_000) -> dict[str, _T]:
        """Return an object whose keys are free, with its values as `read` reads them."""
        value = self._an_object()
        if len(value) > limit:
            self._refuse(f"has {len(value)} entries, more than {limit}")
        return {k: read(Field(f"{self.where}.{k:.100}", each)) for k, each in value.items()}

    def array(self, read: Callable[[Field], _T]) -> tuple[_T, ...]:
        """Return an array with its items as `read` reads them."""
        if not isinstance(self.value, list):
            self._refuse("is not an array")
        return tuple(read(Field(f"{self.where}[{i}]", each)) for i, each in enumerate(self.value))

    def text(self, limit: int) -> str:
        """Return a string of characters that UTF-8 has."""
        if not isinstance(self.value, str):
            self._refuse("is not a string")
        if len(self.value) > limit:
            self._refuse(f"is longer than {limit}")
        if not self.value.isascii() and any("\ud800" <= c <= "\udfff" for c in self.value):
            self._refuse("holds half a character")  # a lone surrogate: no file name can have it
        return self.value

    def name(self) -> str:
        """Return a name or version: letters, digits, `_`, `.`, `+` and `-`."""
        return self._matching(_NAME, "name")

    def version(self) -> str:
        """Return numbers with dots between."""
        return self._matching(_VERSION, "version")

    def digest(self) -> str:
        """Return 64 hex digits."""
        found = self.text(64)
        if not layout.is_hash(found):
            self._refuse("is not a sha256")
        return found

    def integer(self, limit: int) -> int:
        """Return a whole number from 0."""
        if type(self.value) is not int:
            self._refuse("is not a whole number")
        if not 0 <= self.value <= limit:
            self._refuse(f"is more than {limit}")
        return self.value

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self._refuse("is neither true nor false")
        return self.value

    def one_of(self, *choices: _Word) -> _Word:
        """Return one of these words."""
        found = self.text(200)
        chosen = next((choice for choice in choices if choice == found), None)
        if chosen is None:
            self._refuse(f"is {found!r:.60}, not one of {', '.join(choices)}")
        return chosen

    def optional(self, read: Callable[[Field], _T]) -> _T | None:
        """Return what `read` reads, or None for null."""
        return None if self.value is None else read(self)

    def _an_object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self._refuse("is not an object")
        return self.value

    def _matching(self, pattern: re.Pattern[str], what: str) -> str:
        found = self.text(200)
        if not pattern.fullmatch(found):
            self._refuse(f"is {found!r:.60}, which is not a {what}")
        return found

    def _refuse(self, problem: str) -> NoReturn:
        raise MalformedListError(f"{self.where or 'the list'} {problem}")
