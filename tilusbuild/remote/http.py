"""A remote cache over HTTP, in the layout that Bazel made common: `/ac/<sha256>`.

nginx with WebDAV and gateways of buckets serve it. Such a server checks nothing: it takes any bytes
under any name. No redirect is followed, no proxy is used, and no more is read than the reader of
the content accepts. urllib3 keeps the connections and speaks the protocol, on sockets of our own
(`BudgetedSocket`), which end a request that is late as a whole.

A library's time-outs are those of one read: a server that sends a byte now and then is never late,
and interim answers, headers and trailers before the content have no end. Here the socket itself
raises, whatever the library is doing: each call has the rest of the request's time, and of the
bytes that may come besides the content. A request has
`seconds`, and one more for each MiB that was moved: a large file on a slow line is not late, and a
server that drips earns nothing. A thread that looks a name up, or tries its addresses, is left
behind where it takes too long: that call cannot be ended.

Price: one request for a program, one after the other on a connection (benchmarks/remote.py).
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, IncompleteRead

from tilusbuild._version import __version__
from tilusbuild.process.base import start_thread
from tilusbuild.remote.archive import MAX_BYTES, key_digest
from tilusbuild.remote.backend import (
    UNKNOWN_CLIENT,
    UNTRUSTED,
    Credentials,
    RemoteTroubleError,
    TakeFile,
    explain_credentials,
)
from tilusbuild.remote.settings import RemoteSettings

# Connections that are kept: of all threads that ask, and of those that send.
_CONNECTIONS = 16
# What a request may be answered with; HEAD with anything, of which 200 says that it is there.
_EXPECTED_STATUS = {"GET": (200, 404, 410), "PUT": (200, 201, 202, 204)}
_RETRIED_STATUS = (408, 425, 429, 500, 502, 503, 504)
# Bytes that are read of what comes with a status other than 200.
_MAX_REFUSAL = 4 << 10
_PIECE = 64 << 10
# OpenSSL's codes of an issuer that it does not know.
_UNKNOWN_ISSUER = (18, 19, 20, 21)
# Bytes a second that make a request longer by as much.
_RATE = 1 << 20
# Bytes that may come besides the content: headers, the frames of chunks, a refusal.
_MAX_OVERHEAD = 256 << 10
# Seconds after which a call that waits looks whether the back end was closed.
_POLL_SECONDS = 0.1
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Probes keep an idle connection alive on its way, and show when it is lost. In seconds.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
)

# Its attribute `request` is the `RequestBudget` of the request that this thread makes.
_thread = threading.local()


class HttpBackend:
    """The server of an `http://` or `https://` address."""

    batch = 8
    width = 8

    def __init__(self, settings: RemoteSettings) -> None:
        """Raises `RemoteTroubleError` for certificates that cannot be read."""
        self._settings = settings
        self._credentials = Credentials(settings)
        self._closed = threading.Event()
        parts = urlsplit(settings.address)
        self._prefix = parts.path.rstrip("/")
        server = parts.hostname or "", parts.port
        options: dict[str, Any] = {
            "maxsize": _CONNECTIONS,
            "timeout": Timeout(connect=settings.connect_timeout),
            "socket_options": _SOCKET_OPTIONS,
        }
        self._pool: HTTPConnectionPool
        if settings.scheme == "https":
            options["ssl_context"] = make_tls_context(settings)
            self._pool = HTTPSConnectionPool(*server, **options)
            self._pool.ConnectionCls = _SecureConnection
        else:
            self._pool = HTTPConnectionPool(*server, **options)
            self._pool.ConnectionCls = _Connection

    def check_access(self, *, write: bool) -> str:
        with self._send_request("GET", "tilusbuild doctor"):
            return "a server of /ac over HTTP"

    def fetch_files(self, keys: Sequence[str], take: TakeFile) -> None:
        for key in keys:
            with self._send_request("GET", key) as pieces:
                if pieces is not None:
                    take(key, pieces)

    def has_file(self, key: str) -> bool:
        with self._send_request("HEAD", key) as pieces:
            return pieces is not None

    def send_file(self, key: str, data: bytes) -> None:
        with self._send_request("PUT", key, data):
            pass

    def close(self) -> None:
        self._closed.set()
        self._pool.close()

    def _explain_refusal(self, method: str, status: int) -> RemoteTroubleError:
        """Return the error for an unexpected status, with advice on credentials where they may be
        the cause. `retry` is True for statuses that may pass."""
        message = f"{self._settings.address} answers {method} with status {status}"
        if status in (401, 403):
            message += f"; {explain_credentials(self._settings)}"
        is_secure = self._settings.scheme == "https"
        if status == 400 and is_secure and self._settings.tls_certificate is None:
            message += f"; {UNKNOWN_CLIENT}"
        return RemoteTroubleError(message, retry=status in _RETRIED_STATUS)

    @contextmanager
    def _send_request(
        self, method: str, key: str, body: bytes | None = None
    ) -> Iterator[Iterator[bytes] | None]:
        """Send a request for a key's file. Yield the content of an answer with status 200, in
        pieces, and None for another expected status: the key has no file, or the file was written.

        Raises `RemoteTroubleError`, also for a status that `_EXPECTED_STATUS` does not list; HEAD
        expects any.
        """
        headers = {"User-Agent": f"tilusbuild/{__version__}", **self._credentials.collect_headers()}
        with RequestBudget(self._settings.timeout, self._closed):
            with self._translate_errors():
                response = self._pool.urlopen(
                    method,
                    f"{self._prefix}/ac/{key_digest(key)}",
                    body,
                    headers,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            status = response.status
            limit = MAX_BYTES if status == 200 else _MAX_REFUSAL
            # One byte more than is accepted, so that the reader sees that the content is too long.
            pieces = self._read_pieces(response, limit + 1)
            try:
                expected = _EXPECTED_STATUS.get(method)
                if expected is not None and status not in expected:
                    raise self._explain_refusal(method, status)
                yield pieces if status == 200 else None
                # Called only to read the answer to its end: then the connection is used again.
                next(pieces, None)
            finally:
                response.close()

    def _read_pieces(self, response: BaseHTTPResponse, limit: int) -> Iterator[bytes]:
        """Yield the content of an answer in pieces, up to `limit` bytes, which do not count against
        the request's allowance. Raises `RemoteTroubleError`."""
        while limit > 0:
            with self._translate_errors():
                data = response.read(min(limit, _PIECE))
            if not data:
                return
            limit -= len(data)
            _thread.request.allow_bytes(len(data))
            yield data

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (HTTPError, OSError, ValueError) as error:
            raise self._explain_error(error) from None

    def _explain_error(self, error: Exception) -> RemoteTroubleError:
        """Return the error for an exception of a request, with the reason of its innermost cause.
        `retry` is False where the next attempt would fail alike."""
        cause: BaseException = error
        # urllib3 wraps the error of the socket, as the cause or an argument of its own error, and
        # does so several times.
        while True:
            wrapped = [e for e in (cause.__cause__, *cause.args) if isinstance(e, Exception)]
            if not wrapped:
                break
            cause = wrapped[0]
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if isinstance(cause, TimeoutError):
            why = "no answer in time"
        elif isinstance(cause, IncompleteRead):
            why = "the connection was cut"
        elif (
            isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _UNKNOWN_ISSUER
        ):
            why = UNTRUSTED
        # After these errors the next attempt would take as long, or end alike.
        is_final = isinstance(
            cause, TimeoutError | ConnectionAbortedError | socket.gaierror | ssl.SSLError
        )
        return RemoteTroubleError(f"{self._settings.address}: {why}", retry=not is_final)


