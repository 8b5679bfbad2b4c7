"""Readers' locks: few files for any number of kernels, kept while one of them lives."""

import gc
import hashlib
import os
from pathlib import Path

import pytest

from tilusbuild.cache.locks import LockName, Locks
from tilusbuild.runtime.reader_lock import ReaderLock

HASHES = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(1000)]


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    """The locks of a tree in which every script was published."""
    (tmp_path / "locks").mkdir()
    tree_locks = Locks(str(tmp_path))
    for name in HASHES:
        tree_locks.make_lock_file(LockName("read", name))
    return tree_locks


def open_files() -> int:
    gc.collect()  # kernels of other tests hold locks, too
    return len(os.listdir("/proc/self/fd"))


def test_a_thousand_kernels_share_a_file_for_each_stripe(tmp_path: Path, locks: Locks) -> None:
    before = open_files()
    held = [ReaderLock(str(tmp_path), [name]) for name in HASHES]
    assert open_files() - before <= 256
    assert not any(locks.is_lock_free(LockName("read", name)) for name in HASHES)
    held.clear()
    assert open_files() == before
    assert all(locks.is_lock_free(LockName("read", name)) for name in HASHES)


def test_a_lock_is_kept_while_one_of_those_that_share_it_lives(tmp_path, locks) -> None:
    first, second = (ReaderLock(str(tmp_path), [HASHES[0]]) for _ in range(2))
    del first
    assert not locks.is_lock_free(LockName("read", HASHES[0]))
    del second
    assert locks.is_lock_free(LockName("read", HASHES[0]))


def test_the_lock_of_a_tree_that_was_made_again_is_another(tmp_path: Path, locks: Locks) -> None:
    old = ReaderLock(str(tmp_path), [HASHES[0]])
    os.rename(tmp_path / "locks", tmp_path / "gone")
    (tmp_path / "locks").mkdir()
    locks.make_lock_file(LockName("read", HASHES[0]))
    assert locks.is_lock_free(LockName("read", HASHES[0]))
    new = ReaderLock(str(tmp_path), [HASHES[0]])
    assert not locks.is_lock_free(LockName("read", HASHES[0]))
    del old, new


def test_a_child_keeps_what_its_parent_lets_go(tmp_path: Path, locks: Locks) -> None:
    lock = ReaderLock(str(tmp_path), [HASHES[0]])
    go, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(write_end)
        os.read(go, 1)  # until the parent has looked
        os._exit(0)
    del lock
    try:
        assert not locks.is_lock_free(LockName("read", HASHES[0]))
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
        os.close(go)
    assert locks.is_lock_free(LockName("read", HASHES[0]))


def test_a_tree_without_locks_is_used_without(tmp_path: Path) -> None:
    before = open_files()
    ReaderLock(str(tmp_path), HASHES[:3])
    assert open_files() == before
