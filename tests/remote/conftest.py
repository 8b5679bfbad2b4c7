"""Two users of one project, each with a path and a cache of their own, and a server between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.http_cache import HttpCache, http_cache
from support.project import Project, needs_cxx
from support.scale import TEMPLATE, manifest

pytest.importorskip("google.protobuf", reason="needs tilusbuild[remote]")

NewUser = Callable[..., Project]


@pytest.fixture
def server() -> Iterator[HttpCache]:
    with http_cache() as cache:
        yield cache


@pytest.fixture
def new_user(tmp_path: Path) -> NewUser:
    """new_user(address, NAME=VALUE) makes the project once more, for a user who has that remote."""
    needs_cxx()
    made: list[Path] = []

    def make(address: str, **remote: str) -> Project:
        environment = {f"TILUSBUILD_REMOTE_{name}": value for name, value in remote.items()}
        directory = tmp_path / f"{'deep/' * len(made)}user-{len(made)}"
        home = tmp_path / f"home-{len(made)}"
        made.append(directory)
        # A machine that is very busy would compile what it could fetch.
        environment.setdefault("TILUSBUILD_REMOTE_PATIENCE", "100s")
        environment |= {"TILUSBUILD_REMOTE_CACHE": address, "HOME": str(home)}
        files = {"tilus.toml": manifest(), "kernels/scale.cu.j2": TEMPLATE}
        return Project(directory, environment).write_all(files)

    return make
