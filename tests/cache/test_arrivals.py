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
def sample(tmp_path: Path) -> Sample:
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


def test_they_are_the_entries_that_were_made(sample: Sample, tmp_path: Path) -> None:
    tree = Tree(str(tmp_path / "there"))
    bring(sample, tree)
    assert published(Path(tree.root)) == published(Path(sample.cache.root))
    assert verify_cache(tree) == []
    assert list_abandoned(tree) == []
    modes = [os.stat(path).st_mode & 0o777 for path in Path(tree.root).rglob("compile.sh")]
    assert modes == [0o755] * len(NAMES)


def test_what_is_not_committed_is_removed(sample: Sample, tmp_path: Path) -> None:
    tree = Tree(str(tmp_path / "there"))
    with EntryBatch(tree) as arrivals:
        arrivals.add_program(sample.hash("a"), {"program.txt": b""}, b"{}")
    assert published(Path(tree.root)) == {}
    assert list_abandoned(tree) == []


def test_a_full_disk_leaves_whole_entries_only(sample: Sample, tmp_path: Path) -> None:
    disk = FaultyDisk()
    bring(sample, Tree(str(tmp_path / "counted"), disk))
    first = disk.operations.index("write")
    assert disk.operations.count("sync") >= 1
    for index in range(first + 1, len(disk.operations) - 1, 3):
        tree = Tree(
            str(tmp_path / str(index)), FaultyDisk(index, failing(errno.ENOSPC), halfway=True)
        )
        with pytest.raises(CacheError, match="make room"):
            bring(sample, tree)
        healthy = Tree(tree.root)
        assert verify_cache(healthy) == []
        assert list_abandoned(healthy) == []
