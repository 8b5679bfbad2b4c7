"""A package as an OCI image layout: a directory that registries, `skopeo` and `oras` take as it is.

The config blob of the package's manifest is the list itself, so the config's digest is the
package's, and everything about a package is known before a layer is fetched. Each layer is a tar by
itself in one zstd frame; a layer that did not change keeps its digest, and is not sent again.
Signature, provenance and SBOM are artifacts whose `subject` is that manifest (image specification
1.1). A blob that is read is compared with the size and the digest that name it, and a blob that
nothing names is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import rfc8785

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import (
    changed,
    malformed,
    no_package,
    over_limit,
    truncated,
    unlisted,
)
from tilusbuild.package.formats.archive import FileSection, Unpacked, entries, frames, write_layer
from tilusbuild.package.formats.directory import (
    make_directory,
    open_plain,
    read_plain,
    sync_all,
    write_file,
)
from tilusbuild.package.listing import MAX_FILE_SIZE, MAX_LIST_SIZE, Layer, named_layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, ContainerFile, decode
from tilusbuild.state.files import hasher, sha256_bytes

LAYOUT, INDEX = "oci-layout", "index.json"
ARTIFACT = "application/vnd.tilusbuild.package.v1"
"""The type of a package's manifest."""
_LIST_TYPE = f"{ARTIFACT}+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_EMPTY = b"{}"
"""The config of an artifact that has none."""
_ATTESTATION_TYPES = {
    names.SIGNATURE: "application/vnd.tilusbuild.signature.v1+json",
    names.PROVENANCE: "application/vnd.tilusbuild.provenance.v1+json",
    names.SBOM: "application/vnd.cyclonedx+json",
}
_REF = "org.opencontainers.image.ref.name"
_TITLE = "org.opencontainers.image.title"
_VERSION = "org.opencontainers.image.version"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
# An index and manifests are parsed before anything is known to be named by its digest.
_MAX_JSON_SIZE = 16 << 20
_MAX_MANIFESTS = 100
_MAX_LAYERS = 100_000

Descriptor = dict[str, Any]


# Writing.


def write_oci(contents: Contents, path: str, *, time: int) -> None:
    """Write the directory. `time`: every entry's, in seconds since 1970. Raises `PackageError`,
    `OSError`."""
    blobs = _BlobStore(path)
    listed = contents.listed
    layers = []
    for layer in named_layers(listed):
        with _BlobWriter(blobs.directory) as blob:
            write_layer(contents, layer, blob, time=time, end=True)
        descriptor = _descriptor(_LAYER_TYPE, blob.digest, blob.size)
        layers.append({**descriptor, "annotations": {_TITLE: _file_name(layer)}})
    manifest = blobs.put_manifest(
        {
            "artifactType": ARTIFACT,
            "config": blobs.put(contents.encoded, _LIST_TYPE),
            "layers": layers,
            "annotations": {_TITLE: listed.name, _VERSION: listed.version},
        }
    )
    tag = listed.version.replace("+", "_")  # a tag has no `+`
    top = [{**manifest, "artifactType": ARTIFACT, "annotations": {_REF: tag}}]
    for name, data in sorted(contents.beside.items()):
        title = name.rpartition("/")[2]
        referrer = _referrer(blobs, manifest, _ATTESTATION_TYPES[name], title, data)
        top.append({**referrer, "annotations": {_REF: f"{tag}.{title.partition('.')[0]}"}})
    write_file(os.path.join(path, LAYOUT), b'{"imageLayoutVersion":"1.0.0"}')
    index: dict[str, Any] = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": top}
    write_file(os.path.join(path, INDEX), rfc8785.dumps(index))
    sync_all(path)


def _file_name(layer: Layer) -> str:
    """Return what a tool that knows nothing of packages would call a layer's file."""
    return "-".join(filter(None, (layer.script or "headers", layer.target))) + ".tar.zst"


def _referrer(
    blobs: _BlobStore, subject: Descriptor, kind: str, title: str, data: bytes
) -> Descriptor:
    made = blobs.put_manifest(
        {
            "artifactType": kind,
            "config": blobs.put(_EMPTY, _EMPTY_TYPE),
            "layers": [{**blobs.put(data, kind), "annotations": {_TITLE: title}}],
            "subject": subject,
        }
    )
    return {**made, "artifactType": kind}


def _descriptor(kind: str, digest: str, size: int) -> Descriptor:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


class _BlobStore:
    """The blobs of a layout that is being written."""

    def __init__(self, path: str) -> None:
        self.directory = os.path.join(path, "blobs", "sha256")
        for directory in (path, os.path.dirname(self.directory), self.directory):
            make_directory(directory)

    def put(self, data: bytes, kind: str) -> Descriptor:
        digest = sha256_bytes(data)
        path = os.path.join(self.directory, digest)
        if not os.path.exists(path):  # the empty config is every attestation's
            write_file(path, data)
        return _descriptor(kind, digest, len(data))

    def put_manifest(self, value: Mapping[str, Any]) -> Descriptor:
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, **value}
        return self.put(rfc8785.dumps(manifest), _MANIFEST_TYPE)


