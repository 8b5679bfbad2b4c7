"""HTTP, against servers that answer in every way: what comes is what was asked for, no more is read
than that, and no request takes longer than it may."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import count

import pytest
from msgspec.structs import replace

from support.http_cache import listening
from support.lying_server import STREAMS
from tilusbuild.remote.archive import key_digest
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.http import HttpBackend
from tilusbuild.remote.settings import make_settings

CONTENTS = [b"content %d" % number * (number + 1) for number in range(40)]
BY_KEY = {f"key {number}": data for number, data in enumerate(CONTENTS)}
HELD = {key_digest(key): data for key, data in BY_KEY.items()}
MOST = 2000
"""Bytes of a file that are accepted."""

Answer = Callable[[int, "bytes | None"], "tuple[bytes, bool]"]
"""From the number of a request on its connection and its content to an answer, and whether the
connection ends with it."""


def serving(answer: Answer) -> AbstractContextManager[int]:
    """A server's port."""

    def serve(line: socket.socket) -> None:
        with line.makefile("rb") as asked:
            for number in count():
                while (head := asked.readline()) == b"\r\n":
                    pass
                while asked.readline().strip():
                    pass
                digest = head.split(b" ")[1].decode().rpartition("/")[2] if head else ""
                reply, ends = answer(number, HELD.get(digest))
                line.sendall(reply)
                if ends or not head:
                    return

    return listening(serve)


def usual(number: int, data: bytes | None) -> tuple[bytes, bool]:
    if data is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", False
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data, False


def changed(old: bytes, new: bytes, ends_at: int = 0) -> Answer:
    """The usual answers until one that is changed, with which the connection ends."""

    def answer(number: int, data: bytes | None) -> tuple[bytes, bool]:
        reply, _ = usual(number, data)
        return (reply.replace(old, new, 1), True) if number >= ends_at else (reply, False)

    return answer


def chunked(number: int, data: bytes | None) -> tuple[bytes, bool]:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return (
        usual(number, data)
        if data is None
        else (head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data), False)
    )


def no_length(number: int, data: bytes | None) -> tuple[bytes, bool]:
    return usual(number, data) if data is None else (b"HTTP/1.1 200 OK\r\n\r\n" + data, True)


WAYS: dict[str, Answer] = {
    "usual": usual,
    "ends after seven": changed(b"\r\n", b"\r\nConnection: close\r\n", 6),
    "cuts after seven": changed(b"", b"", 6),
    "one by one": changed(b"\r\n", b"\r\nConnection: close\r\n"),
    "old": changed(b"HTTP/1.1", b"HTTP/1.0"),
    "chunked": chunked,
    "no length": no_length,
}


def fetch(remote: HttpBackend, *keys: str, most: int = MOST) -> dict[str, bytes]:
    """What comes for these keys, read until it is more than is accepted."""
    data_by_key: dict[str, bytes] = {}

    def take(key: str, pieces: Iterable[bytes]) -> None:
        data = b""
        for piece in pieces:
            data += piece
            if len(data) > most:
                break
        data_by_key[key] = data

    remote.fetch_files(keys, take)
    return data_by_key


@contextmanager
def backend(port: int, timeout: float = 60.0) -> Iterator[HttpBackend]:
    http_backend = HttpBackend(make_settings(f"http://127.0.0.1:{port}", "test", timeout=timeout))
    with closing(http_backend):
        yield http_backend


@pytest.mark.parametrize("way", WAYS)
def test_all_comes_however_it_is_answered(way: str) -> None:
    with serving(WAYS[way]) as port, backend(port) as remote:
        for _ in range(2):
            for key in (*BY_KEY, "absent"):
                # A connection that was cut in between is asked again, as by `Guard`.
                for attempt in range(3):
                    try:
                        assert fetch(remote, key).get(key) == BY_KEY.get(key)
                        break
                    except RemoteTroubleError as error:
                        if not error.retry or attempt == 2 or way != "cuts after seven":
                            raise


