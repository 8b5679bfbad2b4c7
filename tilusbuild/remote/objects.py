"""What a remote cache keeps besides programs: a few files under some words, which name them.

The files are blobs as any others, and the record is kept as a program's is, under the digest of an
Action that follows from the words alone. A record is a claim: every blob that is read is compared
with the digest and the size that name it, and what the bytes say is the caller's to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.blobs import BlobReader, Contents
from tilusbuild.remote.choose import open_backend
from tilusbuild.remote.guard import BrokenError, Guard
from tilusbuild.remote.record import Blob, RecordError, blob_for, blob_of, digest_of, key_of
from tilusbuild.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from typing_extensions import Self

Words: TypeAlias = tuple[str, ...]
Found = TypeVar("Found")

_MOST_FILES = 16
"""Of one record."""
_SENT_TOGETHER = 16 << 20
"""Bytes."""
_FEW = 16
"""Blobs that are not worth another connection."""


class Objects:
    """A remote cache. Use as a context manager. Everything raises `RemoteTroubleError`."""

    def __init__(self, settings: RemoteSettings) -> None:
        """Connects to nothing yet."""
        self.address = settings.address
        self._why = "it does not answer"
        self._backend = open_backend(settings)
        self._guard = Guard(self._broke)
        self._blobs = BlobReader(self._backend, self._guard)
        self.sent_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._backend.leave()
        self._backend.close()

    def find(self, named: Sequence[Words]) -> list[Mapping[str, Blob] | None]:
        """Return what is kept under each of these, by the files' names; None where nothing is, or
        nothing that can be read."""
        keys = [key_of(*words) for words in named]
        answers = self._call(partial(self._backend.results, keys))
        return [None if data is None else _files(data) for data in answers]

    def read(self, wanted: Collection[Blob]) -> Contents:
        """Return blobs, by several connections at once where there are many."""
        every = list(wanted)
        number = min(self._backend.width, 1 + len(every) // _FEW)

        def read(part: Collection[Blob]) -> Contents:
            own = Contents()
            try:
                self._blobs.read(part, own)
            finally:
                self._backend.leave()
            return own

        contents = Contents()
        with self._words_for_trouble(), ThreadPoolExecutor(number) as threads:
            for each in threads.map(read, [every[at::number] for at in range(number)]):
                contents.good.update(each.good)
                contents.wrong.update(each.wrong)
        return contents

    def keep(
        self, words: Words, files: Mapping[str, bytes], others: Mapping[Blob, Callable[[], bytes]]
    ) -> None:
        """Send files, and then the record that names them. `others` are blobs that they speak of,
        which are sent before, as far as they are not there."""
        named = {name: blob_for(data) for name, data in files.items()}
        own = {blob: files[name] for name, blob in named.items()}
        waiting: dict[Blob, bytes] = {}
        size = 0
        for blob in self._call(lambda: self._backend.missing({*others, *own})):
            waiting[blob] = own[blob] if blob in own else others[blob]()
            size += blob.size
            if size > _SENT_TOGETHER:
                self._send(waiting)
                size = 0
        self._send(waiting)
        result = reapi.ActionResult()
        for name, blob in sorted(named.items()):
            result.output_files.add(path=name, digest=digest_of(blob))
        record = result.SerializeToString(deterministic=True)
        self._call(lambda: self._backend.send_result(key_of(*words), record))

    def _send(self, waiting: dict[Blob, bytes]) -> None:
        if waiting:
            self._call(lambda: self._backend.send(waiting))
            self.sent_bytes += sum(map(len, waiting.values()))
            waiting.clear()

    def _call(self, request: Callable[[], Found]) -> Found:
        with self._words_for_trouble():
            return self._guard.call(request)

    @contextmanager
    def _words_for_trouble(self) -> Iterator[None]:
        try:
            yield
        except BrokenError:
            raise RemoteTroubleError(self._why, retry=False) from None

    def _broke(self, why: str) -> None:
        self._why = why


def _files(data: bytes) -> Mapping[str, Blob] | None:
    try:
        result = reapi.ActionResult.FromString(data)
        if result.exit_code or len(result.output_files) > _MOST_FILES:
            return None
        return {each.path: blob_of(each.digest) for each in result.output_files}
    except (DecodeError, RecordError):
        return None
