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
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import rfc8785
from msgspec import Meta, Struct
from msgspec.json import decode

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import (
    changed,
    damaged,
    malformed,
    no_package,
    over_limit,
    unlisted,
    unreadable,
)
from tilusbuild.package.formats import PackageFormat
from tilusbuild.package.formats.archive import open_frames, read_entries, write_layer
from tilusbuild.package.formats.directory import (
    make_directory_readable,
    open_plain,
    read_plain,
    sync_public_file,
    sync_tree,
    write_file,
)
from tilusbuild.package.listing import MAX_FILE_SIZE, MAX_LIST_SIZE, split_layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, ContainerFile
from tilusbuild.state.files import make_hasher, sha256_bytes, sha256_file

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
# An index and manifests are parsed before anything is known to be named by its digest.
_MAX_JSON_SIZE = 16 << 20
_MAX_MANIFESTS = 100
_MAX_LAYERS = 100_000

Descriptor = dict[str, Any]


# Writing.


def write_oci(contents: Contents, path: str, *, time: int) -> None:
    """Write the layout as a new directory. `time` is the modification time of every tar entry, in
    seconds since 1970. Raises `PackageError` and `OSError`."""
    blobs = os.path.join(path, "blobs", "sha256")
    for directory in (path, os.path.dirname(blobs), blobs):
        os.mkdir(directory)
        make_directory_readable(directory)
    listing = contents.listed
    layers = []
    for owner, paths in split_layers(listing).items():
        # A blob's name is its digest, which is known only when all of it is written.
        unnamed = os.path.join(blobs, "new")
        with open(unnamed, "xb") as file:
            write_layer(contents, paths, file, time=time, end=True)
            sync_public_file(file)
        descriptor = _make_descriptor(_LAYER_TYPE, sha256_file(unnamed), os.stat(unnamed).st_size)
        os.rename(unnamed, _blob_path(path, descriptor["digest"]))
        layers.append({**descriptor, "annotations": {_TITLE: _name_layer_file(*owner)}})
    manifest = _put_manifest(
        path,
        {
            "artifactType": ARTIFACT,
            "config": _put_blob(path, contents.encoded, _LIST_TYPE),
            "layers": layers,
            "annotations": {_TITLE: listing.name, _VERSION: listing.version},
        },
    )
    # A tag cannot have `+`, which a version may.
    tag = listing.version.replace("+", "_")
    descriptors = [{**manifest, "artifactType": ARTIFACT, "annotations": {_REF: tag}}]
    # Attestations come after the package's manifest, because they name it by its digest.
    for name, data in sorted(contents.beside.items()):
        attestation_type, title = _ATTESTATION_TYPES[name], name.rpartition("/")[2]
        layer = _put_blob(path, data, attestation_type)
        referrer = {
            "artifactType": attestation_type,
            "config": _put_blob(path, _EMPTY, _EMPTY_TYPE),
            "layers": [{**layer, "annotations": {_TITLE: title}}],
            "subject": manifest,
        }
        # Such as `1.0.signature`.
        annotations = {_REF: f"{tag}.{title.partition('.')[0]}"}
        facts = {"artifactType": attestation_type, "annotations": annotations}
        descriptors.append({**_put_manifest(path, referrer), **facts})
    write_file(os.path.join(path, LAYOUT), b'{"imageLayoutVersion":"1.0.0"}')
    index: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": _INDEX_TYPE,
        "manifests": descriptors,
    }
    write_file(os.path.join(path, INDEX), rfc8785.dumps(index))
    sync_tree(path)


def _name_layer_file(script: str, target: str) -> str:
    """Return a file name for a layer, as "SCRIPT-TARGET.tar.zst", for tools that know nothing of
    packages. The layer ("", "") is the headers'."""
    return "-".join(filter(None, (script or "headers", target))) + ".tar.zst"


def _make_descriptor(kind: str, digest: str, size: int) -> Descriptor:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _put_blob(path: str, data: bytes, kind: str) -> Descriptor:
    """Write a blob into the layout at `path`, unless it exists. Return its descriptor."""
    descriptor = _make_descriptor(kind, sha256_bytes(data), len(data))
    blob = _blob_path(path, descriptor["digest"])
    # All attestations have the same empty config.
    if not os.path.exists(blob):
        write_file(blob, data)
    return descriptor


def _put_manifest(path: str, value: Mapping[str, Any]) -> Descriptor:
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, **value}
    return _put_blob(path, rfc8785.dumps(manifest), _MANIFEST_TYPE)


def _blob_path(path: str, digest: str) -> str:
    return os.path.join(path, "blobs", *digest.split(":"))


# Reading.


class BlobDescriptor(Struct, frozen=True, rename="camel"):
    """A descriptor of the OCI specification. `digest` begins with "sha256:"; `size` is in bytes."""

    media_type: str
    digest: Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_SIZE)]
    annotations: Mapping[str, str] = {}


class _OciManifest(Struct, frozen=True, rename="camel"):
    schema_version: Literal[2]
    config: BlobDescriptor
    layers: Annotated[tuple[BlobDescriptor, ...], Meta(max_length=_MAX_LAYERS)]
    artifact_type: str | None = None
    subject: BlobDescriptor | None = None


class _OciIndex(Struct, frozen=True, rename="camel"):
    schema_version: Literal[2]
    manifests: Annotated[tuple[BlobDescriptor, ...], Meta(max_length=_MAX_MANIFESTS)]


