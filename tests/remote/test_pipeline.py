"""Requests that go out together, against servers that answer in every way: what comes is what was
asked for, and what is odd is asked for by itself."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

pytest.importorskip("google.protobuf", reason="needs tilusbuild[remote]")

from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.http import HttpBackend
from tilusbuild.remote.record import Blob
from tilusbuild.remote.settings import RemoteSettings

CONTENTS = [b"content %d" % number * (number + 1) for number in range(40)]
BLOBS = [Blob(hashlib.sha256(data).hexdigest(), len(data)) for data in CONTENTS]
HELD = {blob.digest: data for blob, data in zip(BLOBS, CONTENTS, strict=True)}

Answer = Callable[[int, "bytes | None"], "tuple[bytes, bool]"]
"""From the number of a request on its connection and its content to an answer, and whether the
connection ends with it."""


@dataclass
class Served:
    """What a server has seen: of each connection, how many requests lay there at once at most."""

    port: int
    together: list[int] = field(default_factory=list)
    requests: int = 0


@contextmanager
def serving(answer: Answer, *, waits_for: int = 1) -> Iterator[Served]:
    """A server that answers when `waits_for` requests are there, or no more come for a moment."""
    listener = socket.create_server(("127.0.0.1", 0))
    served = Served(listener.getsockname()[1])

    def serve(line: socket.socket) -> None:
        number, data = 0, b""
        with suppress(OSError), line:
            while True:
                line.settimeout(None)
                while data.count(b"\r\n\r\n") < waits_for:
                    try:
                        more = line.recv(1 << 16)
                    except TimeoutError:
                        break
                    if not more:
                        return
                    data += more
                    line.settimeout(1.0)
                served.together.append(data.count(b"\r\n\r\n"))
                *heads, data = data.split(b"\r\n\r\n")
                for head in heads:
                    served.requests += 1
                    digest = head.split(b" ")[1].decode().rpartition("/")[2]
                    reply, ends = answer(number, HELD.get(digest))
                    number += 1
                    line.sendall(reply)
                    if ends:
                        return

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield served
    finally:
        listener.close()


def usual(number: int, data: bytes | None) -> tuple[bytes, bool]:
    if data is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", False
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data, False


def ends_after_seven(number: int, data: bytes | None) -> tuple[bytes, bool]:
    reply, _ = usual(number, data)
    return (
        (reply.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), True)
        if number == 6
        else (reply, False)
    )


def cuts_after_seven(number: int, data: bytes | None) -> tuple[bytes, bool]:
    return usual(number, data)[0], number == 6


def one_by_one(number: int, data: bytes | None) -> tuple[bytes, bool]:
    reply, _ = usual(number, data)
    return reply.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), True


def old(number: int, data: bytes | None) -> tuple[bytes, bool]:
    return usual(number, data)[0].replace(b"HTTP/1.1", b"HTTP/1.0"), True


def chunked(number: int, data: bytes | None) -> tuple[bytes, bool]:
    if data is None:
        return usual(number, data)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data), False


def no_length(number: int, data: bytes | None) -> tuple[bytes, bool]:
    if data is None:
        return usual(number, data)
    return b"HTTP/1.1 200 OK\r\n\r\n" + data, True


WAYS = [usual, ends_after_seven, cuts_after_seven, one_by_one, old, chunked, no_length]


@contextmanager
def backend(port: int, timeout: float = 60.0) -> Iterator[HttpBackend]:
    made = HttpBackend(RemoteSettings(f"http://127.0.0.1:{port}", "test", timeout=timeout))
    yield made
    made.leave()


@pytest.mark.parametrize("answer", WAYS, ids=lambda way: way.__name__)
def test_all_comes_however_it_is_answered(answer: Answer) -> None:
    absent = Blob("0" * 64, 5)
    with serving(answer) as served, backend(served.port) as remote:
        for _ in range(2):
            assert remote.blobs([*BLOBS, absent]) == dict(zip(BLOBS, CONTENTS, strict=True))


def test_they_go_out_before_the_first_answer() -> None:
    with serving(usual, waits_for=32) as served, backend(served.port) as remote:
        remote.blobs(BLOBS)
        assert served.together == [32, 8]


def test_who_answers_nothing_of_them_is_asked_one_by_one() -> None:
    with serving(old) as served, backend(served.port) as remote:
        for _ in range(5):
            remote.blobs(BLOBS)
        # Three times together, of which one was answered, and each by itself.
        assert served.requests <= 5 * len(BLOBS) + 3 * 32


def test_what_is_there_is_asked_for_without_its_content() -> None:
    def head(number: int, data: bytes | None) -> tuple[bytes, bool]:
        size = 0 if data is None else len(data)
        status = b"404 Not Found" if data is None else b"200 OK"
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, size), False

    absent = [Blob(f"{number:064x}", 5) for number in range(3)]
    with serving(head, waits_for=32) as served, backend(served.port) as remote:
        assert set(remote.missing([*BLOBS, *absent])) == set(absent)
        assert max(served.together) == 32


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n",
        b"\0" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000,
        b"",
    ],
)
def test_what_is_odd_ends_in_words_or_in_bytes_to_compare(reply: bytes) -> None:
    always = serving(lambda number, data: (reply, True))
    with always as served, backend(served.port, timeout=5.0) as remote:
        try:
            found = remote.blobs(BLOBS)
        except RemoteTroubleError:
            return
        assert not any(found[blob] == HELD[blob.digest] for blob in found)
        assert all(len(found[blob]) <= blob.size + 1 for blob in found)


def test_what_is_cut_off_is_the_line_and_not_the_content() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncont"
    always = serving(lambda number, data: (reply, True))
    with always as served, backend(served.port) as remote:
        for wanted in (BLOBS, BLOBS[:1]):
            with pytest.raises(RemoteTroubleError, match=r"cut|reset"):
                remote.blobs(wanted)


def test_silence_is_waited_for_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        backend(silent.getsockname()[1], timeout=0.5) as remote,
    ):
        with pytest.raises(RemoteTroubleError, match="no answer in time"):
            remote.blobs(BLOBS)
        silent.settimeout(1)
        silent.accept()[0].close()
        with pytest.raises(TimeoutError):
            silent.accept()
