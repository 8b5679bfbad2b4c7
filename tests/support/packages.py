"""Packages of a cache made by hand, in every format.

The packers here know nothing of tilusbuild's own: they write what they are told, and so can write
what nobody should. `Hand` is a package to change before it is written; `member`, `tar`, `frame`,
`archive`, `oci` and `frames` are the packers by themselves, for what a `Hand` would not write.
"""

from __future__ import annotations

import hashlib
import json
import resource
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from support.processes import run_python
from tilusbuild.cache.tree import Tree
from tilusbuild.manifest.sections import PackageSection
from tilusbuild.package.check import verify_package
from tilusbuild.package.collect import PackageOrder, collect_contents
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits
from tilusbuild.package.install import install_package
from tilusbuild.package.listing import FileEntry, FileList, split_layers
from tilusbuild.package.read import open_package

LIMITS = Limits()


@dataclass
class Hand:
    """A package in the hand: change what it holds, or what the list says, and write it."""

    listing: FileList
    files: dict[str, bytes]
    beside: dict[str, bytes] = field(default_factory=dict)
    list_bytes: bytes | None = None
    """What is written as the list when it is not `listing`."""

    def copy(self) -> Hand:
        return Hand(self.listing, dict(self.files), dict(self.beside), self.list_bytes)

    def listed(self) -> bytes:
        return self.list_bytes if self.list_bytes is not None else self.listing.encode()

    def relist(self, **fields: Any) -> Hand:
        """Let the list say what the files are, and whatever else."""
        entries = {
            path: FileEntry(len(data), hashlib.sha256(data).hexdigest())
            for path, data in self.files.items()
        }
        self.listing = msgspec.structs.replace(self.listing, **{"files": entries, **fields})
        return self

    def only(self, script: str) -> Hand:
        """With one script and its programs."""
        scripts = tuple(s for s in self.listing.scripts if s.script == script)
        programs = {h: p for h, p in self.listing.programs.items() if p.script == script}
        kept = {"include", *programs, *(s.hash for s in scripts)}
        self.files = {p: d for p, d in self.files.items() if kept.intersection(p.split("/"))}
        return self.relist(scripts=scripts, programs=programs)

    def path(self, end: str) -> str:
        """The first of the files whose name ends so."""
        return next(path for path in sorted(self.files) if path.endswith(end))

    def layers(self) -> list[list[tuple[str, bytes]]]:
        """The files in the layers that the list makes; those it does not know in the last one."""
        file_layers = [
            [(p, self.files[p]) for p in part if p in self.files]
            for part in split_layers(self.listing).values()
        ]
        known = {path for part in file_layers for path, _ in part}
        file_layers[-1] += [(path, data) for path, data in self.files.items() if path not in known]
        return file_layers

    def first(self) -> list[tuple[str, bytes]]:
        return [("tilus-package.json", self.listed()), *self.beside.items()]

    def directory(self, path: Path) -> Path:
        for name, data in [*self.files.items(), *self.first()]:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path

    def archive(self, path: Path, level: int = 3) -> Path:
        parts = [tar(self.first()), *map(tar, self.layers()), bytes(1024)]
        path.write_bytes(b"".join(frame(part, level) for part in parts))
        return path

    def oci(self, path: Path, empty: bytes = b"{}") -> Path:
        blobs = [frame(tar(part) + bytes(1024)) for part in self.layers()]
        return layout(path, self.listed(), blobs, self.beside, empty)

    def write(self, kind: str, directory: Path) -> Path:
        """In one of the carriers, below a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        end = ".tar.zst" if kind == "archive" else ""
        package: Path = getattr(self, kind)(directory / f"package{end}")
        return package


FORMATS = ("directory", "archive", "oci")


def member(name: str, data: bytes = b"", **fields: Any) -> bytes:
    """One entry of a tar archive, padded."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if name.endswith((".so", ".sh")) else 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)


def tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Entries without an end."""
    return b"".join(member(name, data) for name, data in files)


def frame(data: bytes, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(data)


def layout(
    path: Path,
    config: bytes,
    blobs: Sequence[bytes],
    beside: Mapping[str, bytes],
    empty: bytes = b"{}",
) -> Path:
    """An OCI image layout with one package; `empty` is the config of each attestation."""
    (path / "blobs" / "sha256").mkdir(parents=True)

    def put(data: bytes, media: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (path / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}

    def manifest(artifact: str, config: bytes, layers: list[Any], **more: Any) -> dict[str, Any]:
        value = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": artifact,
            "config": put(config, "application/json"),
            "layers": layers,
            **more,
        }
        return put(json.dumps(value).encode(), value["mediaType"], artifactType=artifact)

    listed = [put(blob, "application/vnd.oci.image.layer.v1.tar+zstd") for blob in blobs]
    main = manifest("application/vnd.tilusbuild.package.v1", config, listed)
    manifests = [main]
    for name, data in beside.items():
        notes = {"org.opencontainers.image.title": name.rpartition("/")[2]}
        blob = put(data, "application/json", annotations=notes)
        manifests.append(manifest("application/json", empty, [blob], subject=main))
    index = {"schemaVersion": 2, "manifests": manifests}
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path


def by_hand(cache: Path, *, sources: bool = False, version: str = "0.1.0") -> Hand:
    """The package of everything in a cache."""
    section = PackageSection(include=("sources",) if sources else ())
    scripts = [(path.parent.name, path.name) for path in (cache / "scripts").glob("*/*")]
    order = PackageOrder("marks", section, "marks", version)
    contents = collect_contents(Tree(str(cache)), order, scripts, {})
    return Hand(
        contents.listed, {path: contents.read_listed(path) for path in contents.listed.files}
    )


def archive(path: Path, listed: bytes, layers: Sequence[bytes]) -> Path:
    """An archive of layers that are made already."""
    parts = [tar([("tilus-package.json", listed)]), *layers, bytes(1024)]
    path.write_bytes(b"".join(frame(part) for part in parts))
    return path


def oci(path: Path, listed: bytes, layers: Sequence[bytes]) -> Path:
    """An image layout of layers that are made already."""
    return layout(path, listed, [frame(layer + bytes(1024)) for layer in layers], {})


def frames(path: Path, first: bytes, layer: bytes, end: bytes) -> Path:
    """An archive of one layer whose frame is made already."""
    path.write_bytes(frame(first) + layer + frame(end))
    return path


def problems(path: Path, limits: Limits = LIMITS) -> tuple[PackageError, ...]:
    """What is wrong with a package."""
    try:
        with open_package(str(path)) as reader:
            return tuple(verify_package(reader, limits)[1])
    except PackageError as error:
        return (error,)


def is_installed(path: Path, root: Path) -> bool:
    """Whether a package can be installed into a cache; it is."""
    try:
        with open_package(str(path)) as reader:
            install_package(reader, Tree(str(root)), LIMITS)
    except PackageError:
        return False
    return True


MB = 1 << 20
LOOK = """
import sys
from tilusbuild.cache.tree import Tree
from tilusbuild.package.extract import Limits
from tilusbuild.package.check import verify_package
from tilusbuild.package.errors import PackageError
from tilusbuild.package.install import install_package
from tilusbuild.package.read import open_package

def verified(reader):
    problems = verify_package(reader, Limits())[1]
    if problems:
        raise problems[0]

for look in verified, lambda reader: install_package(reader, Tree(sys.argv[2]), Limits()):
    try:
        with open_package(sys.argv[1]) as reader:
            look(reader)
    except PackageError as error:
        print(error.kind, error)
    else:
        print("accepted")
"""


def refusals(path: Path) -> list[str]:
    """What verify and install say, each by the name of the error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (700 * MB, 700 * MB))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * MB, 64 * MB))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    done = run_python(LOOK, path, path.parent / "cache", preexec_fn=limit)
    return [line.split()[0] for line in done.stdout.splitlines()]
