"""A remote cache in trouble: does the build end well, with the right bytes, and after how long?

A project is built here, without any remote; then against a server that has all of it and that is
killed, stopped, started again, filled, or robbed of its blobs half way, and over a line of 200 ms
that loses 2 % of its packets. Each build begins with nothing. It must end with status 0, with the
bytes of the local build, and with one warning at most.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import _bench
import _projects
from _bench import WorkNotDoneError

sys.path.insert(0, str(_bench.ROOT / "tests"))

from support.casd import free_port, listens
from support.http_cache import Faults, line_to
from support.trees import published

_TINY = "2m"
"""Of a file system that is full soon."""


class Server(ABC):
    """A server that can be killed and started again with what it holds below `directory`."""

    scheme = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.start()

    @abstractmethod
    def words(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def blobs(self) -> list[Path]:
        """Return the files of the blobs that it holds."""

    def start(self) -> None:
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.words(), stdout=null, stderr=null, start_new_session=True
        )
        while not listens(self.port):
            if self.process.poll() is not None:
                raise WorkNotDoneError(f"{self.words()[0]} does not start")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to it and all that it started."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def evict(self) -> None:
        """Lose every second blob."""
        for path in self.blobs()[::2]:
            path.unlink(missing_ok=True)


class Casd(Server):
    scheme = "grpc"

    def words(self) -> list[str]:
        path = f"{_bench.ROOT}/.remote:{os.environ['PATH']}"
        casd = shutil.which("buildbox-casd", path=path)
        if casd is None:
            raise WorkNotDoneError("buildbox-casd is needed: make remote")
        bind = f"127.0.0.1:{self.port}"
        return [casd, "--bind", bind, "--quota-high", "4G", str(self.directory)]

    def blobs(self) -> list[Path]:
        return sorted(
            path for path in (self.directory / "cas/objects").rglob("*") if path.is_file()
        )


class Nginx(Server):
    scheme = "http"

    def words(self) -> list[str]:
        for name in ("held/ac", "incoming"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        text = (_bench.ROOT / "tests/remote/nginx.conf").read_text()
        text = text.replace("@ROOT@", str(self.directory)).replace("@PORT@", str(self.port))
        # Its workers would be another user, who cannot enter here.
        text = ("user root;\n" if os.geteuid() == 0 else "") + text
        (self.directory / "conf").write_text(text)
        return ["nginx", "-c", str(self.directory / "conf")]

    def blobs(self) -> list[Path]:
        return sorted((self.directory / "held/ac").iterdir())


@dataclass(frozen=True)
class Ended:
    """A build."""

    wall: float
    cpu: float
    status: int
    compiled: int
    fetched: int
    warnings: tuple[str, ...]
    right: bool


class Builds:
    """Of one project, each in a cache of its own."""

    def __init__(self, project: Path, directory: Path) -> None:
        self._project = project
        self._directory = directory
        self._number = 0
        self._local: dict[str, bytes | str] = {}

    def local(self) -> Ended:
        ended, cache = self._build({"TILUSBUILD_REMOTE_CACHE": "off"})
        self._local = self._local or published(cache)
        return ended

    def fill(self, address: str) -> None:
        self.against(address, write=True)

    def against(self, address: str, *, write: bool = False) -> Ended:
        wanted = {"TILUSBUILD_REMOTE_CACHE": address}
        ended, cache = self._build(wanted | ({"TILUSBUILD_REMOTE_WRITE": "1"} if write else {}))
        shutil.rmtree(cache)
        return ended

    def _build(self, environment: dict[str, str]) -> tuple[Ended, Path]:
        self._number += 1
        cache = self._directory / f"cache-{self._number}"
        words = (*_bench.TILUSBUILD, "build", "--json", "--cache-dir", str(cache))
        began, before = time.monotonic(), os.times()
        ran = subprocess.run(
            words,
            cwd=self._project,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        wall, after = time.monotonic() - began, os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])  # of children that have ended
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        summary = events[-1]
        warnings = tuple(event["message"] for event in events if event["event"] == "warning")
        hits = (summary.get("remote") or {}).get("hits", 0)
        right = not self._local or published(cache) == self._local
        return Ended(wall, cpu, ran.returncode, summary["compiled"], hits, warnings, right), cache


@contextmanager
def once(ready: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
    """Do something in the background as soon as it is time, if that comes before the block ends."""
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.001):
            if ready():
                act()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def half_way(builds: Builds, server: Server, size: int, act: Callable[[], None]) -> Ended:
    """Build, and do something to the server when half of the bytes have passed."""
    with line_to(server.port) as line, once(lambda: line.passed > size // 2, act):
        return builds.against(line.at(server.scheme))


def slow(builds: Builds, server: Server) -> Ended:
    with line_to(server.port, Faults(delay=0.2, loss=0.02)) as line:
        return builds.against(line.at(server.scheme))


@contextmanager
def tiny(directory: Path) -> Iterator[Path | None]:
    """A file system of 2 MB; None where none can be mounted."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_TINY}", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)


