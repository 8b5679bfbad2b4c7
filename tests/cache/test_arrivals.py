"""Entries whose files are known: the same as those that are made here, and whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from support.cache_sample import Sample
from support.faulty_disk import FaultyDisk, failing
from support.trees import published
from tilusbuild.cache.disk import CacheError
from tilusbuild.cache.entries import EntryBatch
from tilusbuild.cache.garbage import list_abandoned
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache

NAMES = ("a", "b", "c")


@pytest.fixture
def made(tmp_path: Path) -> Sample:
    sample = Sample(Tree(str(tmp_path / "made")))
    for name in NAMES:
        sample.program(name, "failed" if name == "b" else "built")
    return sample


def bring(sample: Sample, cache: Tree) -> None:
    """Write the sample's programs, each as its files are."""
    with EntryBatch(cache) as arrivals:
        for name in NAMES:
            entry = sample.entry(name)
            files = {
                str(path.relative_to(entry.path)): path.read_bytes()
                for path in Path(entry.path).rglob("*")
                if path.is_file()
            }
            arrivals.add_program(entry.hash, files, files.pop("meta.json"))
        arrivals.commit_programs()


def test_they_are_the_entries_that_were_made(made: Sample, tmp_path: Path) -> None:
    there = Tree(str(tmp_path / "there"))
    bring(made, there)
    assert published(Path(there.root)) == published(Path(made.cache.root))
    assert verify_cache(there) == []
    assert list_abandoned(there) == []
    modes = [os.stat(path).st_mode & 0o777 for path in Path(there.root).rglob("compile.sh")]
    assert modes == [0o755] * len(NAMES)


def test_what_is_not_committed_is_removed(made: Sample, tmp_path: Path) -> None:
    there = Tree(str(tmp_path / "there"))
    with EntryBatch(there) as arrivals:
        arrivals.add_program(made.hash("a"), {"program.txt": b""}, b"{}")
    assert published(Path(there.root)) == {}
    assert list_abandoned(there) == []


def test_a_full_disk_leaves_whole_entries_only(made: Sample, tmp_path: Path) -> None:
    disk = FaultyDisk()
    bring(made, Tree(str(tmp_path / "counted"), disk))
    first = disk.operations.index("write")
    assert disk.operations.count("sync") >= 1
    for at in range(first + 1, len(disk.operations) - 1, 3):
        there = Tree(str(tmp_path / str(at)), FaultyDisk(at, failing(errno.ENOSPC), halfway=True))
        with pytest.raises(CacheError, match="make room"):
            bring(made, there)
        healthy = Tree(there.root)
        assert verify_cache(healthy) == []
        assert list_abandoned(healthy) == []
