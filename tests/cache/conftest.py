"""A cache in memory, and what to publish in it."""

from pathlib import Path

import pytest

from support.cache_sample import Sample
from support.memory import memory, tmp_path
from tilusbuild.cache.tree import Tree

__all__ = ["memory", "tmp_path"]


@pytest.fixture
def cache(tmp_path: Path) -> Tree:
    return Tree(str(tmp_path / "cache"))


@pytest.fixture
def sample(cache: Tree) -> Sample:
    return Sample(cache)
