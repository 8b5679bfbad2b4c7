"""A package as an OCI image layout: a folder that registries, `skopeo` and `oras` take as it is.

The manifest's config is the list itself, so the config's digest is the package's, and everything
about a package is known before a layer is fetched. Each layer is a tar by itself in one zstd frame;
a layer that did not change has the digest it had, and is not sent again. Attestations are manifests
of their own that name the package as their `subject`, as the image specification 1.1 has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.formats.plain import make_folder, settle, write_file
from tilusbuild.package.formats.write_archive import write_layer
from tilusbuild.package.layers import Layer, named_layers
from tilusbuild.state.hashing import hasher, sha256_bytes

PACKAGE = "application/vnd.tilusbuild.package.v1"
"""The type of the artifact."""
LIST = "application/vnd.tilusbuild.package.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
ABOUT = {
    names.SIGNATURE: "application/vnd.tilusbuild.signature.v1+json",
    names.PROVENANCE: "application/vnd.tilusbuild.provenance.v1+json",
    names.SBOM: "application/vnd.cyclonedx+json",
}
"""The types of what refers to a package."""
_REF = "org.opencontainers.image.ref.name"
_TITLE = "org.opencontainers.image.title"
_VERSION = "org.opencontainers.image.version"

Descriptor = dict[str, Any]


def write_oci(contents: Contents, path: str, *, time: int) -> None:
    """Make the folder. `time`: every entry's, in seconds since 1970. Raises `CannotPack`,
    `OSError`."""
    blobs = _Blobs(path)
    listed = contents.listed
    layers = []
    for layer in named_layers(listed):
        with blobs.new() as blob:
            write_layer(contents, layer, blob, time=time, end=True)
        layers.append({**blob.described(LAYER), "annotations": {_TITLE: _file(layer)}})
    annotations = {_TITLE: listed.name, _VERSION: listed.version}
    manifest = blobs.put_manifest(
        {
            "artifactType": PACKAGE,
            "config": blobs.put(contents.encoded, LIST),
            "layers": layers,
            "annotations": annotations,
        }
    )
    tag = listed.version.replace("+", "_")  # a tag has no `+`
    top = [{**manifest, "artifactType": PACKAGE, "annotations": {_REF: tag}}]
    for name, data in sorted(contents.beside.items()):
        title = name.rpartition("/")[2]
        made = _referrer(blobs, manifest, ABOUT[name], title, data)
        top.append({**made, "annotations": {_REF: f"{tag}.{title.partition('.')[0]}"}})
    write_file(os.path.join(path, "oci-layout"), b'{"imageLayoutVersion":"1.0.0"}')
    write_file(os.path.join(path, "index.json"), _index(top))
    settle(path)


def _file(layer: Layer) -> str:
    """What a tool that knows nothing of packages would call a layer's file."""
    return "-".join(filter(None, (layer.script or "headers", layer.target))) + ".tar.zst"


def _referrer(blobs: _Blobs, subject: Descriptor, kind: str, title: str, data: bytes) -> Descriptor:
    made = blobs.put_manifest(
        {
            "artifactType": kind,
            "config": blobs.put(b"{}", EMPTY),
            "layers": [{**blobs.put(data, kind), "annotations": {_TITLE: title}}],
            "subject": subject,
        }
    )
    return {**made, "artifactType": kind}


def _index(manifests: Sequence[Mapping[str, Any]]) -> bytes:
    return rfc8785.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests)})


class _Blobs:
    """The blobs of a layout that is being made."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.join(path, "blobs", "sha256")
        for folder in (path, os.path.dirname(self._folder), self._folder):
            make_folder(folder)

    def put(self, data: bytes, kind: str) -> Descriptor:
        digest = sha256_bytes(data)
        path = os.path.join(self._folder, digest)
        if not os.path.exists(path):
            write_file(path, data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def put_manifest(self, value: Mapping[str, Any]) -> Descriptor:
        return self.put(
            rfc8785.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **value}), MANIFEST
        )

    def new(self) -> _Blob:
        return _Blob(self._folder)


class _Blob:
    """A blob that is written piece by piece, and named by its digest when it is done."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._made = os.path.join(folder, "new")
        self._hasher = hasher()
        self._size = 0

    def __enter__(self) -> _Blob:
        self._file = open(self._made, "xb")
        return self

    def write(self, data: bytes, /) -> int:
        self._hasher.update(data)
        self._size += len(data)
        return self._file.write(data)

    def __exit__(self, kind: object, *trouble: object) -> None:
        with self._file:
            os.fchmod(self._file.fileno(), 0o644)
        if kind is None:
            os.rename(self._made, os.path.join(self._folder, self._hasher.hexdigest()))

    def described(self, kind: str) -> Descriptor:
        return {
            "mediaType": kind,
            "digest": f"sha256:{self._hasher.hexdigest()}",
            "size": self._size,
        }
