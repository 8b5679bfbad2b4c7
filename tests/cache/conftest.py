"""A cache in memory, and what to publish in it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cache_sample import Sample
from tilusbuild.cache.tree import Tree


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where that can be: a cache syncs a lot, and a busy disk is slow."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="tilusbuild-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def cache(tmp_path: Path) -> Tree:
    return Tree(str(tmp_path / "cache"))


@pytest.fixture
def sample(cache: Tree) -> Sample:
    return Sample(cache)
