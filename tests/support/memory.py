"""Directories of tests in memory, if it can be: a cache syncs a lot, and a busy disk is slow."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("memory")
        return
    with tempfile.TemporaryDirectory(prefix="tilusbuild-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)
