"""Where a cache can be: odd paths, read-only and full file systems, places that are none."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.cache_sample import MANIFEST, Sample, sample_at
from support.processes import run_mounted
from support.trees import snapshot
from tilusbuild.cache.entries import Stage, lookup_entry
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.index import (
    collect_stats,
    list_scripts,
    read_index,
    record_build,
)
from tilusbuild.cache.scripts import publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import list_unknown_names, repair_cache, verify_cache
from tilusbuild.errors import InputError

READ_ONLY = """
import os, sys
from tilusbuild.cache.entries import Stage, read_compiler_log, lookup_entry
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.index import collect_stats, record_build
from tilusbuild.cache.verify import verify_cache
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.disk import CacheReadOnlyError
from tilusbuild.cache.scripts import ScriptRecord, publish_script
root, program, digest = sys.argv[1:]
directory = "matmul"
cache = Tree(root)
cache.ensure_complete()
with cache.hold_use():
    assert lookup_entry(cache, program).status == "built"
    assert read_compiler_log(cache, program) == "log of a\\n"
    with open(os.path.join(cache.script_path(directory, digest), "script.txt")) as file:
        text = file.read()
    record = ScriptRecord(directory, text, ("index", "name"), [(0, "a")])
    assert publish_script(cache, record) == cache.script_path(directory, digest)
    record_build(cache, "/p/tilus.toml", "p", [(directory, digest)])
assert verify_cache(cache) == []
assert collect_stats(cache).statuses["built"] == 1
collect_garbage(cache, dry_run=True)
def locked():
    with cache.lock_program("0" * 64):
        pass
other = ScriptRecord(directory, text, ("index", "name"), [(0, "b")])
for refused in (lambda: Stage(cache), locked, lambda: collect_garbage(cache),
                lambda: clear_cache(cache),
                lambda: publish_script(cache, other),
                lambda: record_build(cache, "/q/tilus.toml", "q", [])):
    try:
        refused()
    except CacheReadOnlyError as error:
        assert root in str(error) and "Read-only file system" in str(error), str(error)
        assert "--cache-dir" in error.render()
    else:
        raise AssertionError(refused)
print("served")
""".replace("/p/tilus.toml", MANIFEST)


def test_a_read_only_cache_serves_and_says_so_when_it_cannot(cache: Tree, sample: Sample):
    record, _ = sample.built("a")
    before = snapshot(cache.root)
    mounts = 'mount --bind "$root" "$root"; mount -o remount,bind,ro "$root"'
    words = (cache.root, sample.hash("a"), record.hash)
    assert run_mounted(mounts, READ_ONLY, *words, root=cache.root).stdout == "served\n"
    assert snapshot(cache.root) == before


FULL = """
import os, sys
from tilusbuild.cache.entries import Stage
from tilusbuild.cache.garbage import clear_cache
from tilusbuild.cache.verify import verify_cache
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.disk import CacheError
from tilusbuild.state.files import sha256_text
cache = Tree(sys.argv[1])
def publish(number, size):
    stage = Stage(cache)
    try:
        os.mkdir(stage.path + "/module")
        texts = f"tilusbuild program 1\\n{number}" + "x" * size, "tilusbuild options 1\\n"
        return stage.publish_program(sha256_text("".join(texts)), *texts, {"status": "failed"})
    finally:
        stage.discard()
fits = 0
for size in range(0, 400_000, 20_000):
    try:
        publish(size, size)
        fits += 1
    except CacheError as error:
        assert "No space left" in str(error) and "cache gc" in str(error), str(error)
        assert cache.root in error.path