class RequestBudget:
    """The time and the bytes that one request may still use. As a context manager it holds for the
    request of the current thread."""

    def __init__(self, seconds: float, closed: threading.Event) -> None:
        self._deadline = time.monotonic() + seconds
        self._allowance = _MAX_OVERHEAD
        self._closed = closed

    def __enter__(self) -> None:
        _thread.request = self

    def __exit__(self, *raised: object) -> None:
        del _thread.request

    def check_deadline(self) -> float:
        """Return the seconds that are left. Raises `TimeoutError` if none are, and
        `ConnectionAbortedError` once the back end is closed."""
        if self._closed.is_set():
            raise ConnectionAbortedError("closed")
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def allow_bytes(self, size: int) -> None:
        """Allow as many bytes more as were given to the reader of the content."""
        self._allowance += size

    def count_bytes(self, size: int, *, received: bool) -> None:
        """Extend the deadline by the time that `size` bytes take; if `received`, also subtract them
        from the allowance. Raises `ConnectionAbortedError` if the allowance is exceeded."""
        self._deadline += size / _RATE
        if received:
            self._allowance -= size
        if self._allowance < 0:
            raise ConnectionAbortedError("more comes than was asked for")


class BudgetedSocket(socket.socket):
    """A connection, as the library calls it."""

    def recv_into(self, *arguments: Any) -> int:
        size = self._call_in_time(partial(super().recv_into, *arguments))
        _thread.request.count_bytes(size, received=True)
        return size

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all data, as the base class does, in the time of the request. Raises `TimeoutError`,
        `ConnectionAbortedError`."""
        remaining = memoryview(data).cast("B")
        while remaining:
            size = self._call_in_time(partial(super().send, remaining[:_PIECE], flags))
            _thread.request.count_bytes(size, received=False)
            remaining = remaining[size:]

    def _call_in_time(self, call: Callable[[], int]) -> int:
        """Repeat a call that moves bytes until it moves some; return their number. Raises
        `TimeoutError`, `ConnectionAbortedError` as `check_deadline`."""
        while True:
            # In short steps, so that a thread that waits here sees the end of the build soon.
            self.settimeout(min(_thread.request.check_deadline(), _POLL_SECONDS))
            with suppress(TimeoutError):  # no byte was moved in this step: try again
                return call()


class BudgetedTlsSocket(BudgetedSocket, ssl.SSLSocket):
    """The `sslsocket_class` of a context. Its handshake has the time that the socket has then."""


class _Connection(HTTPConnection):
    def _new_conn(self) -> BudgetedSocket:
        """Return a connected socket, as urllib3 calls it. Raises `TimeoutError` when the connection
        takes longer than `timeout`; its thread is then left behind."""
        connected: Future[socket.socket] = Future()
        connect = super()._new_conn

        def connect_socket() -> None:
            try:
                connected.set_result(connect())
            except (HTTPError, OSError, ValueError) as error:
                connected.set_exception(error)

        # On a thread, since `getaddrinfo` has no time-out, and the library tries each address of a
        # name for the whole `timeout`.
        start_thread(connect_socket)
        if not wait([connected], self.timeout).done:
            raise TimeoutError
        budgeted = BudgetedSocket(fileno=connected.result().detach())
        budgeted.settimeout(self.timeout)  # for the handshake
        return budgeted


class _SecureConnection(_Connection, HTTPSConnection):
    pass


def make_tls_context(settings: RemoteSettings) -> ssl.SSLContext:
    """Return a TLS context with the CA and the client's certificate of the settings. Raises
    `RemoteTroubleError` for files that cannot be read."""
    try:
        ca = settings.tls_ca and os.path.expanduser(settings.tls_ca)
        context = ssl.create_default_context(cafile=ca)
        context.sslsocket_class = BudgetedTlsSocket
        if settings.tls_certificate is not None:
            key = settings.tls_key and os.path.expanduser(settings.tls_key)
            context.load_cert_chain(os.path.expanduser(settings.tls_certificate), key)
    except (OSError, ssl.SSLError) as error:
        why = f"tls-ca, tls-certificate or tls-key: {error.strerror or error}"
        raise RemoteTroubleError(why, retry=False) from None
    return context
