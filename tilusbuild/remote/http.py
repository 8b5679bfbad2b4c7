"""A remote cache over HTTP, in the layout that Bazel made common: `/ac/<sha256>`, `/cas/<sha256>`.

nginx with WebDAV, bazel-remote and gateways of buckets serve it. Such a server checks nothing: it
takes any bytes under any name, and its records may name blobs that are gone. Each thread has a
connection of its own, which is kept. What is asked for together goes out together (`pipeline`), and
one by one where a server answers in another way than with files. No redirect is followed, and no
more is read than a blob's size.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from tilusbuild._version import __version__
from tilusbuild.remote.backend import UNKNOWN_CLIENT, UNTRUSTED, RemoteTroubleError
from tilusbuild.remote.credentials import Credentials
from tilusbuild.remote.pipeline import Request, UnsuitedError, answers
from tilusbuild.remote.record import Blob
from tilusbuild.remote.settings import RemoteSettings

MAX_RECORD = 4 << 20
"""Bytes of a record that is read."""
_CHUNK = 1 << 16
_AT_ONCE = 32
"""Requests that are sent before the first answer is read."""
_PATIENCE = 3
"""How often in a row nothing of what was sent together may be answered, before all is asked one by
one."""
_OK = (200, 201, 202, 204)
_ABSENT = (404, 410)
_UNTRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes of an issuer that it does not know."""
_PASSING = (408, 425, 429, 500, 502, 503, 504)


