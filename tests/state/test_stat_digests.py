"""Remembered digests: used when nothing can have changed, and only then."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tilusbuild.state.hashing import sha256_bytes
from tilusbuild.state.stat_digests import TICK_NS, Record
from tilusbuild.toolchain import StatMemory

LATER = 3_600_000_000_000


def everything(_: str) -> bool:
    return True


def memory_of(path: Path, *, after_change: int) -> StatMemory:
    """A memory whose clock stands `after_change` ns after the file's last change."""
    status = path.stat()
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    return StatMemory(now=lambda: newest + after_change)


def poison(memory: StatMemory, path: Path) -> None:
    """Let the memory be wrong, so that a test sees whether it was asked."""
    known = memory.files[str(path)]
    memory.files[str(path)] = known._replace(digest="remembered")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tool"
    path.write_bytes(b"one")
    return path


def test_a_file_that_has_not_changed_is_not_read_again(file: Path) -> None:
    memory = memory_of(file, after_change=LATER)
    assert memory.digest(str(file)) == sha256_bytes(b"one")
    poison(memory, file)
    assert memory.digest(str(file)) == "remembered"


def test_a_file_hashed_within_the_tick_of_its_change_is_read_again(file: Path) -> None:
    memory = memory_of(file, after_change=TICK_NS)
    memory.digest(str(file))
    poison(memory, file)
    assert memory.digest(str(file)) == sha256_bytes(b"one")


def test_a_file_from_the_future_is_read_every_time(file: Path) -> None:
    os.utime(file, ns=(4_102_444_800 * 10**9,) * 2)
    memory = StatMemory()
    memory.digest(str(file))
    poison(memory, file)
    assert memory.digest(str(file)) == sha256_bytes(b"one")


def test_the_same_size_and_mtime_do_not_hide_a_change(file: Path) -> None:
    memory = memory_of(file, after_change=LATER)
    memory.digest(str(file))
    times = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert memory.digest(str(file)) == sha256_bytes(b"two")


def test_a_file_put_in_its_place_is_another(file: Path) -> None:
    memory = memory_of(file, after_change=LATER)
    memory.digest(str(file))
    times = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(file)
    assert memory.digest(str(file)) == sha256_bytes(b"two")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StatMemory().digest(str(tmp_path / "none"))


def test_a_tree_is_its_names_and_contents_wherever_it_is(tmp_path: Path) -> None:
    memory = StatMemory()
    for name in ("here", "there"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "a.h").write_text("a")
        (tmp_path / name / "sub/b.h").write_text("b")
    here, there = (memory.tree(str(tmp_path / n), "all", everything) for n in ("here", "there"))
    assert here == there
    (tmp_path / "there/a.h").rename(tmp_path / "there/c.h")
    assert memory.tree(str(tmp_path / "there"), "all", everything) != here


def test_a_tree_notices_a_rewrite_in_place(tmp_path: Path) -> None:
    memory = StatMemory(now=lambda: 2**62)
    (tmp_path / "a.h").write_text("one")
    before = memory.tree(str(tmp_path), "all", everything)
    (tmp_path / "a.h").write_text("two")
    assert memory.tree(str(tmp_path), "all", everything) != before
    (tmp_path / "a.h").write_text("one")
    assert memory.tree(str(tmp_path), "all", everything) == before


def test_a_tree_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    memory = StatMemory(now=lambda: 2**62)
    (tmp_path / "a.h").write_text("one")
    memory.tree(str(tmp_path), "all", everything)
    (key,) = memory.trees
    memory.trees[key] = memory.trees[key]._replace(digest="remembered")
    assert memory.tree(str(tmp_path), "all", everything) == "remembered"
    assert memory.tree(str(tmp_path), "other", everything) != "remembered"


def test_what_is_not_selected_is_not_in_a_tree(tmp_path: Path) -> None:
    memory = StatMemory()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.h").write_text("a")
    before = memory.tree(str(tmp_path), "in", lambda name: name.startswith("in/"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b.h").write_text("b")
    (tmp_path / "c.h").write_text("c")
    assert memory.tree(str(tmp_path), "in", lambda name: name.startswith("in/")) == before


def test_links_are_followed_once_and_dead_ones_ignored(tmp_path: Path) -> None:
    memory = StatMemory()
    (tmp_path / "a.h").write_text("a")
    before = memory.tree(str(tmp_path), "all", everything)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    assert memory.tree(str(tmp_path), "all", everything) == before
    (tmp_path / "b.h").symlink_to(tmp_path / "a.h")
    assert memory.tree(str(tmp_path), "all", everything) != before


def test_a_tree_of_nothing_is_an_empty_text(tmp_path: Path) -> None:
    assert StatMemory().tree(str(tmp_path / "none"), "all", everything) == sha256_bytes(b"")


def test_a_memory_can_be_kept(file: Path) -> None:
    memory = memory_of(file, after_change=LATER)
    memory.digest(str(file))
    memory.tree(str(file.parent), "all", everything)
    memory.record("question", "answer")
    kept = StatMemory.from_state(json.loads(json.dumps(memory.state())))
    assert (kept.files, kept.trees) == (memory.files, memory.trees)
    assert kept.recall("question") == "answer"
    assert kept.recall("another") is None


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {"files": 3, "trees": [], "answers": None},
        {"files": {"/a": ["stamp", 1, 2]}, "answers": {"k": 3}},
        {"files": {"/a": ["stamp", "1", 2, "digest"]}},
    ],
)
def test_a_damaged_state_is_an_empty_memory(state: object) -> None:
    memory = StatMemory.from_state(state)
    assert (memory.files, memory.trees, memory.answers) == ({}, {}, {})


def test_a_record_holds_only_for_its_own_evidence() -> None:
    record = Record("10 1 1 7", newest=0, at=TICK_NS + 1, digest="d")
    assert record.holds("10 1 1 7")
    assert not record.holds("10 1 1 8")
