"""Whatever happens to a server and to the line to it, at whatever moment: every program is answered
once, at most one warning is given, and only right bytes stay. One oracle over random histories."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

from support.casd import Casd
from support.http_cache import Faults, HttpCache, line_to
from support.project import NewProject
from support.remote_client import Asked, by_keys, fill_with
from support.trees import published

SEEDS = int(os.environ.get("REMOTE_SEEDS", "6"))
Origin = tuple[Path, dict[str, bytes]]
Ask = Callable[..., Asked]


@dataclass
class Served:
    """A server that has all programs, and how to put them back."""

    scheme: str
    port: int
    fill: Callable[[], None]
    evict: Callable[[Random], None]
    casd: Casd | None = None

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory, origin: Origin) -> Iterator[Served]:
    server = Casd(tmp_path_factory.mktemp("casd"))

    def fill() -> None:
        fill_with(server.address, by_keys(*origin))

    def evict(random: Random) -> None:
        for path in sorted((server.directory / "cas" / "objects").rglob("*")):
            if path.is_file() and random.random() < 0.5:
                path.unlink()

    fill()
    yield Served("grpc", server.port, fill, evict, server)
    server.kill()


@pytest.fixture
def web(held: HttpCache) -> Served:
    backup = dict(held.held)

    def evict(random: Random) -> None:
        for path in list(held.held):
            if random.random() < 0.5:
                del held.held[path]

    return Served("http", held.port, lambda: held.held.update(backup), evict)


@pytest.fixture(params=["http", "grpc"])
def served(request: pytest.FixtureRequest) -> Served:
    server: Served = request.getfixturevalue("casd" if request.param == "grpc" else "web")
    return server


def same_bytes(result: Asked, origin: Origin) -> None:
    expected = published(origin[0])
    for path, data in published(result.cache_path).items():
        assert expected[path] == data


def drawn(random: Random) -> Faults:
    """A line with some of the faults that one may have."""
    faults = Faults(delay=random.choice([0, 0, 0.02, 0.2]), loss=random.choice([0, 0.02, 0.2]))
    match random.randrange(7):
        case 0:
            faults.cut_after, faults.cuts_left = random.randrange(1, 40_000), random.choice([1, 99])
        case 1:
            faults.silent_after = random.randrange(40_000)
        case 2:
            faults.bytes_per_second = 10.0 ** random.randrange(2, 6)
        case 3:
            faults.flip_every = random.randrange(500, 50_000)
    return faults


def events_of(served: Served, random: Random) -> list[Callable[[], None]]:
    """What may happen to the server itself."""
    actions: list[Callable[[], None]] = [lambda: served.evict(random)]
    if (casd := served.casd) is not None:
        actions += [casd.kill, casd.restart, casd.stop]
    return actions


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history(seed: int, served: Served, ask: Ask, origin: Origin) -> None:
    random = Random(seed)
    faults = drawn(random)
    what = random.choice([None, *events_of(served, random)])
    when = random.randrange(40_000)
    over = threading.Event()
    with line_to(served.port, faults) as line:

        def happen() -> None:
            while line.passed < when and not over.is_set():
                time.sleep(0.001)
            if what is not None:
                what()

        happening = threading.Thread(target=happen)
        happening.start()
        try:
            result = ask(line.at(served.scheme))
        finally:
            over.set()
            happening.join()
            restore(served)
    if not faults.flip_every:
        assert len(result.warnings) <= 1, result.warnings
    assert result.seconds < 40
    same_bytes(result, origin)


def restore(served: Served) -> None:
    if served.casd is not None:
        served.casd.restart()
    served.fill()


def test_a_server_that_is_killed_while_a_build_sends(new_user: NewProject, tmp_path: Path) -> None:
    server = Casd(tmp_path / "casd")
    with line_to(server.port) as line:
        user = new_user(line.at("grpc"), WRITE="1")
        done = threading.Event()

        def kill() -> None:
            while line.passed < 400 and not done.is_set():
                time.sleep(0.001)
            server.restart()

        killing = threading.Thread(target=kill)
        killing.start()
        builds_alone(user)
        done.set()
        killing.join()
    other = new_user(server.address)
    assert other.build()["exit_status"] == 0
    assert published(user.cache) == published(other.cache)
    server.kill()


def builds_alone(user: Any) -> list[str]:
    """A build ends well, with all programs compiled here; its warnings, of which there is at most
    one."""
    ran = user.run("build", "--json")
    warnings = [event["message"] for event in ran.events if event["event"] == "warning"]
    assert (ran.summary["attempts"], ran.summary["exit_status"]) == (2, 0)
    assert len(warnings) <= 1, warnings
    user.run("cache", "verify")
    return warnings
