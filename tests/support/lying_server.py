"""A server of /ac that drips, floods or lies: in clear, within TLS, and where a client
waits for TLS or for HTTP/2."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator

from zstandard import ZstdCompressor

from support.http_cache import listening

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def huge_entry() -> bytes:
    """An answer with an archive of 200 MB in 20 kB."""
    frame = ZstdCompressor().compressobj()
    parts = [frame.compress(b'{"files":{"meta.json":%d}}\n' % (200 << 20))]
    parts += [frame.compress(bytes(1 << 20)) for _ in range(200)]
    archive = b"".join((*parts, frame.flush()))
    return OK + b"Content-Length: %d\r\n\r\n%s" % (len(archive), archive)


STREAMS = {
    "silence": (b"", b""),
    "interim answers": (b"", CONTINUE),
    "status line": (b"HTTP/1.1 200 ", b"O"),
    "a header": (OK + b"a: ", b"b"),
    "headers": (OK, b"a: b\r\n"),
    "content": (OK + b"Content-Length: 99999\r\n\r\n", b"c"),
    "content to the end": (OK + b"\r\n", b"c"),
    "chunks": (CHUNKED, b"1\r\nc\r\n"),
    "size of a chunk": (CHUNKED, b"0"),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n"),
    "a refusal": (b"HTTP/1.1 404 no\r\nContent-Length: 999\r\n\r\n", b"c"),
}
KINDS: dict[str, tuple[bytes, bytes, float]] = {
    "drips: trailers": (*STREAMS["trailers"], 0.1),
    "floods: interim answers": (b"", CONTINUE * 1000, 0.0),
    "a text of 200 MB": (huge_entry(), b"", -1),
}
"""What comes first, what comes again and again, and seconds between; -1: it closes then."""


@contextlib.contextmanager
def lying(kind: str, scheme: str = "http", tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server of this kind, whose lies come within `tls`."""
    first, again, pause = KINDS[kind]

    def answer(plain: socket.socket) -> None:
        with tls.wrap_socket(plain, server_side=True) if tls else plain as line:
            line.recv(1 << 16)
            line.sendall(first)
            while pause >= 0:
                line.sendall(again)
                time.sleep(pause)

    with listening(answer) as port:
        yield f"{scheme}://127.0.0.1:{port}"