def test_what_is_there_is_asked_for_without_its_content() -> None:
    def head(number: int, data: bytes | None) -> tuple[bytes, bool]:
        size = 0 if data is None else len(data)
        status = b"404 Not Found" if data is None else b"200 OK"
        return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, size), False

    with serving(head) as port, backend(port) as remote:
        assert all(remote.has_file(key) for key in BY_KEY)
        assert not any(remote.has_file(f"absent {number}") for number in range(3))


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (1 << 20),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
        b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 no\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"\0" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 100_000,
        b"",
    ],
)
def test_what_is_odd_ends_in_words_or_in_bytes_to_compare(reply: bytes) -> None:
    with serving(lambda number, data: (reply, True)) as port, backend(port, 5.0) as remote:
        try:
            data_by_key = fetch(remote, *BY_KEY)
        except RemoteTroubleError:
            return
        assert not any(data_by_key[key] == BY_KEY[key] for key in data_by_key)


def test_what_is_cut_off_is_the_line_and_not_the_content() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncont"
    with (
        serving(lambda number, data: (reply, True)) as port,
        backend(port) as remote,
        pytest.raises(RemoteTroubleError, match="cut") as caught,
    ):
        fetch(remote, *BY_KEY)
    assert caught.value.retry


def dripping(first: bytes, again: bytes, pause: float) -> AbstractContextManager[int]:
    """The port of a server that sends the one, and then the other without end."""

    def drip(line: socket.socket) -> None:
        line.sendall(first)
        while True:
            line.sendall(again)
            time.sleep(pause)

    return listening(drip)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_request_takes_longer_than_it_may(scheme: str) -> None:
    """Whatever comes meanwhile; over TLS these are no handshake at all."""
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        waits = {name: pool.submit(is_late, scheme, *value) for name, value in STREAMS.items()}
    assert {name: error for name, value in waits.items() if (error := value.exception())} == {}


def is_late(scheme: str, first: bytes, again: bytes) -> None:
    with dripping(first, again, 0.02) as port:
        error = fetch_late(f"{scheme}://127.0.0.1:{port}", timeout=0.5, connect_timeout=0.5)
        if scheme == "http":
            assert "no answer in time" in str(error)
            assert not error.retry


def fetch_late(address: str, **settings: float) -> RemoteTroubleError:
    """The error of a request that is given up in time."""
    with closing(HttpBackend(make_settings(address, "test", **settings))) as remote:
        began = time.monotonic()
        with pytest.raises(RemoteTroubleError) as caught:
            fetch(remote, "key 0")
        assert time.monotonic() - began < 2
    return caught.value


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "silence"])
def test_a_flood_ends_with_what_was_asked_for(name: str) -> None:
    """Time alone would be a matter of luck: what comes without a pause is never waited for."""
    first, again = STREAMS[name]
    with dripping(first, again * 1000, 0.0) as port, backend(port, timeout=60.0) as remote:
        began = time.monotonic()
        with suppress(RemoteTroubleError):
            fetch(remote, "key 0")
        assert time.monotonic() - began < 5


def test_a_handshake_that_drips_is_late() -> None:
    """A TLS record that comes byte by byte: its head says that it has 16 KiB."""
    with dripping(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x03", 0.02) as port:
        error = fetch_late(f"https://localhost:{port}", connect_timeout=0.5)
    assert "no answer in time" in str(error)


def test_a_name_that_nobody_answers_for_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object, **__: object) -> list[object]:
        time.sleep(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look)
    error = fetch_late("http://cache.example", connect_timeout=0.3)
    assert "no answer in time" in str(error)


def test_what_comes_makes_a_request_longer_and_what_drips_does_not() -> None:
    """A file that takes its time is fetched whole."""
    data = bytes(3 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)
    with dripping(head, bytes(64 << 10), 0.03) as port, backend(port, timeout=0.5) as remote:
        began = time.monotonic()
        assert fetch(remote, "key 0", most=len(data)) == {"key 0": data}
        assert time.monotonic() - began > 1


def test_who_waits_is_woken_at_the_end() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        backend(silent.getsockname()[1]) as remote,
    ):
        threading.Timer(0.3, remote.close).start()
        with pytest.raises(RemoteTroubleError):
            fetch(remote, *BY_KEY)


def test_a_header_that_cannot_be_sent_is_not_shown() -> None:
    settings = make_settings("http://127.0.0.1:1", "test", headers={"A": "secret\nB: b"})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        remote = HttpBackend(replace(settings, _address=address))
        with pytest.raises(RemoteTroubleError, match="header that cannot be sent"):
            fetch(remote, *BY_KEY)
