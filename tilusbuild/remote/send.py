"""Send programs that were compiled here: their blobs, and only then the record that names them.

What is sent is read from the published entry, which does not change any more, and each blob is
compared with its digest on the way. What is there already is not sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilusbuild.cache.entries import lookup
from tilusbuild.cache.tree import Tree
from tilusbuild.remote.backend import Backend
from tilusbuild.remote.guard import Guard
from tilusbuild.remote.record import Blob, Describer, Sources, encode, key
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes


class Sender:
    """Brings programs from a cache to a remote. For one thread."""

    def __init__(self, backend: Backend, guard: Guard, cache: Tree) -> None:
        self._backend = backend
        self._guard = guard
        self._cache = cache
        self._describer = Describer(cache.include_path)
        self._there: set[Blob] = set()
        self.sent_bytes = 0

    def send(self, program: str, seconds: float, *, again: bool = False) -> bool:
        """Send one program; return False when it is not there, or not whole. `again`: also what the
        remote says it has. Raises `BrokenError`."""
        entry = lookup(self._cache, program)
        if entry is None:
            return False
        try:
            record, sources = self._describer.describe(entry, seconds)
            blobs = self._wanted(sources, again=again)
            contents = _read(blobs, sources)
        except OSError:
            return False
        if contents is None:
            return False
        if contents:
            self._guard.call(lambda: self._backend.send(contents))
        data = encode(record).SerializeToString(deterministic=True)
        self._guard.call(lambda: self._backend.send_result(key(program), data))
        self._there.update(sources)
        self.sent_bytes += sum(map(len, contents.values())) + len(data)
        return True

    def _wanted(self, sources: Sources, *, again: bool) -> Collection[Blob]:
        if again:
            return sources.keys()
        unknown = sources.keys() - self._there
        return self._guard.call(lambda: self._backend.missing(unknown)) if unknown else ()


def _read(blobs: Collection[Blob], sources: Sources) -> Mapping[Blob, bytes] | None:
    """Return the content of blobs; None when one is not what it was. Raises `OSError`."""
    contents = {}
    for blob in blobs:
        source = sources[blob]
        data = source if isinstance(source, bytes) else read_bytes(source)
        if len(data) != blob.size or sha256_bytes(data) != blob.digest:
            return None
        contents[blob] = data
    return contents
