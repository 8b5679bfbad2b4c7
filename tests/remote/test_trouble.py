"""A remote in trouble: each program is answered, at most one warning, and only right bytes stay.

Here the client is called as the engine calls it; `test_sharing` has whole builds.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Timer
from typing import Any

import pytest

from support.http_cache import Faults, HttpCache, line_to
from support.remote_client import Asked, ask_for
from support.trees import published
from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.index import list_programs
from tilusbuild.cache.tree import Tree
from tilusbuild.engine import events
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.remote.client import RemoteCache
from tilusbuild.remote.settings import make_settings

Ask = Callable[..., Asked]


@pytest.mark.parametrize("cuts", [1, 99])
def test_a_line_that_is_cut(cuts: int, held: HttpCache, ask: Ask) -> None:
    """What else a line may do, and that only right bytes come of it, is in test_histories."""
    with line_to(held.port, Faults(cut_after=700, cuts_left=cuts)) as line:
        result = ask(line.address)
    assert len(result.answers) == 4
    if cuts == 1:
        assert (result.hits, result.warnings) == (4, [])
    else:
        assert len(result.warnings) == 1
        assert "the rest of this build does not use it" in result.warnings[0]


@pytest.mark.parametrize("status", [401, 503, 301])
def test_a_server_that_refuses(status: int, held: HttpCache, ask: Ask) -> None:
    held.status = status
    result = ask(held.address)
    assert (result.hits, len(result.warnings)) == (0, 1)
    assert str(status) in result.warnings[0]
    assert ("TILUSBUILD_REMOTE_HEADERS" in result.warnings[0]) == (status == 401)


@pytest.fixture
def unreachable() -> Iterator[str]:
    """An address that takes no connection: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(8)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"
        for connection in waiting:
            connection.close()


def test_an_unreachable_server_costs_one_connect_timeout(unreachable: str, ask: Ask) -> None:
    result = ask(unreachable)
    assert (result.hits, len(result.warnings)) == (0, 1)
    assert "no answer in time" in result.warnings[0]
    assert result.seconds < 5
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = ask(f"http://127.0.0.1:{port}")  # where no process listens any more
    assert (result.hits, len(result.warnings)) == (0, 1)


def test_a_directory_that_is_not_there_has_nothing(ask: Ask, tmp_path: Path) -> None:
    result = ask(f"file://{tmp_path}/nowhere")
    assert (result.hits, result.warnings, result.summary.misses) == (0, [], 4)


def test_no_more_is_read_than_an_entry_has(held: HttpCache, ask: Ask) -> None:
    for path in held.held:
        held.held[path] += b"x" * (1 << 20)
    result = ask(held.address)
    assert (result.hits, result.summary.refused) == (0, 4)
    assert result.summary.fetched_bytes < 2 << 20


def test_a_directory_that_programs_share_is_asked_for_once(held: HttpCache, ask: Ask) -> None:
    """Each has a thread of its own, and all want the launcher at the same moment."""
    assert ask(held.address).hits == 4
    asked = [path for method, path, _ in held.requests if method == "GET"]
    assert len(asked) == len(set(asked)) == 5


def test_three_refused_programs_are_enough(held: HttpCache, ask: Ask) -> None:
    for path in held.held:
        held.held[path] = b"\xff" * 100
    result = ask(held.address)
    assert result.hits == 0
    assert sum("refused scale/" in warning for warning in result.warnings) == 3


@pytest.fixture
def helper(tmp_path: Path) -> Callable[[str], str]:
    """helper(script) is the path of a credential helper."""

    def make(script: str) -> str:
        path = tmp_path / "helper"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_a_credential_helper_is_asked_once(held, ask, helper, tmp_path) -> None:
    answer = '{"headers": {"Authorization": ["Bearer fresh"]}, "expires": "2999-01-01T00:00:00Z"}'
    words = helper(f"cat >> {tmp_path}/asked\necho '{answer}'")
    assert ask(held.address, credential_helper=words).hits == 4
    assert (tmp_path / "asked").read_text() == f'{{"uri": "{held.address}"}}'
    assert held.requests[0][2]["Authorization"] == "Bearer fresh"
    held.requests.clear()
    ask(held.address, headers={"Authorization": "Bearer secret"})
    assert {headers["Authorization"] for _, _, headers in held.requests} == {"Bearer secret"}


@pytest.mark.parametrize("script", ["exit 1", "echo no"])
def test_a_helper_that_fails_is_one_warning(script, held, ask, helper) -> None:
    result = ask(held.address, credential_helper=helper(script))
    assert (result.hits, len(result.warnings)) == (0, 1)
    assert "credential helper" in result.warnings[0]


def test_uploads_have_a_deadline(server: HttpCache, origin: Any, tmp_path: Path) -> None:
    cache = Tree(str(origin[0]))
    event_queue: SimpleQueue[Any] = SimpleQueue()
    with line_to(server.port, Faults(delay=0.5)) as line, BuildStore(cache) as store:
        settings = make_settings(line.address, "test", write=True, send_timeout=1.0)
        client = RemoteCache(settings, store, cache, event_queue.put)
        for program in list_programs(cache):
            client.record_built(program, 1.0)
        while client.is_busy():
            time.sleep(0.05)
        client.close()
        summary = client.make_summary()
    assert (summary.sent, summary.unsent) == (0, 4)
    assert "not everything was sent in 1 s" in event_queue.get_nowait().message


def test_two_troubles_are_one_warning(server: HttpCache, origin: Any, tmp_path: Path) -> None:
    cache = Tree(str(origin[0]))
    event_queue: SimpleQueue[Any] = SimpleQueue()
    server.full = True
    with BuildStore(cache) as store:
        settings = make_settings(server.address, "test", write=True)
        client = RemoteCache(settings, store, cache, event_queue.put)
        client.record_built(next(list_programs(cache)), 1.0)
        while client.is_busy():
            time.sleep(0.05)
        server.status = 403
        client.request_programs({"0" * 64: "scale/0 cpu"})
        while not isinstance(message := event_queue.get(timeout=60), RemoteAnswered):
            if isinstance(message, events.Warned):
                assert "status 507" in message.message
        client.close()
    assert not any(isinstance(event_queue.get(), events.Warned) for _ in range(event_queue.qsize()))


def test_a_lock_that_is_held_for_a_moment_costs_no_hit(held, origin, tmp_path) -> None:
    """Locks are few: another program may have the one that is needed while it is published."""
    programs = sorted(path.name for path in (origin[0] / "programs").iterdir())
    cache = Tree(str(tmp_path / "cache"))
    with ExitStack() as locks:
        assert locks.enter_context(cache.lock_program(programs[0], wait=False))
        Timer(0.1, locks.pop_all().close).start()
        result = ask_for(programs, tmp_path / "cache", held.address)
    assert (result.hits, result.warnings) == (4, [])
    assert published(tmp_path / "cache").items() <= published(origin[0]).items()
