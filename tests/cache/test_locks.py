"""Locks exclude threads and processes alike, and vanish with their holders."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cache_sample import Sample
from tilusbuild.cache.cache import Cache
from tilusbuild.cache.locks import LockFile, LockRange
from tilusbuild.state.files import sha256_text

A, B = LockRange("program", "a" * 64), LockRange("program", "b" * 64)


@pytest.fixture
def locks(tmp_path: Path):
    return LockFile(str(tmp_path / "lock"))


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


def test_one_holder_at_a_time_also_within_a_process(locks):
    with locks.take(A):
        assert locks.take(A, wait=False) is None
        with locks.take(B, wait=False):
            pass
    with locks.take(A, wait=False):
        pass


def test_shared_holders_keep_an_exclusive_one_out(locks):
    shared = LockRange("use", shared=True)
    with locks.take(shared), locks.take(shared):
        assert locks.take(LockRange("use"), wait=False) is None
    with locks.take(LockRange("use")):
        assert locks.take(shared, wait=False) is None


def test_all_or_nothing(locks):
    with locks.take(B):
        assert locks.take(A, B, wait=False) is None
        with locks.take(A, wait=False):
            pass


def test_threads_wait_for_each_other(locks):
    inside = []

    def work(number: int) -> None:
        with locks.take(A):
            inside.append(number)
            assert len(inside) == 1
            time.sleep(0.001)
            inside.pop()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(100)))


def test_a_killed_holder_holds_nothing(locks):
    reading, writing = os.pipe()

    def hold() -> None:
        held = locks.take(A)
        assert held is not None
        os.write(writing, b"x")
        signal.pause()

    child = in_child(hold)
    os.read(reading, 1)
    assert locks.take(A, wait=False) is None
    os.kill(child, signal.SIGKILL)
    with locks.take(A):
        os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


def test_a_deleted_lock_file_is_made_again_and_waiters_follow(locks):
    first = locks.take(A)
    got = []
    waiter = threading.Thread(target=lambda: got.append(locks.take(A)))
    waiter.start()
    time.sleep(0.05)
    os.unlink(locks.path)
    first.release()
    waiter.join()
    assert locks.take(A, wait=False) is None
    got[0].release()


def test_no_lock_files_are_left_behind(locks, tmp_path: Path):
    for name in ("a", "b", "c"):
        locks.take(LockRange("program", sha256_text(name))).release()
    assert os.listdir(tmp_path) == ["lock"]
    assert os.path.getsize(locks.path) == 0


def test_descriptors_are_closed(locks):
    before = len(os.listdir("/proc/self/fd"))
    with locks.take(A):
        for _ in range(10):
            locks.take(A, wait=False)
    assert len(os.listdir("/proc/self/fd")) == before


@settings(deadline=None)
@given(
    st.sampled_from(["use", "index", "program", "include", "script", "stage"]),
    st.integers(0, 2**256 - 1),
)
def test_offsets_of_different_kinds_never_meet_and_fit(kind, number):
    offset = LockRange(kind, f"{number:064x}").offset
    assert 0 <= offset < 2**63
    region = ["use", "index", "program", "include", "script", "stage"].index(kind)
    assert offset >> 60 == region


def test_eight_builders_compile_a_program_once(sample: Sample, tmp_path: Path):
    journal = str(tmp_path / "journal")
    names = [f"program {number}" for number in range(6)]
    sample.cache.ensure()

    def build() -> None:
        for name in names:
            with sample.cache.locked(sample.hash(name), wait=True) as ours:
                assert ours
                if sample.cache.lookup(sample.hash(name)) is None:
                    with open(journal, "a") as file:
                        file.write(f"{name}\n")
                    sample.program(name)

    for child in [in_child(build) for _ in range(8)]:
        assert os.waitpid(child, 0)[1] == 0
    with open(journal) as file:
        assert sorted(file.read().splitlines()) == names
    assert sample.cache.verify() == []


def test_eight_builders_without_locks_still_make_one_whole_entry(sample: Sample):
    def build() -> None:
        for number in range(20):
            assert sample.program(f"program {number}").status == "built"

    for child in [in_child(build) for _ in range(8)]:
        assert os.waitpid(child, 0)[1] == 0
    assert sample.cache.verify() == []
    assert os.listdir(sample.cache.tree.path("staging")) == []
    assert len(os.listdir(sample.cache.tree.path("programs"))) == 20


def test_a_cache_made_by_eight_at_once_is_one(sample: Sample):
    def build() -> None:
        sample.cache.ensure()
        sample.program("a")

    for child in [in_child(build) for _ in range(8)]:
        assert os.waitpid(child, 0)[1] == 0
    assert sample.cache.verify() == []


def test_locked_says_whether_it_is_ours(cache: Cache):
    program = "c" * 64
    with cache.locked(program, wait=False) as ours, cache.locked(program, wait=False) as theirs:
        assert (ours, theirs) == (True, False)
