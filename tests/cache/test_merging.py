"""Merging: what other caches hold comes in once it is checked, and nothing else does."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from support.cache_sample import Sample, sample_at
from support.trees import snapshot
from tilusbuild.cache.disk import Disk
from tilusbuild.cache.entries import Stage, lookup_entry
from tilusbuild.cache.garbage import collect_garbage
from tilusbuild.cache.index import read_index
from tilusbuild.cache.merging import merge_caches, open_sources
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.errors import InputError


@pytest.fixture
def shards(tmp_path: Path):
    """Two caches: "a" and "both" in the first, "b" and "both" in the second, with headers."""
    samples = [sample_at(str(tmp_path / name), Disk()) for name in ("one", "two")]
    for shard, name in zip(samples, "ab", strict=True):
        shard.program(name, include=shard.include(common="text"))
        shard.program("both")
        shard.program(f"bad {name}", status="failed")
    return samples


def merged(cache, shards):
    return merge_caches(cache, open_sources(cache, [shard.cache.root for shard in shards]))


def files_of(cache) -> dict[str, bytes]:
    paths = (path for name in ("programs", "include") for path in Path(cache.root, name).rglob("*"))
    return {os.path.relpath(p, cache.root): p.read_bytes() for p in paths if p.is_file()}


def test_everything_comes_in_once_and_with_the_same_bytes(cache: Tree, shards):
    before = [snapshot(shard.cache.root) for shard in shards]
    result = merged(cache, shards)
    assert [snapshot(shard.cache.root) for shard in shards] == before
    assert (result.programs, result.known, result.includes) == (5, 1, 1)
    assert result.refused == []
    assert files_of(cache) == files_of(shards[0].cache) | files_of(shards[1].cache)
    assert verify_cache(cache) == []
    assert Sample(cache).entry("bad a").status == "failed"
    program = Path(cache.program_path(shards[0].hash("a")))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in program.rglob("*.*")}
    assert {name for name, mode in modes.items() if mode == 0o755} == {"lib.so", "compile.sh"}
    assert set(modes.values()) == {0o755, 0o644}
    entries = [snapshot(cache.path(name)) for name in ("programs", "include")]
    again = merged(cache, shards)
    assert (again.programs, again.known, again.includes, again.refused) == (0, 6, 0, [])
    assert [snapshot(cache.path(name)) for name in ("programs", "include")] == entries


@pytest.mark.parametrize(
    ("name", "damage", "what"),
    [
        ("module/lib.so", lambda path: path.write_bytes(b"y" * 100), "was modified"),
        ("module/lib.so", lambda path: path.write_bytes(b""), "has 0 bytes instead of 100"),
        ("module/lib.so", lambda path: path.unlink(), "is missing"),
        ("module/more", lambda path: path.write_text(""), "is not listed in meta.json"),
        ("program.txt", lambda path: path.write_text("x"), "has 1 bytes"),
        ("meta.json", lambda path: path.write_text("{}"), "meta.json is damaged"),
    ],
)
def test_what_does_not_verify_stays_where_it_is(cache: Tree, shards, name, damage, what):
    damage(Path(shards[0].cache.program_path(shards[0].hash("a")), name))
    result = merged(cache, shards)
    (refused,) = result.refused
    assert refused.source == shards[0].cache.root
    assert refused.name.startswith(f"programs/{shards[0].hash('a')}")
    assert what in str(refused)
    assert lookup_entry(cache, shards[0].hash("a")) is None
    assert result.programs == 4
    assert verify_cache(cache) == []


def test_a_program_whose_headers_are_damaged_stays_where_it_is(cache: Tree, shards):
    (directory,) = Path(shards[0].cache.root, "include").iterdir()
    (directory / "project/common.h").write_text("other")
    result = merged(cache, shards)
    assert [str(r).rpartition(": ")[2] for r in result.refused] == ["was modified"]
    assert result.includes == 1  # the second cache has them whole
    assert lookup_entry(cache, shards[0].hash("a")) is None
    assert verify_cache(cache) == []


def test_one_program_with_different_bytes_is_an_error_and_the_first_stays(cache: Tree, shards):
    program = shards[1].hash("both")
    shutil.rmtree(shards[1].cache.program_path(program))
    shards[1].program("both", size=99)
    sample = Sample(cache)
    sample.program("bad b")  # which another cache says failed
    result = merged(cache, shards)
    other, refused = sorted(result.refused, key=lambda problem: problem.message)
    assert "is failed, and built" in other.message
    assert refused.source == shards[1].cache.root
    assert refused.name == f"programs/{program}/module/lib.so"
    assert "was not reproduced: the same inputs gave other bytes" in refused.message
    assert sample.entry("both").size == shards[0].entry("both").size


def test_a_program_with_more_files_in_one_cache_is_not_a_conflict(cache, sample, shards):
    stage = Stage(cache)
    os.mkdir(os.path.join(stage.path, "module"))
    program = shards[0].cache.program_path(shards[0].hash("a"))
    for name in os.listdir(os.path.join(program, "module")):
        shutil.copy(os.path.join(program, "module", name), os.path.join(stage.path, "module", name))
    Path(stage.path, "module", "dump.ptx").write_text("more")
    options = Path(program, "options.txt").read_text()
    stage.publish_program(sample.hash("a"), sample.program_txt("a"), options, {"status": "built"})
    assert merged(cache, shards).refused == []
    assert "module/dump.ptx" in sample.entry("a").meta["files"]


def test_a_program_directory_that_is_a_link_is_not_followed(cache: Tree, shards, tmp_path: Path):
    path = shards[0].cache.program_path(shards[0].hash("a"))
    shutil.move(path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path)
    (refused,) = merged(cache, shards).refused
    assert refused.message == "is a link"
    assert lookup_entry(cache, shards[0].hash("a")) is None


def test_merging_from_something_else_than_a_cache_is_refused(cache: Tree, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes/file").write_text("")
    cache.ensure_complete()
    for name, what in (
        ("nowhere", "is not there"),
        ("empty", "is empty"),
        ("notes", "it holds 'file'"),
        ("cache", "is the cache to merge into"),
    ):
        with pytest.raises(InputError, match=what):
            open_sources(cache, [str(tmp_path / name)])


def test_the_scripts_of_the_last_build_keep_what_was_merged(cache: Tree, shards):
    """Given a source with a build, when it is merged, then `gc` takes nothing of that build."""
    shards[0].built("a", "both")
    result = merged(cache, shards)
    assert (result.scripts, result.refused) == (1, [])
    before = snapshot(cache.path("scripts"))
    collect_garbage(cache)
    assert snapshot(cache.path("scripts")) == before
    assert lookup_entry(cache, shards[0].hash("a")) is not None
    assert lookup_entry(cache, shards[1].hash("b")) is None  # no build of that source named it
    assert verify_cache(cache) == []


def test_a_project_of_the_name_of_ours_is_ours(cache: Tree, shards):
    shards[0].built("a")
    merge_caches(cache, [shards[0].cache], ("/here/tilus.toml", "p"))
    assert list(read_index(cache)) == ["/here/tilus.toml"]


def test_a_new_script_brings_its_tables_and_one_that_is_there_keeps_its_files(cache, shards):
    _, path = shards[0].built("a")
    for name in ("latency/16/report.txt", "dispatch_table.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("there")
    (script,) = map(Path, merged(cache, shards).script_paths)
    assert (script / "latency/16/report.txt").read_text() == "there"
    (script / "dispatch_table.json").write_text("here")
    assert merged(cache, shards).script_paths == [str(script)]
    assert (script / "dispatch_table.json").read_text() == "here"


def test_samples_of_tunings_are_appended_once(cache: Tree, shards):
    for tree, lines in ((shards[0].cache, "1\n2\n"), (shards[1].cache, "2\n3\n")):
        log = Path(tree.state_path, "tune/matmul/x.jsonl")
        log.parent.mkdir(parents=True)
        log.write_text(lines)
    os.mkfifo(Path(shards[1].cache.state_path, "tune/matmul/y.jsonl"))
    for _ in range(2):
        (problem,) = merged(cache, shards).measurements
        assert "y.jsonl is a FIFO" in problem.message
    assert Path(cache.state_path, "tune/matmul/x.jsonl").read_text() == "1\n2\n3\n"
