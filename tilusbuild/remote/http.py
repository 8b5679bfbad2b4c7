"""A remote cache over HTTP, in the layout that Bazel made common: `/ac/<sha256>`, `/cas/<sha256>`.

nginx with WebDAV and gateways of buckets serve it. Such a server checks nothing: it takes any bytes
under any name, and its records may name blobs that are gone. No redirect is followed, no proxy is
used, and no more is read than a blob's size. urllib3 keeps the connections and speaks the protocol,
on sockets of our own (`line`), which end a request that is late as a whole.

The price of a plain layout: two requests for a program at least, one after the other on a
connection (benchmarks/remote.py).
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, IncompleteRead

from tilusbuild._version import __version__
from tilusbuild.remote.backend import (
    UNKNOWN_CLIENT,
    UNTRUSTED,
    Keep,
    RemoteTroubleError,
    about_credentials,
)
from tilusbuild.remote.credentials import Credentials
from tilusbuild.remote.line import Lines, SecureLine
from tilusbuild.remote.record import MAX_RECORD, Blob
from tilusbuild.remote.settings import RemoteSettings

_CONNECTIONS = 16
"""That are kept: those of all who ask, and of those who send."""
_OK = (200, 201, 202, 204)
_ABSENT = (404, 410)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_MAX_REFUSAL = 4 << 10
"""Bytes that are read of what comes with a status other than 200."""
_PIECE = 64 << 10
_UNTRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes of an issuer that it does not know."""
_IDLE = 60.0
"""Seconds after which a connection that was not used may have been forgotten on the way."""