_Json = TypeVar("_Json", _OciManifest, _OciIndex)


class OciReader:
    """Reads the package in the layout at `path`. Raises `PackageError`s."""

    kind = "OCI image layout"

    def __init__(self, path: str) -> None:
        """Read the index and all manifests, and check that they name every blob."""
        self._path = path
        data = read_plain(os.path.join(path, INDEX), INDEX, _MAX_JSON_SIZE)
        # A manifest with two tags appears twice.
        manifests = {}
        for blob in _decode_json(INDEX, data, _OciIndex).manifests:
            encoded = self._read_blob(blob, _MAX_JSON_SIZE)
            manifests[blob.digest] = _decode_json(blob.digest, encoded, _OciManifest)
        packages = [digest for digest in manifests if manifests[digest].artifact_type == ARTIFACT]
        # If there were two packages, one could be verified and the other one installed.
        if len(packages) != 1:
            raise no_package(f"the image layout holds {len(packages) or 'no'} packages of kernels")
        (package_digest,) = packages
        self._package_manifest = manifests[package_digest]
        attestations = {
            digest: manifest
            for digest, manifest in manifests.items()
            if manifest.subject and manifest.subject.digest == package_digest
        }
        self._attestation_manifests = list(attestations.values())
        self._check_unlisted_blobs({package_digest, *attestations})
        self.packed: int | None = sum(blob.size for blob in self._package_manifest.layers)

    def list_bytes(self) -> bytes:
        return self._read_blob(self._package_manifest.config, MAX_LIST_SIZE)

    def attestations(self) -> dict[str, bytes]:
        """Return the attestations that exist, by their names in `names.BESIDE`."""
        data_by_name: dict[str, bytes] = {}
        for manifest in self._attestation_manifests:
            # The list does not name configs, so that one with a content could hold anything.
            if self._read_blob(manifest.config, len(_EMPTY)) != _EMPTY:
                raise unlisted("an artifact beside the package has a config")
            for blob in manifest.layers:
                title = blob.annotations.get(_TITLE, "")
                name = f"{names.ATTESTATIONS}/{title}"
                if name not in names.BESIDE or name in data_by_name:
                    raise unlisted(f"an artifact beside the package is {title!r:.100}")
                data_by_name[name] = self._read_blob(blob, MAX_ATTESTATION_SIZE)
        return data_by_name

    def stream(self) -> Iterator[ContainerFile]:
        for blob in self._package_manifest.layers:
            yield from self._stream_layer(blob)

    def close(self) -> None:
        return None

    def _stream_layer(self, blob: BlobDescriptor) -> Iterator[ContainerFile]:
        """Check the digest of a layer, then yield its files. Raises `PackageError`."""
        if blob.media_type != _LAYER_TYPE:
            raise malformed(f"a layer of type {blob.media_type!r:.100}")
        handle = open_plain(_blob_path(self._path, blob.digest), blob.digest)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_size != blob.size:
                raise damaged(f"blob {blob.digest} is not {blob.size} bytes long")
            hasher = make_hasher()
            while piece := file.read(1 << 20):
                hasher.update(piece)
            _check_digest(blob, hasher.hexdigest())
            # A layer is read a second time, because nothing of it may be unpacked before its digest
            # is known to be right.
            file.seek(0)
            yield from read_entries(open_frames(file))

    def _check_unlisted_blobs(self, manifests: set[str]) -> None:
        """Raise `PackageError` for a file or a blob that neither the index nor a manifest names."""
        named_digests = manifests | {
            blob.digest
            for manifest in (self._package_manifest, *self._attestation_manifests)
            for blob in (manifest.config, *manifest.layers)
        }
        named_files_by_directory = {
            "": {"blobs", INDEX, LAYOUT},
            "blobs": {"sha256"},
            "blobs/sha256": {digest.removeprefix("sha256:") for digest in named_digests},
        }
        for directory, named_files in named_files_by_directory.items():
            try:
                present = set(os.listdir(os.path.join(self._path, directory)))
            except OSError as error:
                raise unreadable(f"{directory} cannot be read: {error.strerror}") from None
            if unnamed_files := present - named_files:
                name = os.path.join(directory, min(unnamed_files))
                raise unlisted(f"{name!r:.200} is not listed")

    def _read_blob(self, blob: BlobDescriptor, limit: int) -> bytes:
        """Return the bytes of a blob after a check of size and digest. A blob of more than `limit`
        bytes is not opened. Raises `PackageError`."""
        if blob.size > limit:
            raise over_limit(f"blob {blob.digest} has {blob.size} bytes; at most {limit} are read")
        data = read_plain(_blob_path(self._path, blob.digest), f"blob {blob.digest}", limit)
        _check_digest(blob, sha256_bytes(data))
        return data


def _check_digest(blob: BlobDescriptor, digest: str) -> None:
    if blob.digest != f"sha256:{digest}":
        raise changed(f"blob {blob.digest} does not match its digest")


def _decode_json(name: str, data: bytes, kind: type[_Json]) -> _Json:
    try:
        return decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{name} is not an OCI index or manifest: {error}") from None


FORMAT = PackageFormat(
    title="an OCI image layout",
    file_name=lambda stem, _: f"{stem}.oci",
    write=write_oci,
    recognize=lambda path, start: not start and os.path.lexists(os.path.join(path, LAYOUT)),
    read=OciReader,
)
