"""A server of `/ac` that takes anything, as a web server with WebDAV does, and a line to
a server that delays, cuts, throttles and flips what passes."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from random import Random


class HttpCache:
    """Content by its path. `status` answers everything instead; one that is `full` keeps nothing
    more; `requests` are those that came."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.status: int | None = None
        self.full = False
        self.port = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, method: str) -> int:
        return sum(request[0] == method for request in self.requests)


@contextlib.contextmanager
def http_cache() -> Iterator[HttpCache]:
    """A cache on the loopback."""
    cache = HttpCache()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(cache.status or status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _note(self) -> bytes:
            cache.requests.append((self.command, self.path, dict(self.headers)))
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_GET(self) -> None:
            self._note()
            body = cache.held.get(self.path)
            self._answer(404 if body is None else 200, body or b"")

        do_HEAD = do_GET  # noqa: N815

        def do_PUT(self) -> None:
            body = self._note()
            if cache.status is None and not cache.full:
                cache.held[self.path] = body
            self._answer(507 if cache.full else 201)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        cache.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield cache
        finally:
            server.shutdown()
            thread.join()


_PACKET, _PACKETS = 1448, 11
_RETRANSMISSION = 0.2
"""Seconds that TCP waits at least before it sends a packet again."""


@dataclass
class Faults:
    """What a line does to what the server answers. Times are seconds."""

    delay: float = 0.0
    """How much later everything comes."""
    loss: float = 0.0
    """The part of the packets that is lost: TCP sends one again, and all behind it waits."""
    cut_after: int | None = None
    """Bytes of a connection, after which it is reset."""
    silent_after: int | None = None
    """Bytes of a connection, after which nothing comes any more."""
    bytes_per_second: float | None = None
    flip_every: int | None = None
    """One bit of each so many bytes is another one."""
    cuts_left: int = 1_000_000
    """How many connections are cut."""


@dataclass
class Line:
    """A line, and what has passed."""

    port: int
    faults: Faults
    connections: int = 0
    passed: int = 0
    """Bytes that the server answered."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return self.at("http")

    def at(self, scheme: str) -> str:
        """Its address for a protocol."""
        return f"{scheme}://127.0.0.1:{self.port}"


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port on the loopback, each of whose connections is served in a thread of its own."""

    def served(line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            serve(line)

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listener.accept()
                    threading.Thread(target=served, args=(line,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def line_to(port: int, faults: Faults | None = None) -> Iterator[Line]:
    """A port on the loopback that leads to another one, with faults that can be changed."""
    line = Line(0, faults or Faults())

    def carry(client: socket.socket) -> None:
        line.connections += 1
        with socket.create_connection(("127.0.0.1", port)) as far:
            threading.Thread(target=_copy, args=(client, far), daemon=True).start()
            _disturbed(line, far, client)

    with listening(carry) as line.port:
        try:
            yield line
        finally:
            line.ended.set()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _disturbed(line: Line, source: socket.socket, target: socket.socket) -> None:
    passed = 0
    for data in _delayed(line.faults, source):
        faults = line.faults
        if faults.flip_every:
            data = _flipped(data, passed, faults.flip_every)
        limit = faults.cut_after if faults.cuts_left > 0 else None
        limit = faults.silent_after if limit is None else limit
        part = data if limit is None else data[: max(0, limit - passed)]
        if faults.bytes_per_second:
            for start in range(0, len(part), 64):
                target.sendall(part[start : start + 64])
                time.sleep(64 / faults.bytes_per_second)
        else:
            target.sendall(part)
        passed += len(data)
        line.passed += len(part)
        if len(part) < len(data):
            if faults.cut_after is not None:
                faults.cuts_left -= 1
                # Closing it would not end it: the other thread reads from it.
                target.shutdown(socket.SHUT_RDWR)
                return
            line.ended.wait()


def _delayed(faults: Faults, source: socket.socket) -> Iterator[bytes]:
    """Yield what comes, in order and late; what is on its way does not hold up what follows."""
    random = Random(7)
    on_its_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def read() -> None:
        due, data = 0.0, b"-"
        while data:
            with contextlib.suppress(OSError):
                data = b""
                data = source.recv(_PACKETS * _PACKET)
            lost = any(random.random() < faults.loss for _ in range(-(-len(data) // _PACKET)))
            again = faults.delay + _RETRANSMISSION if lost else 0.0
            due = max(due, time.monotonic() + faults.delay + again)
            on_its_way.put((due, data))

    threading.Thread(target=read, daemon=True).start()
    while (next_one := on_its_way.get())[1]:
        time.sleep(max(0.0, next_one[0] - time.monotonic()))
        yield next_one[1]


def _flipped(data: bytes, passed: int, every: int) -> bytes:
    changed = bytearray(data)
    for offset in range(-passed % every, len(data), every):
        changed[offset] ^= 1
    return bytes(changed)