class _BlobWriter:
    """A blob that is written piece by piece, and named by its digest when it is done."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._hasher = hasher()
        self.size = 0

    def __enter__(self) -> _BlobWriter:
        # The name is the digest, which is known at the end.
        self._file = open(os.path.join(self._directory, "new"), "xb")
        return self

    def write(self, data: bytes, /) -> int:
        self._hasher.update(data)
        self.size += len(data)
        return self._file.write(data)

    def __exit__(self, kind: object, *trouble: object) -> None:
        with self._file:
            os.fchmod(self._file.fileno(), 0o644)
        if kind is None:
            os.rename(self._file.name, os.path.join(self._directory, self.digest))

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()


# Reading.


class Blob(NamedTuple):
    """A descriptor: the type, sha256 and size of a blob, and the title in its annotations."""

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
        index = _decoded(INDEX, read_plain(self._at(INDEX), INDEX, _MAX_JSON_SIZE))
        # A manifest with two tags is there twice.
        blobs = {blob.digest: blob for blob in _blobs(index, "manifests", _MAX_MANIFESTS)}
        found = [self._manifest(blob) for blob in blobs.values()]
        packages = [manifest for manifest in found if manifest.artifact == ARTIFACT]
        # Of two packages one could be what is verified and the other what is installed.
        if len(packages) != 1:
            raise no_package(f"the image layout holds {len(packages) or 'no'} packages of kernels")
        self._package = packages[0]
        self._beside = [m for m in found if m.subject == self._package.digest]
        self._check_unlisted([self._package, *self._beside])
        self.packed: int | None = sum(blob.size for blob in self._package.layers)

    def list_bytes(self) -> bytes:
        return self._content(self._package.config, MAX_LIST_SIZE)

    def attestations(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for manifest in self._beside:
            if self._content(manifest.config, len(_EMPTY)) != _EMPTY:
                raise unlisted("an artifact beside the package has a config")
            for blob in manifest.layers:
                name = f"{names.ATTESTATIONS}/{blob.title}"
                if name not in names.BESIDE or name in found:
                    raise unlisted(f"an artifact beside the package is {blob.title!r:.100}")
                found[name] = self._content(blob, MAX_ATTESTATION_SIZE)
        return found

    def stream(self, layers: int, skip: Container[int]) -> Iterator[ContainerFile]:
        blobs = self._package.layers
        if len(blobs) != layers:
            raise truncated(f"it has {len(blobs)} layers, and its list makes {layers}")
        for number, blob in enumerate(blobs):
            if number not in skip:
                yield from self._layer(blob)

    def close(self) -> None:
        return None

    def _layer(self, blob: Blob) -> Iterator[ContainerFile]:
        if blob.media != _LAYER_TYPE:
            raise malformed(f"a layer of type {blob.media!r:.100}")
        handle = open_plain(self._blob_path(blob), blob.digest)
        try:
            if os.fstat(handle).st_size != blob.size:
                raise truncated(f"blob {blob.digest} has not the {blob.size} bytes that name it")
            if len(frames(handle, blob.size, 1)) != 1:
                raise truncated(f"blob {blob.digest} is empty")
            section = _HashedFile(handle, blob.size)
            yield from entries(Unpacked(section), ends=True)
            # Only now: a layer is too large to be hashed before it is decompressed, and each file
            # in it was compared with the list already.
            if section.digest() != blob.digest:
                raise changed(f"blob {blob.digest} is not what it is named by")
        finally:
            os.close(handle)

    def _manifest(self, blob: Blob) -> _Manifest:
        value = _decoded(blob.digest, self._content(blob, _MAX_JSON_SIZE))
        subject = value.get("subject")
        return _Manifest(
            blob.digest,
            str(value.get("artifactType")),
            _blob(value.get("config")),
            tuple(_blobs(value, "layers", _MAX_LAYERS)),
            None if subject is None else _blob(subject).digest,
        )

    def _check_unlisted(self, manifests: Sequence[_Manifest]) -> None:
        """Raise `PackageError` for a file or a blob that nothing names."""
        known = {m.digest for m in manifests}
        known |= {blob.digest for m in manifests for blob in (m.config, *m.layers)}
        for directory, wanted in (
            ("", {"blobs", INDEX, LAYOUT}),
            ("blobs", {"sha256"}),
            ("blobs/sha256", known),
        ):
            try:
                present = set(os.listdir(self._at(directory)))
            except OSError as error:
                raise truncated(f"{directory} cannot be read: {error.strerror}") from None
            if strangers := present - wanted:
                name = os.path.join(directory, min(strangers))
                raise unlisted(f"{name!r:.200} is not listed")

    def _content(self, blob: Blob, limit: int) -> bytes:
        """Return a blob's bytes, compared with what names it. A larger one is not opened."""
        if blob.size > limit:
            raise over_limit(f"blob {blob.digest} has {blob.size} bytes; at most {limit} are read")
        data = read_plain(self._blob_path(blob), f"blob {blob.digest}", limit)
        if len(data) != blob.size or sha256_bytes(data) != blob.digest:
            raise changed(f"blob {blob.digest} is not what it is named by")
        return data

    def _blob_path(self, blob: Blob) -> str:
        return self._at(f"blobs/sha256/{blob.digest}")

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)


class _HashedFile(FileSection):
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


def _decoded(name: str, data: bytes) -> dict[str, Any]:
    value = decode(data)
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise malformed(f"{name} is not an OCI index or manifest")
    return value


def _blobs(value: dict[str, Any], key: str, limit: int) -> list[Blob]:
    found = value.get(key)
    if not isinstance(found, list) or len(found) > limit:
        _refuse(f"{key} is not a list, or too long a one")
    return [_blob(each) for each in found]


def _blob(value: Any) -> Blob:
    if not isinstance(value, dict):
        _refuse("a descriptor is not an object")
    digest = _DIGEST.fullmatch(str(value.get("digest")))
    size, notes = value.get("size"), value.get("annotations") or {}
    if digest is None or type(size) is not int or not 0 <= size <= MAX_FILE_SIZE:
        _refuse("a descriptor has no sha256 or no size")
    if not isinstance(notes, dict):
        _refuse("a descriptor's annotations are not an object")
    return Blob(str(value.get("mediaType")), digest[1], size, str(notes.get(_TITLE)))


def _refuse(problem: str) -> NoReturn:
    raise malformed(f"the image layout is malformed: {problem}")
