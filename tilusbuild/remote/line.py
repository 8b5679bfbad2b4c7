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
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from tilusbuild.process.base import start_thread

_RATE = 1 << 20
"""Bytes a second that make a request longer by as much."""
_BESIDES = 256 << 10
"""Bytes that may come besides the content: headers, the frames of chunks, a refusal."""
_PIECE = 64 << 10
_LOOK = 0.1
"""Seconds after which a call that waits looks whether the back end was closed."""
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # What is not used is not forgotten on the way, or known to be; seconds.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
)

_thread = threading.local()


class Request:
    """What one request may still take, of the thread that is in its `with`."""

    def __init__(
        self, seconds: float, connecting: float, most: int, closed: threading.Event
    ) -> None:
        """`connecting`: seconds of these for a connection and its handshake; `most`: bytes."""
        self._until = time.monotonic() + seconds
        self.connecting = connecting
        self._bytes = most + _BESIDES
        self._closed = closed

    def __enter__(self) -> None:
        _thread.request = self

    def __exit__(self, *raised: object) -> None:
        del _thread.request

    def left(self) -> float:
        """Return the seconds that are left. Raises `TimeoutError`, `ConnectionError`."""
        if self._closed.is_set():
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


class Line(socket.socket):
    """A connection, as the library calls it."""

    def recv_into(self, *arguments: Any) -> int:
        size = self._in_time(partial(super().recv_into, *arguments))
        _thread.request.moved(size, came=True)
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data).cast("B")
        while left:
            size = self._in_time(partial(super().send, left[:_PIECE], flags))
            _thread.request.moved(size, came=False)
            left = left[size:]

    def _in_time(self, call: Callable[[], int]) -> int:
        while True:
            self.settimeout(min(_thread.request.left(), _LOOK))
            with suppress(TimeoutError):  # then nothing was moved
                return call()


class SecureLine(Line, ssl.SSLSocket):
    """The `sslsocket_class` of a context. Its handshake has the time that the socket has then."""


def connect(host: str, port: int) -> Line:
    """Return a connection, on which a handshake has what is left of the time to connect. Raises
    `OSError`."""
    request: Request = _thread.request
    seconds = min(request.connecting, request.left())
    until = time.monotonic() + seconds
    error: OSError = TimeoutError()
    for family, kind, protocol, _, place in _addresses(host, port, seconds):
        line = Line(family, kind, protocol)
        try:
            line.settimeout(max(until - time.monotonic(), 1e-3))
            line.connect(place)
            for level, option, value in _OPTIONS:
                line.setsockopt(level, option, value)
            line.settimeout(max(until - time.monotonic(), 1e-3))
            return line
        except OSError as trouble:
            line.close()
            error = trouble
    raise error


def _addresses(host: str, port: int, seconds: float) -> list[Any]:
    """Return what a name stands for. Raises `OSError`, `ValueError`."""
    found: Future[list[Any]] = Future()

    def look() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            found.set_exception(error)

    start_thread(look)
    if not wait([found], seconds).done:
        raise TimeoutError
    return found.result()