class HttpBackend:
    """The server of an `http://` or `https://` address."""

    batch = 8
    width = 8

    def __init__(self, settings: RemoteSettings) -> None:
        """Raises `RemoteTroubleError` for certificates that cannot be read."""
        self._settings = settings
        self._credentials = Credentials(settings)
        self._lines = Lines(settings.connect_timeout)
        parts = urlsplit(settings.address)
        self._prefix = parts.path.rstrip("/")
        common: dict[str, Any] = {
            "maxsize": _CONNECTIONS,
            "lines": self._lines,
        }
        if parts.scheme == "https":
            common["ssl_context"] = tls_context(settings)
        kind = _SecurePool if parts.scheme == "https" else _Pool
        self._pool: HTTPConnectionPool = kind(parts.hostname or "", parts.port, **common)

    def check(self, *, write: bool) -> str:
        with self._asked("GET", f"ac/{'0' * 64}") as (status, _):
            if status not in (200, *_ABSENT):
                raise self._refused("GET", status)
        return "a server of /ac and /cas over HTTP"

    def results(self, keys: Sequence[Blob]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(keys)
        for number, key in enumerate(keys):
            with self._got(f"ac/{key.digest}", MAX_RECORD) as pieces:
                found[number] = None if pieces is None else b"".join(pieces)
        return found

    def blobs(self, wanted: Collection[Blob], keep: Keep) -> None:
        for blob in wanted:
            with self._got(f"cas/{blob.digest}", blob.size) as pieces:
                if pieces is not None:
                    keep(blob, pieces)

    def missing(self, blobs: Collection[Blob]) -> Collection[Blob]:
        found = []
        for blob in blobs:
            with self._asked("HEAD", f"cas/{blob.digest}") as (status, _):
                found += [blob] if status != 200 else []
        return found

    def send(self, blobs: Mapping[Blob, bytes]) -> None:
        for blob, data in blobs.items():
            self._put(f"cas/{blob.digest}", data)

    def send_result(self, key: Blob, record: bytes) -> None:
        self._put(f"ac/{key.digest}", record)

    def close(self) -> None:
        self._pool.close()
        self._lines.close()

    @contextmanager
    def _got(self, name: str, most: int) -> Iterator[Iterator[bytes] | None]:
        """Give the content as it comes, a byte more than `most` at most; None for none."""
        with self._asked("GET", name, most=most) as (status, pieces):
            if status not in (200, *_ABSENT):
                raise self._refused("GET", status)
            yield pieces if status == 200 else None

    def _put(self, name: str, data: bytes) -> None:
        with self._asked("PUT", name, data) as (status, _):
            if status not in _OK:
                raise self._refused("PUT", status)

    def _refused(self, method: str, status: int) -> RemoteTroubleError:
        message = f"{self._settings.address} answers {method} with status {status}"
        if status in (401, 403):
            message += f"; {about_credentials(self._settings)}"
        is_secure = isinstance(self._pool, _SecurePool)
        if status == 400 and is_secure and self._settings.tls_certificate is None:
            message += f"; {UNKNOWN_CLIENT}"
        return RemoteTroubleError(message, retry=status in _PASSING)

    @contextmanager
    def _asked(
        self, method: str, name: str, body: bytes | None = None, most: int = 0
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Give the status of an answer, and its content as it comes."""
        headers = {"User-Agent": f"tilusbuild/{__version__}", **self._credentials.headers()}
        with self._lines.request(self._settings.timeout, most):
            with self._troubles():
                response = self._pool.urlopen(
                    method,
                    f"{self._prefix}/{name}",
                    body,
                    headers,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            pieces = self._pieces(response, 1 + (most if response.status == 200 else _MAX_REFUSAL))
            try:
                yield response.status, pieces
                # What was read to its end is in the pool again.
                deque(pieces, 0)
            finally:
                response.close()

    def _pieces(self, response: BaseHTTPResponse, left: int) -> Iterator[bytes]:
        while left > 0:
            with self._troubles():
                data = response.read(min(left, _PIECE))
            if not data:
                return
            left -= len(data)
            yield data

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except (HTTPError, OSError) as error:
            raise self._trouble(error) from None
        except ValueError:  # without its text, which may be a secret
            why = f"{self._settings.address}: a header that cannot be sent"
            raise RemoteTroubleError(why, retry=False) from None

    def _trouble(self, error: Exception) -> RemoteTroubleError:
        cause: BaseException = error
        while (inner := _inner(cause)) is not None:
            cause = inner
        why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if isinstance(cause, TimeoutError):
            why = "no answer in time"
        elif isinstance(cause, IncompleteRead):
            why = "the connection was cut"
        elif isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _UNTRUSTED:
            why = UNTRUSTED
        # The next attempt would take as long, or end alike.
        final = isinstance(
            cause, TimeoutError | ConnectionAbortedError | socket.gaierror | ssl.SSLError
        )
        return RemoteTroubleError(f"{self._settings.address}: {why}", retry=not final)


def _inner(error: BaseException) -> BaseException | None:
    """Return what urllib3 put into an error of its own."""
    inside = (each for each in error.args if isinstance(each, Exception))
    return error.__cause__ or next(inside, None)


class _Connection(HTTPConnection):
    def __init__(self, *arguments: Any, lines: Lines, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lines = lines
        self._used = 0.0

    def _new_conn(self) -> socket.socket:
        return self._lines.connect(self.host, self.port)

    @property
    def is_connected(self) -> bool:
        return super().is_connected and time.monotonic() - self._used < _IDLE

    def connect(self) -> None:
        super().connect()
        self._lines.watch(self.sock)

    def request(self, *arguments: Any, **more: Any) -> None:
        self._used = time.monotonic()
        super().request(*arguments, **more)


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def tls_context(settings: RemoteSettings) -> ssl.SSLContext:
    """Return the certificates for a server. Raises `RemoteTroubleError`."""
    try:
        ca = settings.tls_ca and os.path.expanduser(settings.tls_ca)
        context = ssl.create_default_context(cafile=ca)
        context.sslsocket_class = SecureLine
        if settings.tls_certificate is not None:
            key = settings.tls_key and os.path.expanduser(settings.tls_key)
            context.load_cert_chain(os.path.expanduser(settings.tls_certificate), key)
    except (OSError, ssl.SSLError) as error:
        why = f"tls-ca, tls-certificate or tls-key: {error.strerror or error}"
        raise RemoteTroubleError(why, retry=False) from None
    return context
