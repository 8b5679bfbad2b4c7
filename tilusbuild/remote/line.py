"""Connections of which nothing outlasts its request: each call of the socket has what is left of
the request's time, and of the bytes that may come.

A library's time-outs are those of one read: whoever sends a byte now and then is never late, and
what is skipped on the way to the content (interim answers, headers, trailers) has no end. Here the
socket itself says no, so that it does not matter what the library is doing. A request has
`seconds`, and one more for each MiB that was moved: a large file on a slow line is not late, and
who drips earns nothing. Threads that look names up are left behind where they take too long: that
call cannot be ended.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from tilusbuild.process.base import start_thread

_RATE = 1 << 20
"""Bytes a second that make a request longer by as much."""
_BESIDES = 256 << 10
"""Bytes that may come besides the content: headers, the frames of chunks, a refusal."""
_PIECE = 64 << 10


class Request:
    """What one request may still take; of one thread."""

    def __init__(self, seconds: float, most: int, ended: threading.Event) -> None:
        self._until = time.monotonic() + seconds
        self._bytes = most + _BESIDES
        self._ended = ended

    @property
    def late(self) -> bool:
        return time.monotonic() >= self._until

    def left(self) -> float:
        """Return the seconds that are left. Raises `TimeoutError`, `ConnectionError`."""
        if self._ended.is_set():
            raise ConnectionAbortedError("closed")
        if (seconds := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        return seconds

    def moved(self, size: int, *, came: bool) -> None:
        """Count bytes. Raises `ConnectionError`."""
        self._until += size / _RATE
        self._bytes -= size if came else 0
        if self._bytes < 0:
            raise ConnectionAbortedError("more comes than was asked for")


class Lines:
    """The connections of one server. May be used from several threads."""

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._ended = threading.Event()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    @contextmanager
    def request(self, seconds: float, most: int) -> Iterator[Request]:
        """What this thread does with a connection in here is of this request."""
        _thread.request = request = Request(seconds, most, self._ended)
        try:
            yield request
        finally:
            del _thread.request

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a connection, on which a handshake has what is left of the time to connect. Raises
        `OSError`."""
        seconds = min(self._connect_timeout, _thread.request.left())
        until = time.monotonic() + seconds
        error: OSError = TimeoutError()
        for family, kind, protocol, _, place in _addresses(host, port, seconds):
            line = _Line(family, kind, protocol)
            try:
                line.settimeout(max(until - time.monotonic(), 1e-3))
                line.connect(place)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.settimeout(max(until - time.monotonic(), 1e-3))
            except OSError as trouble:
                line.close()
                error = trouble
                continue
            self.watch(line)
            return line
        raise error

    def watch(self, line: socket.socket) -> None:
        """End this one, too, when all are ended."""
        self._sockets.add(line)

    def close(self) -> None:
        """End all: what waits fails at once."""
        self._ended.set()
        for line in list(self._sockets):
            # Not `close`: that would wait for the thread that reads from it. Not the method of an
            # SSLSocket, which makes it a plain one.
            with suppress(OSError):
                socket.socket.shutdown(line, socket.SHUT_RDWR)


class _Bounded(socket.socket):
    """What the library calls; each with the time of this thread's request."""

    def recv_into(self, *arguments: Any) -> int:
        request: Request = _thread.request
        self.settimeout(request.left())
        size = super().recv_into(*arguments)
        request.moved(size, came=True)
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        request: Request = _thread.request
        whole = memoryview(data).cast("B")
        for at in range(0, len(whole), _PIECE):
            self.settimeout(request.left())
            super().sendall(whole[at : at + _PIECE], flags)
            request.moved(len(whole[at : at + _PIECE]), came=False)


class _Line(_Bounded):
    pass


class SecureLine(_Bounded, ssl.SSLSocket):
    """The `sslsocket_class` of a context. Its handshake has the time that the socket has then."""

    def send(self, data: Any, flags: int = 0) -> int:
        self.settimeout(_thread.request.left())
        return super().send(data, flags)


_thread = threading.local()


def _addresses(host: str, port: int, seconds: float) -> list[Any]:
    """Return what a name stands for. Raises `OSError`."""
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)

    thread = start_thread(look)
    thread.join(seconds)
    if not found:
        raise TimeoutError
    if isinstance(found[0], OSError):
        raise found[0]
    addresses: list[Any] = found[0]
    return addresses
