"""Users of one remote cache, and an executor before a double."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remote_fixtures import ask, farm, held, new_user, origin, server  # noqa: F401


@pytest.fixture
def executed(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """executed(timeout=…, **double) is an executor before a double, ready to run."""
    pytest.importorskip("grpc", reason="needs tilusbuild[remote]")
    from support.executed import executors

    with executors(tmp_path) as make:
        yield make
