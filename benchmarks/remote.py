"""Everything is in the remote cache: how long until all of it is here, and what a program costs.

N programs as a build leaves them (eight files, 40 kB) are sent to buildbox-casd, and to nginx with
WebDAV where it is installed, and fetched by builds with empty caches. Beside it are the floors:
the same messages by a client that looks at nothing and keeps nothing, the same bytes over the
loopback, and the same files written and made durable.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import _bench
import _projects
from _bench import Arm, Ran, WorkNotDoneError, process

_ROOT = _bench.ROOT

GRPC_FLOOR = """\
import json, sys
from collections import deque
import grpc
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.remote.archive import include_key, program_key
from tilusbuild.reapi.backend import make_blob
V2 = "/build.bazel.remote.execution.v2"
address, names = sys.argv[1], open(sys.argv[2]).read().split()
keys = [(include_key if kind == "include" else program_key)(name)
        for kind, _, name in (each.partition("/") for each in names)]
channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
ask = channel.unary_unary(V2 + ".ActionCache/GetActionResult")
read = channel.unary_unary(V2 + ".ContentAddressableStorage/BatchReadBlobs")
def digest(blob):
    return reapi.Digest(hash=blob[0], size_bytes=blob[1])
asked, reading, seen, wanted, size, total = deque(), deque(), set(), [], 0, 0
def take(call):
    global total
    answer = reapi.BatchReadBlobsResponse.FromString(call.result())
    total += sum(len(each.data) for each in answer.responses)
def flush():
    global wanted, size
    if wanted:
        request = reapi.BatchReadBlobsRequest(digests=wanted)
        reading.append(read.future(request.SerializeToString()))
    wanted, size = [], 0
    while len(reading) > 2:
        take(reading.popleft())
def answered(data):
    global size
    for each in reapi.ActionResult.FromString(data).output_files:
        blob = (each.digest.hash, each.digest.size_bytes)
        if blob not in seen:
            seen.add(blob)
            if size + blob[1] > 3 << 20:
                flush()
            wanted.append(each.digest)
            size += blob[1] + 128
for key in keys:
    request = reapi.GetActionResultRequest(action_digest=digest(make_blob(key.encode())))
    asked.append(ask.future(request.SerializeToString()))
    if len(asked) >= 256:
        answered(asked.popleft().result())
while asked:
    answered(asked.popleft().result())
flush()
while reading:
    take(reading.popleft())
print(total)
"""
"""A client that has 256 questions on the way and reads in batches; what comes is not looked at."""

HTTP_FLOOR = """\
import socket, sys
from concurrent.futures import ThreadPoolExecutor
port, names = int(sys.argv[1]), open(sys.argv[2]).read().split()
def fetched(mine):
    total = 0
    with socket.create_connection(("127.0.0.1", port)) as line, line.makefile("rb") as held:
        for at in range(0, len(mine), 32):
            some = [name.encode() for name in mine[at:at + 32]]
            asked = (b"GET /%s HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" % name for name in some)
            line.sendall(b"".join(asked))
            for _ in some:
                assert b" 200 " in held.readline()
                while (head := held.readline()) != b"\\r\\n":
                    if head[:15].lower() == b"content-length:":
                        length = int(head[15:])
                total += len(held.read(length))
    return total
# A server closes a connection after so many requests.
parts = [names[at:at + 960] for at in range(0, len(names), 960)]
with ThreadPoolExecutor(4) as threads:
    print(sum(threads.map(fetched, parts)))
"""
"""Four connections with 32 requests on the way each, and no library."""

DISK_FLOOR = """\
import os, sys
tree, place = sys.argv[1:]
os.makedirs(place)
for program in os.listdir(tree):
    made = []
    os.mkdir(f"{place}/{program}")
    os.mkdir(f"{place}/{program}/module")
    for below in ("", "/module"):
        for found in os.scandir(f"{tree}/{program}{below}"):
            if found.is_file():
                with open(found.path, "rb") as file:
                    data = file.read()
                path = f"{place}/{program}{below}/{found.name}"
                made.append(os.open(path, os.O_WRONLY | os.O_CREAT))
                os.write(made[-1], data)
    made += [os.open(f"{place}/{program}{below}", os.O_RDONLY) for below in ("", "/module")]
    for handle in made:
        os.fsync(handle)
        os.close(handle)
