"""Digests remembered between runs: read once, written once, and never a stale answer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tilusbuild.state import stat_digests as digests
from tilusbuild.state.digests import RememberedDigests
from tilusbuild.state.hashing import sha256_bytes


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    found: list[str] = []
    real = digests.sha256_file

    def counted(path: str) -> str:
        found.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(digests, "sha256_file", counted)
    # As if long ago were clearly past: the rule itself is tested beside it.
    monkeypatch.setattr(digests, "TICK_NS", -(10**18))
    return found


@pytest.fixture
def header(tmp_path: Path) -> str:
    path = tmp_path / "include" / "tile.cuh"
    path.parent.mkdir()
    path.write_bytes(b"one")
    return str(path)


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "cache" / "state")


def test_a_file_is_read_once_over_several_runs(reads: list[str], header: str, state: str) -> None:
    for _ in range(3):
        memory = RememberedDigests(state)
        assert memory.digest(header) == sha256_bytes(b"one")
        memory.save()
    assert reads == ["tile.cuh"]


def test_trees_and_answers_last_too(reads: list[str], header: str, state: str) -> None:
    first, second = (RememberedDigests(state) for _ in range(2))
    folder = os.path.dirname(header)
    digest = first.tree(folder, "headers", lambda name: True)
    first.record("nvcc abc\nversion", "13.0.88")
    first.save()
    second = RememberedDigests(state)
    assert second.tree(folder, "headers", lambda name: True) == digest
    assert second.recall("nvcc abc\nversion") == "13.0.88"
    assert reads == ["tile.cuh"]


def test_an_edit_is_seen_by_the_next_run(reads: list[str], header: str, state: str) -> None:
    memory = RememberedDigests(state)
    memory.digest(header)
    memory.save()
    replacement = header + ".new"
    Path(replacement).write_bytes(b"two")
    os.utime(replacement, ns=(0, os.stat(header).st_mtime_ns))
    os.replace(replacement, header)
    assert RememberedDigests(state).digest(header) == sha256_bytes(b"two")


def test_nothing_new_writes_nothing(reads: list[str], header: str, state: str) -> None:
    memory = RememberedDigests(state)
    memory.digest(header)
    memory.save()
    before = os.stat(f"{state}/digests")
    again = RememberedDigests(state)
    again.digest(header)
    again.save()
    assert os.stat(f"{state}/digests") == before


@pytest.mark.parametrize("record", [None, 1, "x", [], ["s", 1, 2], {"a": 1}, ["s", "1", 2, "d"]])
def test_a_record_of_a_wrong_shape_is_ignored(header: str, state: str, record: object) -> None:
    memory = RememberedDigests(state)
    memory._file.put(f"files:{header}", record)
    memory.save()
    assert RememberedDigests(state).digest(header) == sha256_bytes(b"one")


def test_what_is_gone_is_forgotten_when_the_file_is_rewritten(header: str, state: str) -> None:
    memory = RememberedDigests(state)
    memory.digest(header)
    memory.tree(os.path.dirname(header), "all", lambda name: True)
    memory.record("key", "text")
    os.unlink(header)
    os.rmdir(os.path.dirname(header))
    memory.save()
    kept = dict(RememberedDigests(state)._file.items())
    assert kept == {"answers:key": "text"}


def test_several_threads_share_one(reads: list[str], tmp_path: Path, state: str) -> None:
    memory = RememberedDigests(state)
    paths = [tmp_path / f"{number}.cuh" for number in range(20)]
    for path in paths:
        path.write_text(path.name)
    threads = [
        threading.Thread(target=lambda: [memory.digest(str(path)) for path in paths])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reads) == sorted(path.name for path in paths)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RememberedDigests(None).digest(str(tmp_path / "missing"))