def full(builds: Builds, kind: type[Server], directory: Path) -> Ended | None:
    """Send everything to a server whose disk is full before a third of it is there."""
    with tiny(directory) as small_disk:
        if small_disk is None:
            return None
        server = kind(small_disk / "held")
        try:
            return builds.against(f"{server.scheme}://127.0.0.1:{server.port}", write=True)
        finally:
            server.kill()


def troubles(builds: Builds, kind: type[Server], directory: Path) -> Generator[tuple[str, Ended]]:
    """Yield each trouble of one kind of server, and how the build ended."""
    server = kind(directory / "server")
    address = f"{server.scheme}://127.0.0.1:{server.port}"
    try:
        builds.fill(address)
        with line_to(server.port) as line:
            yield "none", builds.against(line.at(server.scheme))
            size = line.passed
        yield "200 ms, 2 % lost", slow(builds, server)
        yield "killed half way", half_way(builds, server, size, server.kill)
        server.start()
        yield "started again half way", half_way(builds, server, size, server.restart)
        stop, go_on = (lambda number=n: server.signal(number) for n in _STOP_AND_GO)
        yield "stopped half way", half_way(builds, server, size, stop)
        go_on()
        yield "blobs evicted half way", half_way(builds, server, size, server.evict)
        server.signal(signal.SIGSTOP)
        yield "stopped all the while", builds.against(address)
        server.kill()
        yield "not there", builds.against(address)
    finally:
        if server.process.poll() is None:
            server.kill()
    ended = full(builds, kind, directory / "tiny")
    if ended is not None:
        yield "its disk is full, writing", ended


_STOP_AND_GO = (signal.SIGSTOP, signal.SIGCONT)


def judged(ended: Ended) -> str:
    """Return what is wrong, or ok."""
    wrong = [f"status {ended.status}"] if ended.status else []
    wrong += [] if ended.right else ["other bytes"]
    wrong += [f"{len(ended.warnings)} warnings"] if len(ended.warnings) > 1 else []
    return ", ".join(wrong) or "ok"


def show(server: str, trouble: str, ended: Ended, local: Ended) -> None:
    by = f"{ended.wall / local.wall:10.2f}{ended.cpu / local.cpu:10.2f}"
    counts = (ended.fetched, ended.compiled, len(ended.warnings))
    print(
        f"  {server:7}{trouble:28}{judged(ended):10}{ended.wall:8.1f} s{by}"
        + "".join(f"{count:10}" for count in counts),
        flush=True,
    )


def main() -> None:
    asked = _bench.arguments(__doc__, programs=100)
    programs = 4 if asked.small else asked.programs
    if asked.small:
        hasty = dict.fromkeys(("PATIENCE", "CONNECT_TIMEOUT"), "1s")
        os.environ |= {f"TILUSBUILD_REMOTE_{name}": value for name, value in hasty.items()}
    results = []
    with _bench.workshop() as directory:
        nvcc = _projects.fake_toolkit(directory / "toolkit")
        project = directory / "project"
        _projects.project(project, programs, nvcc, scripts=2)
        builds = Builds(project, directory)
        local = min((builds.local() for _ in range(2)), key=lambda each: each.wall)
        print(f"\na remote cache in trouble, {programs} programs; built here in {local.wall:.1f} s")
        heads = ("elapsed", "by here", "of CPU", "fetched", "compiled", "warnings")
        print(f"  {'':45}" + "".join(f"{head:>10}" for head in heads))
        kinds: list[type[Server]] = [Casd]
        if shutil.which("nginx") and not asked.small:
            kinds.append(Nginx)
        for kind in kinds:
            name = kind.__name__.lower()
            with closing(troubles(builds, kind, directory / name)) as tried:
                for trouble, ended in islice(tried, 3 if asked.small else None):
                    show(name, trouble, ended, local)
                    for warning in ended.warnings:
                        print(f"         {warning[:110]}")
                    results.append({"server": name, "trouble": trouble, "wall": ended.wall,
                                    "verdict": judged(ended)})  # fmt: skip
        print(f"  {'':7}{'built here again':28}{'':10}{builds.local().wall:8.1f} s")
    _bench.finish(asked, results)
    if wrong := [result for result in results if result["verdict"] != "ok"]:
        raise WorkNotDoneError(str(wrong))


if __name__ == "__main__":
    main()