class HttpBackend:
    """The server of an `http://` or `https://` address."""

    batch = 8
    width = 8

    def __init__(self, settings: RemoteSettings) -> None:
        """Raises `RemoteTroubleError` for certificates that cannot be read."""
        self._settings = settings
        parts = urlsplit(settings.address)
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._credentials = Credentials(settings)
        self._context = tls_context(settings) if parts.scheme == "https" else None
        self._local = threading.local()
        self._guard = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self._closed = False
        self._authority = parts.netloc.rpartition("@")[2]
        self._unanswered = 0

    def check(self, *, write: bool) -> str:
        status, _ = self._request("GET", f"ac/{'0' * 64}", most=MAX_RECORD)
        if status not in (200, *_ABSENT):
            raise self._refused("GET", status)
        return "a server of /ac and /cas over HTTP"

    def results(self, keys: Sequence[Blob], inline: Collection[str] = ()) -> list[bytes | None]:
        return self._all([(f"ac/{key.digest}", MAX_RECORD) for key in keys])

    def blobs(self, wanted: Collection[Blob]) -> Mapping[Blob, bytes]:
        every = list(wanted)
        found = self._all([(f"cas/{blob.digest}", blob.size) for blob in every])
        return {blob: data for blob, data in zip(every, found, strict=True) if data is not None}

    def missing(self, blobs: Collection[Blob]) -> Collection[Blob]:
        every = list(blobs)
        known = list(self._ahead("HEAD", [(f"cas/{blob.digest}", 0) for blob in every]))
        found = [blob for blob, data in zip(every, known, strict=False) if data is None]
        rest = every[len(known) :]
        return found + [b for b in rest if self._request("HEAD", f"cas/{b.digest}")[0] != 200]

    def send(self, blobs: Mapping[Blob, bytes]) -> None:
        for blob, data in blobs.items():
            self._put(f"cas/{blob.digest}", data)

    def send_result(self, key: Blob, record: bytes) -> None:
        self._put(f"ac/{key.digest}", record)

    def leave(self) -> None:
        if (connection := getattr(self._local, "connection", None)) is not None:
            self._forget(connection)

    def close(self) -> None:
        self._closed = True
        with self._guard:
            for connection in self._open:
                # Not `close`: that would wait for the thread that reads from it.
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _all(self, wanted: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Return the content of each name; None where there is none."""
        found = list(self._ahead("GET", wanted))
        return found + [self._get(name, most) for name, most in wanted[len(found) :]]

    def _ahead(self, method: str, wanted: Sequence[tuple[str, int]]) -> Iterator[bytes | None]:
        """Yield the first of these, as far as the server takes requests ahead of its answers."""
        every = [Request(f"{self._prefix}/{name}", most) for name, most in wanted]
        at = 0
        while len(every) > 1 and at < len(every) and self._takes_ahead:
            before = at
            try:
                for status, data in self._answers(method, every[at : at + _AT_ONCE]):
                    yield data if status == 200 else None
                    at += 1
            except TimeoutError as error:
                raise self._trouble(error) from None
            except (OSError, UnsuitedError):
                if at == before:
                    # What that is, the request by itself will say.
                    self._unanswered += 1
                    return
            self._unanswered = 0

    @property
    def _takes_ahead(self) -> bool:
        return self._unanswered < _PATIENCE

    def _answers(self, method: str, wanted: Sequence[Request]) -> Iterator[tuple[int, bytes]]:
        try:
            connection = self._connection()
        except OSError as error:
            raise self._trouble(error) from None
        whole = False
        try:
            headers = {"Host": self._authority, **self._headers()}
            rows = [f"{name}: {value}" for name, value in headers.items()]
            if any("\r" in row or "\n" in row for row in rows):
                raise UnsuitedError
            lines = "".join(f"{row}\r\n" for row in rows)
            yield from answers(connection.sock, method, lines, wanted, self._settings.timeout)
            whole = True
        finally:
            if not whole:
                self._forget(connection)

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": f"tilusbuild/{__version__}", **self._credentials.headers()}

    def _get(self, name: str, most: int) -> bytes | None:
        status, data = self._request("GET", name, most=most)
        if status in _ABSENT:
            return None
        if status != 200:
            raise self._refused("GET", status)
        return data

    def _put(self, name: str, data: bytes) -> None:
        status, _ = self._request("PUT", name, data)
        if status not in _OK:
            raise self._refused("PUT", status)

    def _refused(self, method: str, status: int) -> RemoteTroubleError:
        message = f"{self._settings.address} answers {method} with status {status}"
        if status in (401, 403) and self._settings.withheld:
            message += "; headers are only for the server that the user's own settings name"
        if status == 400 and self._context is not None and self._settings.tls_certificate is None:
            message += f"; {UNKNOWN_CLIENT}"
        return RemoteTroubleError(message, retry=status in _PASSING)

    def _request(
        self, method: str, name: str, body: bytes | None = None, most: int = 0
    ) -> tuple[int, bytes]:
        """Return the status and at most `most` + 1 bytes of the answer."""
        used = getattr(self._local, "connection", None) is not None
        try:
            return self._once(method, name, body, most)
        except (ConnectionError, http.client.RemoteDisconnected) as error:
            # A server may close a connection that it has kept for long; that is not an error.
            if not used or self._closed:
                raise self._trouble(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._trouble(error) from None
        try:
            return self._once(method, name, body, most)
        except (OSError, http.client.HTTPException) as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> RemoteTroubleError:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNTRUSTED:
            why = UNTRUSTED
        final = isinstance(error, (_ConnectTimeoutError, socket.gaierror, ssl.SSLError))
        return RemoteTroubleError(f"{self._settings.address}: {why}", retry=not final)

    def _once(self, method: str, name: str, body: bytes | None, most: int) -> tuple[int, bytes]:
        until = time.monotonic() + self._settings.timeout
        connection = self._connection()
        whole = False
        try:
            connection.request(method, f"{self._prefix}/{name}", body, self._headers())
            response = connection.getresponse()
            data = self._read(response, most, until)
            whole = response.isclosed() and not response.will_close
            return response.status, data
        finally:
            if not whole:
                self._forget(connection)

    def _read(self, response: http.client.HTTPResponse, most: int, until: float) -> bytes:
        pieces: list[bytes] = []
        left = most + 1 if response.status == 200 else 1 << 12
        while left > 0 and (piece := response.read1(min(left, _CHUNK))):
            pieces.append(piece)
            left -= len(piece)
            # Each read may take its time and bring a byte.
            if time.monotonic() > until:
                raise TimeoutError
        if left > 0 and response.length:
            raise ConnectionResetError("the connection was cut")  # says nothing of the content
        if not response.isclosed() and response.length == 0:
            response.close()
        return b"".join(pieces)

    def _connection(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ConnectionError("closed")
        known: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if known is not None:
            return known
        timeout = self._settings.connect_timeout
        made = (
            http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            if self._context is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._context
            )
        )
        try:
            made.connect()
        except TimeoutError:
            raise _ConnectTimeoutError from None
        made.sock.settimeout(self._settings.timeout)
        with self._guard:
            self._open.add(made)
        self._local.connection = made
        return made

    def _forget(self, connection: http.client.HTTPConnection) -> None:
        self._local.connection = None
        with self._guard:
            self._open.discard(connection)
        connection.close()


class _ConnectTimeoutError(TimeoutError):
    """No connection in time: the next attempt would take as long."""


def tls_context(settings: RemoteSettings) -> ssl.SSLContext:
    """Return the certificates for a server. Raises `RemoteTroubleError`."""
    try:
        ca = settings.tls_ca and os.path.expanduser(settings.tls_ca)
        context = ssl.create_default_context(cafile=ca)
        if settings.tls_certificate is not None:
            key = settings.tls_key and os.path.expanduser(settings.tls_key)
            context.load_cert_chain(os.path.expanduser(settings.tls_certificate), key)
    except (OSError, ssl.SSLError) as error:
        why = f"tls-ca, tls-certificate or tls-key: {error.strerror or error}"
        raise RemoteTroubleError(why, retry=False) from None
    return context
