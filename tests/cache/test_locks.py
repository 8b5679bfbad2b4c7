"""Locks exclude threads and processes alike, and vanish with their holders."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cache_sample import Sample
from tilusbuild.cache import layout
from tilusbuild.cache.locks import LockKind, LockName, Locks
from tilusbuild.cache.verify import verify_cache

A, B = LockName("program", "a" * 64), LockName("program", "b" * 64)


@pytest.fixture
def locks(tmp_path: Path):
    (tmp_path / "locks").mkdir()
    return Locks(str(tmp_path))


def in_child(work) -> int:
    """Run `work` in a forked process; its pid."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


USE, SHARED = LockName("use"), LockName("use", shared=True)


@pytest.mark.parametrize(
    ("held", "asked", "is_taken"),
    [
        (A, [A], False),  # also within a process
        (A, [B], True),
        (SHARED, [SHARED], True),
        (SHARED, [USE], False),
        (USE, [SHARED], False),
        (B, [A, B], False),
    ],
)
def test_one_holder_or_several_shared_ones(locks, held, asked, is_taken):
    with locks.take_locks(held):
        lock = locks.take_locks(*asked, wait=False)
        assert (lock is not None) == is_taken
    if lock is None:
        with locks.take_locks(*asked[:1], wait=False):  # of several, none was taken
            return
    lock.close()


def test_a_killed_holder_holds_nothing(locks):
    reading, writing = os.pipe()

    def hold() -> None:
        held = locks.take_locks(A)
        assert held is not None
        os.write(writing, b"x")
        signal.pause()

    child = in_child(hold)
    os.read(reading, 1)
    assert locks.take_locks(A, wait=False) is None
    os.kill(child, signal.SIGKILL)
    with locks.take_locks(A):
        os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


def test_a_deleted_lock_file_is_made_again_and_waiters_follow(locks):
    first = locks.take_locks(A)
    got = []
    waiter = threading.Thread(target=lambda: got.append(locks.take_locks(A)))
    waiter.start()
    time.sleep(0.05)
    os.unlink(os.path.join(locks.path, A.file))
    first.close()
    waiter.join()
    assert locks.take_locks(A, wait=False) is None
    got[0].close()


@given(st.sampled_from(get_args(LockKind)[2:]), st.integers(0, 2**256 - 1))
def test_there_are_4096_stripes_of_a_kind_and_256_for_readers(kind, number):
    name = LockName(kind, f"{number:064x}")
    digits = 2 if kind == "read" else 3
    assert name.file == f"{kind}-{number >> 256 - 4 * digits:0{digits}x}"
    assert layout.is_lock(name.file)


def test_a_link_in_the_place_of_a_lock_is_not_followed(locks, tmp_path: Path):
    os.symlink(tmp_path / "elsewhere", os.path.join(locks.path, A.file))
    with pytest.raises(OSError, match="is a link"):
        locks.take_locks(A)
    assert os.listdir(tmp_path) == ["locks"]


def test_a_build_that_waits_for_nobody_imports_no_filelock(sample: Sample):
    """The import takes a twentieth of a build after an edit."""
    sample.program("a")
    code = (
        "import sys; from tilusbuild.cache.tree import Tree\n"
        "from tilusbuild.cache.entries import lookup_entry\n"
        "cache = Tree(sys.argv[1])\n"
        "with cache.hold_use(): assert lookup_entry(cache, sys.argv[2])\n"
        "with cache.lock_program(sys.argv[2]): pass\n"
        "assert 'filelock' not in sys.modules"
    )
    words = [sys.executable, "-c", code, sample.cache.root, sample.hash("a")]
    subprocess.run(words, check=True)


def test_eight_builders_without_locks_still_make_one_whole_entry(sample: Sample):
    def build() -> None:
        sample.cache.ensure_complete()
        for number in range(20):
            assert sample.program(f"program {number}").status == "built"

    for child in [in_child(build) for _ in range(8)]:
        assert os.waitpid(child, 0)[1] == 0
    assert verify_cache(sample.cache) == []
    assert os.listdir(sample.cache.path("staging")) == []
    assert len(os.listdir(sample.cache.path("programs"))) == 20
