"""A package as an OCI image layout: blobs named by their digests, and JSON that says which is what.

The config blob of the package's manifest is the list. Its layers are tar streams in zstd, in the
list's order. Signature, provenance and SBOM are artifacts whose `subject` is that manifest. A blob
that is read is compared with the size and the digest that name it; one that nothing names is
refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from typing import Any, NamedTuple, NoReturn

from tilusbuild.package import names
from tilusbuild.package.errors import (
    FileChanged,
    FileUnlisted,
    ListMalformed,
    NoPackage,
    OverLimit,
    Truncated,
)
from tilusbuild.package.formats.frames import Section, Unpacked, frames
from tilusbuild.package.formats.read_directory import open_plain, read_plain
from tilusbuild.package.formats.tar import entries
from tilusbuild.package.listing import LARGEST_FILE, MOST_BYTES
from tilusbuild.package.reader import LARGEST_BESIDE, Item
from tilusbuild.package.values import decode
from tilusbuild.state.hashing import hasher, sha256_bytes

ARTIFACT = "application/vnd.tilusbuild.package.v1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
_TITLE = "org.opencontainers.image.title"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_LARGEST_JSON = 16 << 20
_MOST_MANIFESTS = 100
_MOST_LAYERS = 100_000


class Blob(NamedTuple):
    """A descriptor: what names a blob."""

    media: str
    digest: str
    size: int
    title: str


class _Manifest(NamedTuple):
    digest: str
    artifact: str
    config: Blob
    layers: tuple[Blob, ...]
    subject: str | None


class OciReader:
    """The package in the layout at `path`. Raises `PackageError`s."""

    kind = "OCI image layout"

    def __init__(self, path: str) -> None:
        self._path = path
        index = self._json(
            "index.json", read_plain(self._at("index.json"), "index.json", _LARGEST_JSON)
        )
        # A manifest with two tags is there twice.
        blobs = {blob.digest: blob for blob in _blobs(index, "manifests", _MOST_MANIFESTS)}
        found = [self._manifest(blob) for blob in blobs.values()]
        packages = [manifest for manifest in found if manifest.artifact == ARTIFACT]
        if len(packages) != 1:
            raise NoPackage(f"the image layout holds {len(packages) or 'no'} packages of kernels")
        self._package = packages[0]
        self._beside = [m for m in found if m.subject == self._package.digest]
        self._check_strangers([self._package, *self._beside])
        self.packed: int | None = sum(blob.size for blob in self._package.layers)

    def list_bytes(self) -> bytes:
        return self._whole(self._package.config, MOST_BYTES)

    def attestations(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for manifest in self._beside:
            for blob in manifest.layers:
                name = f"{names.ATTESTATIONS}/{blob.title}"
                if name not in names.BESIDE or name in found:
                    raise FileUnlisted(f"an artifact beside the package is {blob.title!r:.100}")
                found[name] = self._whole(blob, LARGEST_BESIDE)
        return found

    def stream(self, layers: int, skip: Container[int]) -> Iterator[Item]:
        blobs = self._package.layers
        if len(blobs) != layers:
            raise Truncated(f"it has {len(blobs)} layers, and its list makes {layers}")
        for number, blob in enumerate(blobs):
            if number not in skip:
                yield from self._layer(blob)

    def close(self) -> None:
        return None

    def _layer(self, blob: Blob) -> Iterator[Item]:
        if blob.media != _LAYER:
            raise ListMalformed(f"a layer of type {blob.media!r:.100}")
        handle = open_plain(self._blob_path(blob), blob.digest)
        try:
            if os.fstat(handle).st_size != blob.size:
                raise Truncated(f"blob {blob.digest} has not the {blob.size} bytes that name it")
            if len(frames(handle, blob.size, 1)) != 1:
                raise Truncated(f"blob {blob.digest} is empty")
            section = _Hashed(handle, blob.size)
            yield from entries(Unpacked(section), ends=True)
            if section.digest() != blob.digest:
                raise FileChanged(f"blob {blob.digest} is not what it is named by")
        finally:
            os.close(handle)

    def _manifest(self, blob: Blob) -> _Manifest:
        value = self._json(blob.digest, self._whole(blob, _LARGEST_JSON))
        subject = value.get("subject")
        return _Manifest(
            blob.digest,
            str(value.get("artifactType")),
            _blob(value.get("config")),
            tuple(_blobs(value, "layers", _MOST_LAYERS)),
            None if subject is None else _blob(subject).digest,
        )

    def _check_strangers(self, manifests: list[_Manifest]) -> None:
        """Every blob there is named by something."""
        known = {m.digest for m in manifests}
        known |= {blob.digest for m in manifests for blob in (m.config, *m.layers)}
        for folder, wanted in (
            ("", {"blobs", "index.json", "oci-layout"}),
            ("blobs", {"sha256"}),
            ("blobs/sha256", known),
        ):
            try:
                there = set(os.listdir(self._at(folder)))
            except OSError as error:
                raise Truncated(f"{folder} cannot be read: {error.strerror}") from None
            if strangers := there - wanted:
                raise FileUnlisted(f"{os.path.join(folder, min(strangers))!r:.200} is not listed")

    def _whole(self, blob: Blob, most: int) -> bytes:
        if blob.size > most:
            raise OverLimit(f"blob {blob.digest} has {blob.size} bytes; at most {most} are read")
        data = read_plain(self._blob_path(blob), f"blob {blob.digest}", most)
        if len(data) != blob.size or sha256_bytes(data) != blob.digest:
            raise FileChanged(f"blob {blob.digest} is not what it is named by")
        return data

    def _json(self, name: str, data: bytes) -> dict[str, Any]:
        value = decode(data)
        if not isinstance(value, dict) or value.get("schemaVersion") != 2:
            raise ListMalformed(f"{name} is no OCI index or manifest")
        return value

    def _blob_path(self, blob: Blob) -> str:
        return self._at(f"blobs/sha256/{blob.digest}")

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)


class _Hashed(Section):
    """A whole file in order, and the digest of what was read and of what is left."""

    def __init__(self, handle: int, size: int) -> None:
        super().__init__(handle, 0, size)
        self._hasher = hasher()

    def read(self, count: int = -1) -> bytes:
        data = super().read(count)
        self._hasher.update(data)
        return data

    def digest(self) -> str:
        while self.read(1 << 20):
            pass
        return self._hasher.hexdigest()


def _blobs(value: dict[str, Any], key: str, most: int) -> list[Blob]:
    found = value.get(key)
    if not isinstance(found, list) or len(found) > most:
        _refuse(f"{key} is no list, or too long a one")
    return [_blob(each) for each in found]


def _blob(value: Any) -> Blob:
    if not isinstance(value, dict):
        _refuse("a descriptor is no object")
    digest = _DIGEST.fullmatch(str(value.get("digest")))
    size, notes = value.get("size"), value.get("annotations") or {}
    if digest is None or type(size) is not int or not 0 <= size <= LARGEST_FILE:
        _refuse("a descriptor has no sha256 or no size")
    if not isinstance(notes, dict):
        _refuse("a descriptor's annotations are no object")
    return Blob(str(value.get("mediaType")), digest[1], size, str(notes.get(_TITLE)))


def _refuse(problem: str) -> NoReturn:
    raise ListMalformed(f"the image layout is malformed: {problem}")
