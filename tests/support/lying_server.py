"""A server of /ac and /cas that answers in 32 wrong ways: it drips, floods, refuses, lies. It does
so in clear, within TLS, and where a client waits for TLS or for HTTP/2."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator

from support.http_cache import listening

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def whole(content: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, more, len(content), content)


def record(**changes: object) -> bytes:
    blob = ["0" * 64, 5]
    names = ("meta.json", "program.txt", "options.txt", "module/compile.sh")
    value = {"files": dict.fromkeys(names, blob), "directories": {}, "seconds": 1.0, "texts": {}}
    return whole(json.dumps({**value, **changes}).encode())


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
    **{f"drips: {name}": (*each, 0.1) for name, each in STREAMS.items()},
    **{f"floods: {name}": (a, b * 1000, 0.0) for name, (a, b) in STREAMS.items() if b},
    "closes": (b"", b"", -1),
    "garbage": (b"\0" * 9999, b"", -1),
    "301": (whole(b"", b"301 no", b"Location: http://127.0.0.1:1/\r\n"), b"", -1),
    "401": (whole(b"", b"401 no"), b"", -1),
    "503": (whole(b"", b"503 no"), b"", -1),
    "compressed": (whole(b"abcde", more=b"Content-Encoding: gzip\r\n"), b"", -1),
    "cut": (OK + b"Content-Length: 99\r\n\r\ncut", b"", -1),
    "a deep tree": (whole(b"[" * 400_000), b"", -1),
    "a record of 4 GiB": (
        record(directories={f"{n:064x}": [f"{n:064x}", 1 << 30] for n in range(4)}),
        b"",
        -1,
    ),
    "a record of other files": (record(texts={"meta.json": "x" * 5}), b"", -1),
    "blobs without end": (record(), b"", -1),
}
"""What comes first, what comes again and again, and seconds between; -1: it closes then."""


@contextlib.contextmanager
def lying(kind: str, scheme: str = "http", tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server of this kind, whose lies come within `tls`."""
    first, again, pause = KINDS[kind]

    def answer(plain: socket.socket) -> None:
        with tls.wrap_socket(plain, server_side=True) if tls else plain as line:
            asked = line.recv(1 << 16)
            if kind == "blobs without end" and b"/cas/" in asked:
                while True:
                    line.sendall(OK + b"\r\n" + bytes(1 << 20))
            line.sendall(first)
            while pause >= 0:
                line.sendall(again)
                time.sleep(pause)

    with listening(answer) as port:
        yield f"{scheme}://127.0.0.1:{port}"