"""
"""Reads each file of a cache and writes it again, durably."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def server(port: int, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends."""
    null = subprocess.DEVNULL
    with subprocess.Popen(words, stdout=null, stderr=null) as running:
        try:
            while running.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.05)
            else:
                raise WorkNotDoneError(f"{words[0]} does not start")
            yield running
        finally:
            running.terminate()


def read_cpu_seconds(pid: int) -> float:
    """Seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Served:
    """A remote cache, and builds that fetch everything from it."""

    def __init__(self, directory: Path, project: Path, programs: int, address: str) -> None:
        self._directory = directory
        self._project = project
        self._programs = programs
        self._address = address
        self._last: dict[str, object] = {}
        self.cache = directory / "fetched"

    @property
    def environment(self) -> dict[str, str]:
        return {"TILUSBUILD_REMOTE_CACHE": self._address, **os.environ}

    def send(self) -> Ran:
        ran = process((*_bench.TILUSBUILD, "cache", "push"), self._project, self.environment)
        if f"sent {self._programs} programs" not in ran.out.replace(",", ""):
            raise WorkNotDoneError(ran.out)
        return ran

    def clear(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        os.sync()

    def fetch(self) -> Ran:
        words = (*_bench.TILUSBUILD, "build", "--json", "--cache-dir", str(self.cache))
        ran = process(words, self._project, self.environment)
        self._last = json.loads(ran.out.splitlines()[-1])
        return ran

    def fetched_all(self) -> bool:
        remote = self._last["remote"]
        assert isinstance(remote, dict)
        library_count = len(list(self.cache.glob("programs/*/module/lib.so")))
        return (self._last["compiled"], remote["hits"], library_count) == (
            0,
            self._programs,
            self._programs,
        )

    @property
    def bytes(self) -> int:
        remote = self._last["remote"]
        assert isinstance(remote, dict)
        return int(remote["fetched_bytes"])


def plan(project: Path, directory: Path) -> Ran:
    """What a build does before it asks: an empty cache, and all programs rendered and hashed."""
    shutil.rmtree(directory / "planned", ignore_errors=True)
    words = (*_bench.TILUSBUILD, "plan", "--cache-dir", str(directory / "planned"))
    return process(words, project, {"TILUSBUILD_REMOTE_CACHE": "off"})


def script(directory: Path, name: str, code: str, *words: str) -> Callable[[], Ran]:
    """Return what runs a floor."""
    path = directory / f"{name}.py"
    path.write_text(code)
    return lambda: process((sys.executable, str(path), *words), directory)


def at_casd(directory: Path, project: Path, programs: int, rounds: int) -> dict[str, object]:
    casd = shutil.which("buildbox-casd", path=f"{_ROOT}/.remote:{os.environ['PATH']}")
    if casd is None:
        raise WorkNotDoneError("buildbox-casd is needed: make remote")
    port = free_port()
    words = [casd, "--bind", f"127.0.0.1:{port}", "--quota-high", "20G", str(directory / "casd")]
    with server(port, words) as running:
        served = Served(directory, project, programs, f"grpc://127.0.0.1:{port}")
        sent = served.send()
        print_upload(sent, programs)
        names = directory / "names"
        cache = project / ".cache"
        names.write_text(
            "\n".join(f"{k}/{n}" for k in ("programs", "include") for n in os.listdir(cache / k))
        )
        floor = script(directory, "grpc_floor", GRPC_FLOOR, f"127.0.0.1:{port}", str(names))
        arms = [
            Arm("tilusbuild build, from casd", served.fetch, served.fetched_all, served.clear),
            Arm("tilusbuild plan", lambda: plan(project, directory), lambda: True),
            Arm("the same messages, grpcio", floor, lambda: True),
            disk_arm(directory, project),
        ]
        before = read_cpu_seconds(running.pid)
        _bench.alternate(arms, rounds, warm_up=False)
        part = (read_cpu_seconds(running.pid) - before) / (rounds * programs)
        result = _bench.report(f"{programs:,} programs from buildbox-casd", arms, per=programs)
        per_second(arms, programs)
        print(f"  the server, in all of these: {part * 1e3:.2f} ms of CPU a program and round")
        loopback(served.bytes)
    served.clear()
    return result


def at_nginx(directory: Path, project: Path, programs: int, rounds: int) -> dict[str, object]:
    root = directory / "nginx"
    for name in ("held", "incoming"):
        (root / name).mkdir(parents=True)
    port = free_port()
    text = (_ROOT / "tests/remote/nginx.conf").read_text()
    text = text.replace("@ROOT@", str(root)).replace("@PORT@", str(port))
    # Its workers would be another user, who cannot enter here.
    user = "user root;\n" if os.getuid() == 0 else ""
    (root / "conf").write_text(f"{user}worker_processes 2;\n{text}")
    with server(port, ["nginx", "-c", str(root / "conf")]):
        served = Served(directory, project, programs, f"http://127.0.0.1:{port}")
        sent = served.send()
        print_upload(sent, programs)
        names = directory / "paths"
        held = root / "held"
        names.write_text("\n".join(f"ac/{name}" for name in os.listdir(held / "ac")))
        floor = script(directory, "http_floor", HTTP_FLOOR, str(port), str(names))
        arms = [
            Arm("tilusbuild build, from nginx", served.fetch, served.fetched_all, served.clear),
            Arm("the same files, plain sockets", floor, lambda: True),
        ]
        _bench.alternate(arms, rounds, warm_up=False)
        result = _bench.report(f"{programs:,} programs from nginx", arms, per=programs)
        per_second(arms, programs)
    served.clear()
    return result


def print_upload(sent: Ran, programs: int) -> None:
    milliseconds = 1e3 * sent.cpu / programs
    print(f"  sent: {programs / sent.wall:.0f} a second, {milliseconds:.2f} ms of CPU each")


def disk_arm(directory: Path, project: Path) -> Arm:
    destination = directory / "written"
    run = script(
        directory, "disk_floor", DISK_FLOOR, f"{project}/.cache/programs", str(destination)
    )
    return Arm("the same files, read and written", run, destination.exists,
               lambda: shutil.rmtree(destination, ignore_errors=True))  # fmt: skip


def per_second(arms: list[Arm], programs: int) -> None:
    for arm in arms:
        print(f"  {arm.name:34}{programs / min(arm.walls):10,.0f} programs a second at best")


def loopback(size: int) -> None:
    """As many bytes by one `sendfile` after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = subprocess.Popen(
            [sys.executable, "-c", _SENDER, str(listener.getsockname()[1]), str(size)]
        )
        line, _ = listener.accept()
        began, cpu, remaining, buffer = (
            time.perf_counter(),
            time.process_time(),
            size,
            bytearray(1 << 20),
        )
        with line:
            while got := line.recv_into(buffer):
                remaining -= got
        wall, used = time.perf_counter() - began, time.process_time() - cpu
        if sender.wait() or remaining:
            raise WorkNotDoneError("not all bytes came")
    took = f"{wall:.2f} s, the receiver's CPU {used:.2f} s"
    print(f"  {size / 1e6:.0f} MB over the loopback by sendfile: {took}")


_SENDER = """\
import os, socket, sys, tempfile
port, size = map(int, sys.argv[1:])
with tempfile.TemporaryFile() as file, socket.create_connection(("127.0.0.1", port)) as line:
    file.write(bytes(min(size, 64 << 20)))
    file.flush()
    while size:
        size -= os.sendfile(line.fileno(), file.fileno(), 0, min(size, 64 << 20))
"""


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=10_000)
    programs = 40 if asked.small else asked.programs
    rounds = 1 if asked.small else asked.rounds
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        one, many = directory / "one", directory / "many"
        _projects.project(one, 2, nvcc, scripts=1)
        _projects.build(one)
        _projects.project(many, programs, nvcc)
        _projects.fill(many, sync=False, like=next((one / ".cache/programs").iterdir()))
        results = [at_casd(directory, many, programs, rounds)]
        if shutil.which("nginx") is not None:
            results.append(at_nginx(directory, many, programs, rounds))
        else:
            print("  nginx is not installed: no HTTP")
    _bench.finish(asked, results)


if __name__ == "__main__":
    main()
