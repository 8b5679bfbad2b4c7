"""A build's stages: one directory and one lock for many programs, and only while it is empty."""

import os
import shutil
from pathlib import Path

import pytest

from support.cache_sample import OPTIONS, Sample
from support.faulty_disk import FaultyDisk
from tilusbuild.cache.entries import Stage, Stages
from tilusbuild.cache.tree import Tree


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def cache(tmp_path: Path, disk: FaultyDisk) -> Tree:
    made = Tree(str(tmp_path / "cache"), disk)
    made.ensure()
    return made


def publish(cache: Tree, stage: Stage, name: str) -> None:
    sample = Sample(cache)
    os.mkdir(os.path.join(stage.path, "module"))
    Path(stage.path, "module/lib.so").write_text(name)
    text = sample.program_txt(name)
    stage.publish_program(sample.hash(name), text, OPTIONS, {"status": "built"})
    assert sample.entry(name).status == "built"


def staging(cache: Tree) -> list[str]:
    return os.listdir(cache.path("staging"))


def locks_of_stages(cache: Tree) -> list[str]:
    return [name for name in os.listdir(cache.locks.path) if name.startswith("stage-")]


def test_programs_that_follow_each_other_share_a_directory_and_a_lock(cache, disk) -> None:
    stages = Stages(cache)
    publish(cache, stages.make(), "first")
    used = staging(cache)
    made = locks_of_stages(cache)
    before = len(disk.operations)
    publish(cache, stages.make(), "second")
    # Its own directory, and that of all programs, which is there.
    assert disk.operations[before:].count("make_directory") == 2
    assert disk.operations[before:].count("remove") == 0
    assert staging(cache) == used
    assert locks_of_stages(cache) == made
    stages.close()
    assert staging(cache) == []


def test_two_at_once_have_two(cache: Tree) -> None:
    stages = Stages(cache)
    one, other = stages.make(), stages.make()
    assert one.path != other.path
    publish(cache, one, "one")
    publish(cache, other, "other")
    assert len(staging(cache)) == 2
    stages.close()
    assert staging(cache) == []


def test_a_directory_that_is_not_empty_serves_nobody(cache: Tree) -> None:
    stages = Stages(cache)
    stage = stages.make()
    Path(f"{stage.path}.work").mkdir()
    publish(cache, stage, "leaves something")
    assert staging(cache) == []
    unpublished = stages.make()
    Path(unpublished.path, "half").write_text("")
    unpublished.discard()
    assert staging(cache) == []
    assert os.listdir(stages.make().path) == []


def test_one_that_waits_is_swept_by_nobody(cache: Tree, tmp_path: Path) -> None:
    stages = Stages(cache)
    publish(cache, stages.make(), "first")
    waiting = staging(cache)
    assert Tree(cache.root).sweep() == []
    assert staging(cache) == waiting
    stages.close()


def test_a_cache_that_was_deleted_meanwhile_is_made_again(cache: Tree) -> None:
    stages = Stages(cache)
    publish(cache, stages.make(), "first")
    shutil.rmtree(cache.root)
    publish(cache, stages.make(), "second")
    stages.close()
    assert staging(cache) == []


def test_what_is_given_back_after_the_end_is_removed(cache: Tree) -> None:
    stages = Stages(cache)
    stage = stages.make()
    stages.close()
    publish(cache, stage, "late")
    assert staging(cache) == []
