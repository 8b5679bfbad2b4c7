"""Installing: only what is missing, all of it or nothing that is used, whoever is killed."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.faulty_disk import FaultyDisk, dies, failing, kill
from support.packages import Hand, by_hand
from support.project import Project
from tilusbuild.cache.disk import CacheError
from tilusbuild.cache.entries import Stage
from tilusbuild.cache.garbage import collect_garbage
from tilusbuild.cache.index import list_scripts, read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits
from tilusbuild.package.install import InstalledPackage, install_package, list_installed
from tilusbuild.package.read import open_package
from tilusbuild.runtime import load
from tilusbuild.runtime.sealed import seal_json, unseal_json


def put(path: Path, cache: Tree) -> InstalledPackage:
    with open_package(str(path)) as reader:
        return install_package(reader, cache, Limits())


@pytest.fixture
def cache(tmp_path: Path) -> Tree:
    return Tree(str(tmp_path / "cache"))


def assert_works(root: str) -> None:
    x = np.arange(8, dtype="float32")
    np.testing.assert_array_equal(load("mark", where=root)(x), 10 * x + 1)
    np.testing.assert_array_equal(load("twice", where=root)(x), 2 * x)


def assert_whole(cache: Tree) -> None:
    """Nothing is wrong, and nothing stays once the next builder has come."""
    assert verify_cache(cache) == []
    Stage(Tree(cache.root)).discard()
    assert os.listdir(cache.path("staging")) == []


def test_what_is_installed_runs_and_a_second_time_nothing_is_read_or_written(
    hand: Hand, carrier: str, cache: Tree, tmp_path: Path
) -> None:
    path = hand.write(carrier, tmp_path)
    assert put(path, cache).new == len(hand.listing.programs)
    assert_whole(cache)
    assert_works(cache.root)
    modes = {f.suffix: f.stat().st_mode & 0o777 for f in Path(cache.root).glob("programs/*/**/*.*")}
    assert modes == {".txt": 0o644, ".json": 0o644, ".so": 0o755}  # as in a build
    disk = FaultyDisk()
    done = put(path, Tree(cache.root, disk))
    assert done.new == 0
    assert set(disk.operations) <= {"make_directory"}  # of what is there


def test_a_new_version_brings_its_new_programs_only(hand, own_project, cache, tmp_path) -> None:
    """Given one script of two that changed, when its package is installed over the old one, then
    the old version is no root any more."""
    put(hand.archive(tmp_path / "old"), cache)
    own_project.edit("twice.cu.j2", "2 *", "3 *")
    shutil.rmtree(own_project.cache)
    own_project.run("build")
    new = by_hand(own_project.cache, version="0.2.0")
    assert put(new.archive(tmp_path / "new"), cache).new == 1
    assert list_installed(cache) == {"marks": "marks 0.2.0"}
    assert_whole(cache)
    x = np.arange(4, dtype="float32")
    np.testing.assert_array_equal(load("twice", where=cache.root)(x), 3 * x)
    removed = {item.name.split("/")[0] for item in collect_garbage(cache).removed}
    assert removed == {"scripts", "programs"}
    assert_whole(cache)


# Roots.


def test_a_projects_own_tables_stay(hand: Hand, own_project: Project, tmp_path: Path) -> None:
    """Given a script that was built here and edited since, when a package brings it, then not."""
    cache = Tree(str(own_project.cache))
    (directory,) = (own_project.cache / "scripts" / "mark").iterdir()
    (directory / "dispatch_table.json").write_text('{"schema": 2, "keys": ["n"], "tables": []}')
    put(hand.archive(tmp_path / "p"), cache)
    assert (directory / "dispatch_table.json").exists()
    assert verify_cache(cache) == []


def test_a_table_is_that_of_the_new_version(hand: Hand, cache: Tree, tmp_path: Path) -> None:
    put(hand.archive(tmp_path / "p"), cache)
    (script,) = [s for s in hand.listing.scripts if s.script == "mark"]
    table = Path(cache.path(script.root), "dispatch_table.json")
    table.write_text('{"schema": 2, "keys": ["n"], "tables": []}')
    put(hand.archive(tmp_path / "p"), cache)
    assert table.read_bytes() == hand.files[f"{script.root}/dispatch_table.json"]
    assert_whole(cache)


def test_a_program_with_other_bytes_is_not_replaced(hand, cache, tmp_path) -> None:
    put(hand.archive(tmp_path / "p"), cache)
    meta = Path(cache.root, hand.path("meta.json"))
    value = unseal_json(meta.read_bytes())
    value["files"]["module/lib.so"]["sha256"] = "0" * 64
    meta.write_bytes(seal_json(value))
    with pytest.raises(PackageError):
        put(hand.archive(tmp_path / "p"), cache)


def test_packages_of_several_targets_serve_a_script_together(hand, cache, tmp_path) -> None:
    """Given two packages with other instances of one script, when it is loaded, then from both."""
    put(hand.archive(tmp_path / "p"), cache)
    index = unseal_json(Path(cache.root, "index.json").read_bytes())
    other = {"name": "other 1.0", "scripts": [["mark", "0" * 64]]}
    index["projects"]["package:other"] = other
    Path(cache.root, "index.json").write_bytes(seal_json(index))
    assert_works(cache.root)


# Killed, and at once.


def test_killed_at_every_change(hand: Hand, tmp_path: Path) -> None:
    path = hand.only("twice").archive(tmp_path / "p")
    index, died = 0, True
    while died:
        index += 1
        root = str(tmp_path / f"cache {index}")
        died = dies(partial(put, path, Tree(root, FaultyDisk(index, kill))))
        after = Tree(root)
        assert verify_cache(after) == []
        named = list_installed(after) == {"marks": "marks 0.1.0"}
        assert named or read_index(after) == {}
        assert len(list_scripts(after)) == 1 or not named
        put(path, after)
        assert_whole(after)
        assert list_installed(after) == {"marks": "marks 0.1.0"}
        shutil.rmtree(root)
    assert index > 30


def outcome(path: Path, cache: Tree) -> int | None:
    """The errno that an installation ends with."""
    try:
        put(path, cache)
    except CacheError as error:
        return error.errno
    return None


def test_failed_by_the_disk_at_every_change(hand: Hand, tmp_path: Path) -> None:
    path = hand.only("twice").archive(tmp_path / "p")
    disk = FaultyDisk()
    put(path, Tree(str(tmp_path / "whole"), disk))
    for index in range(2, len(disk.operations) + 1):
        root = str(tmp_path / f"cache {index}")
        number = (errno.ENOSPC, errno.EIO)[index % 2]
        error_number = outcome(path, Tree(root, FaultyDisk(index, failing(number), halfway=True)))
        assert error_number == number or (error_number, disk.operations[index - 1]) == (
            None,
            "remove",
        )
        after = Tree(root)
        assert verify_cache(after) == []
        put(path, after)
        assert_whole(after)
        shutil.rmtree(root)


def test_several_at_once(hand: Hand, project: Project, cache: Tree, tmp_path: Path) -> None:
    path = hand.archive(tmp_path / "p")
    words = ("install", str(path), "--cache-dir", cache.root)
    running = [project.start(*words) for _ in range(4)]
    for process in running:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
    assert_whole(cache)
    assert_works(cache.root)
    assert list_installed(cache) == {"marks": "marks 0.1.0"}


def test_the_command_line_installs_lists_and_removes(hand, cache, project, tmp_path) -> None:
    path = str(hand.archive(tmp_path / "p"))
    where = ("--cache-dir", cache.root)
    output = project.run("install", path, *where).out
    assert output.startswith(f"installed marks 0.1.0 into {cache.root}: 4 programs, 4 of them new")
    listed = project.run("cache", "ls", *where).out
    assert listed.count("package marks 0.1.0") == 2
    assert "removed 0 entries" in project.run("cache", "gc", *where).out
    assert_works(cache.root)
    project.run("install", "--remove", "marks", *where)
    assert "removed 6 entries" in project.run("cache", "gc", *where).out
