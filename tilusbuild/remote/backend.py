"""What a remote cache can do, whatever it speaks, and the errors in which that fails.

A back end is called from several threads, waits for its answers, and believes nothing: who calls it
compares content with its digest. It neither retries nor warns; `guard.Guard` does, for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from tilusbuild.remote.record import Blob

UNTRUSTED = "its certificate is of a CA that is not trusted here: name that as tls-ca"
UNKNOWN_CLIENT = "it may want a client's certificate: tls-certificate and tls-key"


class RemoteTroubleError(Exception):
    """The remote, or the way to it, failed; says nothing about any program. The text is for
    people and holds nothing secret."""

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry = retry
        """Whether the same request may well succeed in a moment."""


class Backend(Protocol):
    """A remote cache. Everything raises `RemoteTroubleError`."""

    batch: int
    """How many programs a thread asks for at once."""
    width: int
    """How many threads ask at once."""

    def check(self, *, write: bool) -> str:
        """Ask what it can do, and return that in words, for people."""
        ...

    def results(self, keys: Sequence[Blob], inline: Collection[str] = ()) -> list[bytes | None]:
        """Return the records under keys; None where there is none. Of the files in `inline` a
        server may put the content into a record, which is then checked as any other."""
        ...

    def blobs(self, wanted: Collection[Blob]) -> Mapping[Blob, bytes]:
        """Return the content of blobs, unchecked but for their sizes; those that are not there are
        left out."""
        ...

    def missing(self, blobs: Collection[Blob]) -> Collection[Blob]:
        """Return those that are not there, as far as is known without sending them."""
        ...

    def send(self, blobs: Mapping[Blob, bytes]) -> None:
        """Have it keep these."""
        ...

    def send_result(self, key: Blob, record: bytes) -> None:
        """Have it keep a record, whose blobs are all there."""
        ...

    def leave(self) -> None:
        """The calling thread asks for nothing more."""
        ...

    def close(self) -> None:
        """Drop the connections. What still waits fails."""
        ...
