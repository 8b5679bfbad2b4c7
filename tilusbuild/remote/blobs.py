"""Blobs of a remote cache, each compared with the digest and the size that name it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from tilusbuild.remote.backend import Backend
from tilusbuild.remote.guard import Guard
from tilusbuild.remote.record import Blob
from tilusbuild.state.files import sha256_bytes


@dataclass(slots=True)
class Contents:
    """Blobs that were fetched. `wrong` came, and are others than was said."""

    good: dict[Blob, bytes] = field(default_factory=dict)
    wrong: set[Blob] = field(default_factory=set)


class BlobReader:
    """May be used from several threads."""

    def __init__(self, backend: Backend, guard: Guard) -> None:
        self._backend = backend
        self._guard = guard
        self.fetched_bytes = 0

    def read(self, wanted: Collection[Blob], into: Contents) -> None:
        """Fetch what is not there yet; once more what is wrong, which may be the line's fault.
        Raises `BrokenError`."""
        for _ in range(2):
            left = [blob for blob in wanted if blob not in into.good]
            if not left:
                return
            answers = self._guard.call(partial(self._backend.blobs, left))
            for blob, data in answers.items():
                self.fetched_bytes += len(data)
                if len(data) == blob.size and sha256_bytes(data) == blob.digest:
                    into.good[blob] = data
                else:
                    into.wrong.add(blob)
            if not into.wrong.intersection(left):
                return
            wanted = into.wrong - into.good.keys()