assert 2 <= fits < 20, fits
assert os.listdir(cache.path("staging")) == []
assert verify_cache(cache) == []
assert len(os.listdir(cache.path("programs"))) == fits
clear_cache(cache)
publish(1, 300_000)
print("full")
"""


def test_a_full_disk_is_a_typed_error_and_leaves_nothing_partial(tmp_path: Path):
    mounts = 'mount -t tmpfs -o size=512k none "$place"'
    done = run_mounted(mounts, FULL, tmp_path / "cache", place=str(tmp_path))
    assert done.stdout == "full\n"


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "quo'te\"s",
        "new\nline",
        "ünï → 漢字",
        "-$HOME `x` \\",
        "a" * 200,
        "\udcff\udcfe",
    ],
)
def test_a_cache_can_be_anywhere(tmp_path: Path, name):
    sample = sample_at(str(tmp_path / name / name), None)
    sample.program("a", include=sample.include(a="x"))
    publish_script(sample.cache, record := sample.record(["a"]))
    manifest = os.path.join(sample.cache.root, "tilus.toml")
    record_build(sample.cache, manifest, "p", [("matmul", record.hash)])
    assert list(read_index(sample.cache)) == [manifest]
    assert verify_cache(sample.cache) == []


def with_content(path: Path) -> Path:
    path.write_text("")
    return path


def a_loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_content, "a file is in the way"),
        (lambda path: with_content(path) / "cache", "a file is in the way"),
        (a_loop, "symbolic links"),
        (lambda path: path.with_name("x" * 300), "File name too long"),
        (lambda path: f"{path}\0", "null"),
    ],
)
def test_a_place_that_can_be_no_cache_is_the_users_error_and_untouched(tmp_path, make, reason):
    cache = Tree(str(make(tmp_path / "place")))
    before = snapshot(str(tmp_path))
    uses = (Stage, verify_cache, collect_garbage, clear_cache, collect_stats)
    for use in (Tree.ensure_complete, *uses):
        with pytest.raises(InputError, match=reason) as caught:
            use(cache)
        assert "--cache-dir" in caught.value.render()
    assert lookup_entry(cache, "0" * 64) is None
    assert snapshot(str(tmp_path)) == before


@pytest.mark.parametrize("name", [".cache", ".cache/tilus"])
def test_a_default_place_is_shared_with_other_programs(tmp_path: Path, name):
    """Given what other programs keep there, when it becomes a cache and is emptied, then all of it
    is as it was, and is named once; but none of it is replaced."""
    root = tmp_path / name
    text_by_path = {"clangd/index/x.idx": "1", "uv": "2", "pip/http/programs/a": "3"}
    for path, text in text_by_path.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    sample = sample_at(str(root), None)
    sample.built("a", include=sample.include(a="x"))
    for directory in ("locks", "staging", "programs", "include", "scripts/matmul"):
        (root / directory / "theirs").mkdir()
    (root / "scripts/.theirs").write_text("")
    (root / "scripts/theirs").write_text("")
    assert verify_cache(sample.cache) == []
    kinds = ("include", "locks", "programs", "staging")
    within = ["scripts/.theirs", *(f"{path}/theirs" for path in kinds)]
    assert list_unknown_names(sample.cache) == sorted(["clangd", "pip", "uv", *within])
    assert repair_cache(sample.cache, verify_cache(sample.cache)) == []
    collect_garbage(sample.cache)
    clear_cache(sample.cache)
    assert {path: (root / path).read_text() for path in text_by_path} == text_by_path
    assert (root / "scripts/matmul/theirs").is_dir()
    assert (root / "scripts/theirs").is_file()
    assert list_unknown_names(sample.cache) == sorted(["clangd", "pip", "uv", *within])


@pytest.mark.parametrize(
    "name", ["CACHEDIR.TAG", ".gitignore", "programs/x", "index.json", "state/x"]
)
def test_what_ours_would_replace_is_refused_there_too(tmp_path: Path, name):
    path = tmp_path / ".cache" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("theirs")
    before = snapshot(str(tmp_path))
    with pytest.raises(InputError, match="not a cache of tilusbuild: it holds"):
        Tree(str(tmp_path / ".cache")).ensure_complete()
    assert snapshot(str(tmp_path)) == before


def test_an_index_of_ours_is_a_mark_too(cache: Tree, sample: Sample):
    sample.program("a")
    record_build(cache, "/p/tilus.toml", "p", [])
    os.unlink(cache.path("CACHEDIR.TAG"))
    sample.program("b")
    assert os.path.exists(cache.path("CACHEDIR.TAG"))
    assert verify_cache(cache) == []


def test_stages_that_cannot_be_listed_are_left_to_others(cache: Tree, monkeypatch):
    cache.ensure_complete()
    monkeypatch.setattr(Tree, "list_names", Mock(side_effect=PermissionError))
    cache.make_private().discard()


def test_looking_at_no_cache_makes_none(cache: Tree):
    assert verify_cache(cache) == []
    assert list_scripts(cache) == []
    assert collect_stats(cache).size == 0
    assert collect_garbage(cache).removed == ()
    clear_cache(cache)
    assert not os.path.exists(cache.root)
