"""The client of a remote cache, called as the engine calls it: every program is answered once, and
whatever a server does, only whole entries stay."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.garbage import list_abandoned
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.engine import events
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.remote.archive import include_key, key_digest, program_key
from tilusbuild.remote.backend import open_backend
from tilusbuild.remote.client import RemoteCache
from tilusbuild.remote.settings import make_settings


@dataclass
class Asked:
    """How it went."""

    answers: dict[str, object]
    warnings: list[str]
    seconds: float
    cache: Tree
    summary: events.RemoteSummary

    @property
    def cache_path(self) -> Path:
        return Path(self.cache.root)

    @property
    def hits(self) -> int:
        return sum(answer is not None for answer in self.answers.values())


def fill_with(address: str, held: Mapping[str, bytes]) -> None:
    """Send files to a server by their keys."""
    backend = open_backend(make_settings(address, "test"))
    for key, data in held.items():
        backend.send_file(key, data)
    backend.close()


def by_keys(cache: Path, held: Mapping[str, bytes]) -> dict[str, bytes]:
    """What an `HttpCache` has, by keys: that of each program and include directory of a cache."""
    keys = [program_key(path.name) for path in (cache / "programs").iterdir()]
    keys += [include_key(path.name) for path in (cache / "include").iterdir()]
    return {key: held[f"/ac/{key_digest(key)}"] for key in keys}


def ask_for(programs: Sequence[str], root: Path, address: str, **settings: Any) -> Asked:
    """Fetch programs into an empty cache."""
    cache = Tree(str(root))
    event_queue: SimpleQueue[Any] = SimpleQueue()
    answers: dict[str, object] = {}
    warnings: list[str] = []
    started = time.monotonic()
    with BuildStore(cache) as store:
        default_settings = make_settings(address, "test", connect_timeout=1.0, timeout=1.0)
        client = RemoteCache(replace(default_settings, **settings), store, cache, event_queue.put)
        expected = client.request_programs(dict.fromkeys(programs, "scale/0 cpu"))
        while len(answers) < len(expected):
            match event_queue.get(timeout=60):
                case RemoteAnswered(program, answer):
                    assert program not in answers
                    answers[program] = answer
                case events.Warned(message):
                    warnings.append(message)
        seconds = time.monotonic() - started
        client.close()
    assert verify_cache(cache) == []
    assert list_abandoned(cache) == []
    return Asked(answers, warnings, seconds, cache, client.make_summary())
