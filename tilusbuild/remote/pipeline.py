"""Many requests on one connection, sent before the first answer is read: a tenth of the time that
`http.client` takes, and one round trip for all.

It knows the answers that a cache of files gives: a status, headers, and as many bytes as they say.
A response of another form ends the pipeline; the caller requests the rest one by one. So nothing
here decides what an odd answer means.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import NamedTuple, cast

_MAX_LINE = 8 << 10
_MAX_HEADERS = 100
_CHUNK = 1 << 18
_ANSWERS = (200, 404, 410)
_MAX_REFUSAL = 4 << 10
"""Bytes that are read of what comes with a status other than 200."""


class Request(NamedTuple):
    """What is asked for, and the bytes that are read of it at most."""

    target: str
    most: int


class UnsuitedError(Exception):
    """An answer is not of the form that is known here. The connection is of no use any more."""


def answers(
    line: socket.socket, method: str, headers: str, requests: Sequence[Request], seconds: float
) -> Iterator[tuple[int, bytes]]:
    """Send all of these and yield their answers: the status and the content. `headers` are lines;
    each answer may take so many seconds. Raises `UnsuitedError` and `OSError`."""
    if any(ord(each) > 126 or (each < " " and each not in "\r\n") for each in headers):
        raise UnsuitedError
    asked = (f"{method} {each.target} HTTP/1.1\r\n{headers}\r\n" for each in requests)
    line.sendall("".join(asked).encode("ascii"))
    with cast("BufferedReader", line.makefile("rb", buffering=_CHUNK)) as file:
        for request in requests:
            until = time.monotonic() + seconds
            status, length, closes = _head(file)
            if status not in _ANSWERS:
                raise UnsuitedError
            size = 0 if method == "HEAD" else length
            if size > (request.most if status == 200 else _MAX_REFUSAL):
                raise UnsuitedError
            yield status, _read(file, size, until)
            if closes:
                raise UnsuitedError


def _head(file: BufferedReader) -> tuple[int, int, bool]:
    """Return the status, how many bytes follow, and whether the connection ends after them."""
    first = file.readline(_MAX_LINE)
    if not first.startswith(b"HTTP/1.1 ") or not first[9:12].isdigit():
        raise UnsuitedError
    length, closes = -1, False
    for _ in range(_MAX_HEADERS):
        row = file.readline(_MAX_LINE)
        if row == b"\r\n":
            break
        name, colon, value = row.partition(b":")
        if not colon or not row.endswith(b"\r\n"):
            raise UnsuitedError
        name, value = name.lower(), value.strip()
        if name == b"content-length":
            if length >= 0 or not value.isdigit() or len(value) > 12:
                raise UnsuitedError
            length = int(value)
        elif name == b"connection":
            closes = value.lower() != b"keep-alive"
        elif name in (b"transfer-encoding", b"content-encoding"):
            raise UnsuitedError
    else:
        raise UnsuitedError
    if length < 0:
        raise UnsuitedError
    return int(first[9:12]), length, closes


def _read(file: BufferedReader, size: int, until: float) -> bytes:
    pieces: list[bytes] = []
    while size:
        piece = file.read1(min(size, _CHUNK))
        if not piece:
            raise UnsuitedError
        pieces.append(piece)
        size -= len(piece)
        # Each read may take its time and bring a byte.
        if size and time.monotonic() > until:
            raise TimeoutError
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
