"""Killed, or failed by the disk, at each single change of the tree: the cache is right after all.

The scenario goes through every kind of change once. It is cut off at its first change, at its
second and so on, until it comes to its end.
"""

import errno
import os
from functools import partial
from pathlib import Path

from support.cache_sample import MANIFEST, sample_at
from support.faulty_disk import FaultyDisk, dies, failing, kill
from tilusbuild.cache.disk import CacheError
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.garbage import collect_garbage
from tilusbuild.cache.index import list_scripts, read_index, record_build
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.verify import verify_cache
from tilusbuild.errors import InputError


def scenario(sample):
    """A build of three schedules of which one fails; an edit; a collection; a damaged entry."""
    cache = sample.cache
    include = sample.include(a="one", b="two")
    for name in ("a", "b"):
        sample.program(name, include=include)
    record = sample.record(["a", "b", "c"])
    publish_script(cache, record)
    sample.program("c", "failed")
    publish_script(cache, record)
    record_build(cache, MANIFEST, "p", [("matmul", record.hash)])
    sample.program("old")
    collect_garbage(cache)
    os.truncate(os.path.join(cache.program_path(sample.hash("b")), "module/lib.so"), 1)
    sample.program("b", include=include)
    return record


def assert_complete(sample, record):
    cache = sample.cache
    assert verify_cache(cache) == []
    for name, status in (("a", "built"), ("b", "built"), ("c", "failed")):
        entry = lookup_entry(cache, sample.hash(name))
        assert entry is not None
        assert entry.status == status
    (script,) = list_scripts(cache)
    assert script.statuses == {"built": 2, "failed": 1, "pruned": 0, "missing": 0}
    path = cache.script_path("matmul", record.hash)
    assert sorted(os.listdir(path)) == ["failed", "programs", "schedule.txt", "script.txt"]
    assert os.listdir(cache.path("staging")) == []
    assert set(read_index(cache)) == {MANIFEST}


def outcome(sample) -> Exception | None:
    try:
        scenario(sample)
    except Exception as error:
        return error
    return None


def damaged_on_purpose(sample, problem):
    return (
        problem.name.startswith(f"programs/{sample.hash('b')}") or "incomplete" in problem.message
    )


def test_killed_at_every_change(tmp_path: Path):
    """Half way through it, where it is a write."""
    index, died = 0, True
    while died:
        index += 1
        root = str(tmp_path / f"cache {index}")
        died = dies(partial(scenario, sample_at(root, FaultyDisk(index, kill, halfway=True))))
        after = sample_at(root, FaultyDisk())
        assert [p for p in verify_cache(after.cache) if not damaged_on_purpose(after, p)] == []
        assert_complete(after, scenario(after))
    assert index > 100


def test_failed_by_the_disk_at_every_change(tmp_path: Path):
    disk = FaultyDisk()
    scenario(sample_at(str(tmp_path / "whole"), disk))
    for index in range(1, len(disk.operations) + 1):
        root = str(tmp_path / f"cache {index}")
        number = (errno.ENOSPC, errno.EIO)[index % 2]
        faulty = sample_at(root, FaultyDisk(index, failing(number), halfway=True))
        error = outcome(faulty)
        if error is None:
            assert disk.operations[index - 1] == "remove", "an error was swallowed"
        elif index == 1:  # the cache's own directory, which the user chose
            assert isinstance(error, InputError)
        else:
            assert isinstance(error, CacheError)
            assert error.errno == number
            assert error.path.startswith(root)
        after = sample_at(root, FaultyDisk())
        assert [p for p in verify_cache(after.cache) if not damaged_on_purpose(after, p)] == []
        assert_complete(after, scenario(after))
