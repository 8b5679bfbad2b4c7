"""A runner, its commands, and processes to look for."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.processes import Marker
from tilusbuild.process.base import Command


@pytest.fixture
def sh() -> Callable[..., Command]:
    """Makes a command of a shell script."""

    def make(script: str, env: dict[str, str] | None = None, **options: Any) -> Command:
        env = {"PATH": "/usr/bin:/bin", **(env or {})}
        return Command(("sh", "-c", script), cwd="/", env=env, **options)

    return make


@pytest.fixture
def marker() -> Iterator[Marker]:
    new_marker = Marker()
    yield new_marker
    for pid in new_marker.sleepers():
        os.kill(pid, 9)
