"""Remembered digests: read once, and never a stale answer, whatever the clock does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.digest import sha256_bytes
from tilusbuild.engine.digests import TICK_NS, RememberedDigests


@pytest.fixture
def later(tmp_path: Path) -> Callable[[], int]:
    """A clock well after every file of the test was written."""
    return lambda: max(os.stat(p).st_ctime_ns for p in tmp_path.rglob("*")) + 10 * TICK_NS


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "tile.cuh"
    path.write_bytes(b"one")
    return path


def state(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "state")


def test_a_file_is_read_once_over_several_runs(
    tmp_path: Path, header: Path, later: Callable[[], int]
) -> None:
    for expected_reads in (1, 0, 0):
        memory = RememberedDigests(state(tmp_path), now=later)
        assert memory.digest(header) == sha256_bytes(b"one")
        assert memory.digest(header) == sha256_bytes(b"one")
        memory.save()
        assert memory.reads == expected_reads


def test_an_edit_that_keeps_size_and_mtime_is_seen(
    tmp_path: Path, header: Path, later: Callable[[], int]
) -> None:
    memory = RememberedDigests(state(tmp_path), now=later)
    memory.digest(header)
    before = os.stat(header)
    replacement = tmp_path / "new"
    replacement.write_bytes(b"two")
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(replacement, header)
    assert memory.digest(header) == sha256_bytes(b"two")


def test_a_file_as_young_as_the_tick_is_read_again_every_time(header: Path) -> None:
    written = os.stat(header).st_ctime_ns
    for age, reads in ((0, 3), (TICK_NS, 3), (TICK_NS + 1, 1)):
        memory = RememberedDigests(None, now=lambda age=age: written + age)  # type: ignore[misc]
        for _ in range(3):
            memory.digest(header)
        assert memory.reads == reads


def test_a_file_from_the_future_is_read_every_time(header: Path, later: Callable[[], int]) -> None:
    os.utime(header, ns=(0, later() + 10**18))
    memory = RememberedDigests(None, now=later)
    memory.digest(header)
    memory.digest(header)
    assert memory.reads == 2


def test_a_restored_old_file_is_seen_by_its_ctime(header: Path, later: Callable[[], int]) -> None:
    memory = RememberedDigests(None, now=later)
    memory.digest(header)
    header.write_bytes(b"two")
    os.utime(header, ns=(0, 0))
    assert memory.digest(header) == sha256_bytes(b"two")


def test_a_forged_record_of_a_wrong_shape_is_ignored(
    tmp_path: Path, header: Path, later: Callable[[], int]
) -> None:
    memory = RememberedDigests(state(tmp_path), now=later)
    for record in (None, 1, "x", [], [1, 2, 3, 4], [1, 2, 3, 4, 5], {"a": 1}):
        memory._file.put(str(header), record)
        assert memory.digest(header) == sha256_bytes(b"one")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RememberedDigests(None).digest(tmp_path / "missing")
