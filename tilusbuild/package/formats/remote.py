"""A package in a remote cache: named by the sha256 of its list, kept file by file.

Each of its files is a blob under its own sha256, and most are there already: they are those of the
programs that were built. Under the package's name are the list and the attestations. Whoever
serves them cannot change anything: the list is what the name says, and the list has the digest of
every file.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from functools import partial
from io import BytesIO

from tilusbuild.errors import InputError, input_error
from tilusbuild.manifest import Manifest, find, load
from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import (
    ChangedFileError,
    NoPackageError,
    NotFetchedError,
    OverLimitError,
)
from tilusbuild.package.listing import MAX_LIST_SIZE, parse
from tilusbuild.package.listing import layers as listed_layers
from tilusbuild.package.model import MAX_ATTESTATION_SIZE, ContainerFile
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.objects import Objects
from tilusbuild.remote.record import Blob
from tilusbuild.remote.settings import RemoteSettings, decide

_FORMAT = "1"
"""Of what is kept under a package's name. Another one is under another name."""
_TOGETHER = 32 << 20
"""Bytes of files that are fetched together."""


class RemoteReader:
    """The package of which the list has this sha256. The list and what is beside it is read at
    once, files with the layer that they are in. Raises `NotFetchedError`, `NoPackageError`,
    `OverLimitError` and `ChangedFileError`."""

    kind = "remote cache"
    packed: int | None = None

    def __init__(self, digest: str, settings: RemoteSettings) -> None:
        self._digest = digest
        try:
            self._objects = Objects(settings)
        except RemoteTroubleError as error:
            raise NotFetchedError(str(error)) from None
        try:
            self._heads = self._read_heads()
        except BaseException:
            self.close()
            raise

    def list_bytes(self) -> bytes:
        return self._heads[names.LIST]

    def attestations(self) -> Mapping[str, bytes]:
        return {name: data for name, data in self._heads.items() if name != names.LIST}

    def stream(self, layers: int, skip: Container[int]) -> Iterator[ContainerFile]:
        listing = parse(self.list_bytes())
        parts = enumerate(listed_layers(listing))
        wanted = (path for number, part in parts if number not in skip for path in part)
        waiting: dict[str, Blob] = {}
        size = 0
        for path in wanted:
            entry = listing.files[path]
            blob = Blob(entry.sha256, entry.size)
            if waiting and size + blob.size > _TOGETHER:
                yield from self._files(waiting)
                waiting, size = {}, 0
            waiting[path] = blob
            size += blob.size
        yield from self._files(waiting)

    def close(self) -> None:
        self._objects.close()

    def _files(self, wanted: Mapping[str, Blob]) -> Iterator[ContainerFile]:
        """Yield those that there are; whoever asked knows which are missing."""
        for path, data in self._read(wanted).items():
            yield ContainerFile(path, len(data), BytesIO(data).read)

    def _read_heads(self) -> dict[str, bytes]:
        try:
            (found,) = self._objects.find([("package", _FORMAT, self._digest)])
        except RemoteTroubleError as error:
            raise NotFetchedError(str(error)) from None
        if found is None or names.LIST not in found:
            raise NoPackageError(
                f"{self._objects.address} has no such package",
                hint="`tilusbuild package --push` sends one there, and prints its name",
            )
        if found[names.LIST].digest != self._digest:
            raise ChangedFileError(f"{names.LIST} is that of another package")
        wanted = {name: blob for name, blob in found.items() if name in (names.LIST, *names.BESIDE)}
        for name, blob in wanted.items():
            if blob.size > (MAX_LIST_SIZE if name == names.LIST else MAX_ATTESTATION_SIZE):
                raise OverLimitError(f"{name} has {blob.size} bytes")
        heads = self._read(wanted)
        if names.LIST not in heads:
            raise NotFetchedError(
                f"{names.LIST} is gone from {self._objects.address}", hint=_SEND_AGAIN
            )
        return heads

    def _read(self, wanted: Mapping[str, Blob]) -> dict[str, bytes]:
        try:
            found = self._objects.read(set(wanted.values()))
        except RemoteTroubleError as error:
            raise NotFetchedError(str(error)) from None
        for path, blob in wanted.items():
            if blob in found.wrong and blob not in found.good:
                raise ChangedFileError(
                    f"{path}: {self._objects.address} has other bytes under its sha256,"
                    f" {blob.digest}",
                    hint=_SEND_AGAIN,
                )
        return {path: found.good[blob] for path, blob in wanted.items() if blob in found.good}


_SEND_AGAIN = "`tilusbuild package --push` sends it again"


def open_remote(digest: str) -> RemoteReader:
    """Return the package from the remote cache of the project around the working directory, of
    the environment, or of the user's settings. Raises as `RemoteReader`, and `InputError` without
    a remote cache."""
    return RemoteReader(digest, remote_of(_manifest_here()))


def remote_of(manifest: Manifest | None) -> RemoteSettings:
    """Return the remote cache that packages are kept in. Raises `InputError`."""
    settings = decide(None if manifest is None else manifest.remote, os.environ)
    if settings is None:
        raise input_error(
            "there is no remote cache",
            hint='set cache = "…" in [remote] of tilus.toml or of the settings at home,'
            " or TILUSBUILD_REMOTE_CACHE",
        )
    return settings


def _manifest_here() -> Manifest | None:
    try:
        path = find(os.getcwd())
    except (InputError, OSError):
        return None
    return load(path)


def send(contents: Contents, settings: RemoteSettings) -> int:
    """Send a package, its list and what is beside it last; return how many bytes were not there
    yet. Raises `NotFetchedError` and `CannotPackError`."""
    files = {
        Blob(entry.sha256, entry.size): partial(contents.read, path)
        for path, entry in contents.listed.files.items()
    }
    heads = {names.LIST: contents.encoded, **contents.beside}
    try:
        with Objects(settings) as objects:
            objects.keep(("package", _FORMAT, contents.digest), heads, files)
            return objects.sent_bytes
    except RemoteTroubleError as error:
        raise NotFetchedError(str(error), hint="nothing of it can be used yet") from None
