"""Garbage collection: the last build of each project stays, and nothing ever dangles."""

import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cache_sample import MANIFEST, Sample, sample_at
from support.paths import ROOT
from support.trees import snapshot
from tilusbuild.cache.entries import Stage, lookup_entry
from tilusbuild.cache.garbage import clear_cache, collect_garbage
from tilusbuild.cache.index import (
    HOST,
    collect_stats,
    forget_projects,
    list_scripts,
    read_index,
    record_build,
)
from tilusbuild.cache.scripts import ScriptRecord, publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.errors import TilusbuildError
from tilusbuild.runtime.reader_lock import ReaderLock
from tilusbuild.runtime.search_roots import JIT_ROOT_PREFIX, LOST_ROOT

DAY = 86400.0
OTHERS = {"a": os.fspath(ROOT / "README.md"), "b": os.fspath(ROOT / "LICENSE")}


@pytest.fixture(autouse=True)
def _index(request: pytest.FixtureRequest) -> None:
    """Of a project that made nothing: without an index nothing is garbage."""
    if "cache" not in request.fixturenames:
        return
    cache = request.getfixturevalue("cache")
    record_build(cache, os.fspath(ROOT / "pyproject.toml"), "elsewhere", [])


def age(path: str, days: float) -> None:
    """Make everything below a path look published so many days ago."""
    then = time.time() - days * DAY
    for name in [path, *(str(p) for p in Path(path).rglob("*"))]:
        os.utime(name, (then, then), follow_symlinks=False)


def published(cache) -> set[str]:
    return {os.path.basename(p) for kind in ("programs", "include") for p in _list(cache, kind)}


def _list(cache, kind: str) -> list[str]:
    return [cache.path(kind, name) for name in os.listdir(cache.path(kind))]


def test_what_the_last_build_of_each_project_made_stays(cache: Tree, sample: Sample):
    headers, old_headers = sample.include(a="new"), sample.include(a="old")
    sample.built("before the edit", include=old_headers)
    new, _ = sample.built("a", include=headers)
    planned = collect_garbage(cache, dry_run=True)
    assert len(published(cache)) == 4
    done = collect_garbage(cache)
    assert {item.name for item in done.removed} == {item.name for item in planned.removed}
    assert [item.name.split("/")[0] for item in done.removed] == ["scripts", "programs", "include"]
    assert done.kept_size == planned.kept_size
    assert published(cache) == {sample.hash("a"), headers}
    assert [script.hash for script in list_scripts(cache)] == [new.hash]
    assert verify_cache(cache) == []
    assert collect_garbage(cache).removed == ()


def test_what_a_killed_writer_left_in_a_script_goes(cache: Tree, sample: Sample):
    _, path = sample.built("a")
    before = snapshot(str(path))
    (path / "latency").mkdir()
    for directory in (path, path / "latency"):
        (directory / ".tmp-1").write_text("half a table")
    collect_garbage(cache)
    (path / "latency").rmdir()
    assert snapshot(str(path)).keys() == before.keys()


def test_a_build_of_a_part_adds_to_the_roots(cache: Tree, sample: Sample):
    records = [sample.record([name], directory=name) for name in ("a", "b")]
    for record in records:
        sample.program(record.directory)
        publish_script(cache, record)
        record_build(cache, MANIFEST, "p", [(record.directory, record.hash)], replace=False)
    assert collect_garbage(cache).removed == ()
    record_build(cache, MANIFEST, "p", [("b", records[1].hash)])
    assert len(collect_garbage(cache).removed) == 2
    forget_projects(cache, ["/q/tilus.toml"])
    assert collect_garbage(cache).removed == ()
    forget_projects(cache, [MANIFEST])
    assert len(collect_garbage(cache).removed) == 2
    assert os.listdir(cache.path("scripts")) == []


def test_recording_the_same_build_writes_nothing(cache: Tree):
    record_build(cache, MANIFEST, "p", [("a", "0" * 64)])
    before = snapshot(cache.root)
    record_build(cache, MANIFEST, "p", [("a", "0" * 64)])
    record_build(cache, MANIFEST, "p", [("a", "0" * 64)], replace=False)
    assert snapshot(cache.root) == before


def test_what_is_old_goes_unless_a_young_script_uses_it(cache: Tree, sample: Sample):
    headers = sample.include(a="x")
    for name, days in (("a", 40), ("b", 20), ("used", 40)):
        age(sample.program(name, include=headers if name == "used" else "").path, days)
    age(cache.include_path(headers), 40)
    publish_script(cache, sample.record(["used"]))
    assert len(collect_garbage(cache, older_than=30 * DAY).removed) == 1
    assert published(cache) == {sample.hash("b"), sample.hash("used"), headers}


def test_the_oldest_go_first_until_the_cache_is_small_enough(cache: Tree, sample: Sample):
    for name, days in (("a", 1), ("b", 3), ("c", 2)):
        age(sample.program(name, size=10_000).path, days)
    done = collect_garbage(cache, max_size=25_000)
    assert [item.name for item in done.removed] == [f"programs/{sample.hash('b')}"]
    assert done.kept_size <= 25_000
    assert len(collect_garbage(cache, max_size=0).removed) == 2


def built_for(
    cache: Tree, sample: Sample, root: str, name: str, days: float, host: str = HOST
) -> str:
    """Publish a script of one program for a root of the index; return the script's hash."""
    sample.program(name, size=10_000)
    record = sample.record([name], directory=name)
    path = publish_script(cache, record)
    record_build(cache, root, name, [(name, record.hash)], host=host)
    for entry in (path, cache.program_path(sample.hash(name))):
        age(entry, days)
    return record.hash


def test_a_project_that_is_gone_keeps_nothing(cache: Tree, sample: Sample, tmp_path: Path):
    """Given two checkouts, when one is deleted, then `gc` removes what only that one needs."""
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tilus.toml").write_text("")
        built_for(cache, sample, f"{tmp_path}/{name}/tilus.toml", name, 1)
    shutil.rmtree(tmp_path / "gone")
    assert collect_garbage(cache, dry_run=True).gone == (f"{tmp_path}/gone/tilus.toml",)
    assert collect_garbage(cache).gone == (f"{tmp_path}/gone/tilus.toml",)
    assert published(cache) == {sample.hash("kept")}
    assert f"{tmp_path}/gone/tilus.toml" not in read_index(cache)
    assert verify_cache(cache) == []


def test_a_project_of_another_machine_goes_when_a_limit_asks(cache: Tree, sample: Sample):
    built_for(cache, sample, "/container/tilus.toml", "a", 20, host="another")
    assert collect_garbage(cache).removed == ()
    assert len(collect_garbage(cache, older_than=10 * DAY).removed) == 2
    assert "/container/tilus.toml" not in read_index(cache)


def test_requests_go_by_their_last_use(cache: Tree, sample: Sample):
    """Given three requests of running programs, when the oldest is used again and the second is
    loaded, then a limit takes the third alone, and then says what remains and why."""
    roots = {name: f"{JIT_ROOT_PREFIX}{name}" for name in ("a", "b", "c")}
    hashes = {name: built_for(cache, sample, roots[name], name, 9) for name in roots}
    built_for(cache, sample, MANIFEST, "needed", 30)
    record_build(cache, roots["a"], "a", [("a", hashes["a"])])
    hold = ReaderLock(cache.root, [hashes["b"]])
    assert collect_garbage(cache).removed == ()
    done = collect_garbage(cache, max_size=35_000)
    assert {item.name.split("/")[-1] for item in done.removed} == {hashes["c"], sample.hash("c")}
    done = collect_garbage(cache, max_size=1)
    assert published(cache) == {sample.hash("b"), sample.hash("needed")}
    assert 10_000 < done.loaded_size < done.kept_size
    assert MANIFEST in done.needing
    del hold
    done = collect_garbage(cache, max_size=1, forgotten=[MANIFEST])
    assert published(cache) == set()
    assert done.kept_size == 0
    assert verify_cache(cache) == []


def test_a_limit_takes_state_but_no_samples_of_tunings(cache: Tree, sample: Sample):
    for name in ("digests", "sources/1/kernel.cu.j2", "tune/matmul/samples"):
        path = Path(cache.state_path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 1000)
    assert collect_garbage(cache).kept_size == 3000
    assert collect_garbage(cache, max_size=1).kept_size == 1000
    assert os.listdir(Path(cache.state_path, "tune")) == ["matmul"]


def test_a_root_that_is_damaged_stops_everything(cache: Tree, sample: Sample):
    sample.program("a")
    record = sample.record(["a"])
    record_build(cache, MANIFEST, "p", [("matmul", record.hash)])
    with pytest.raises(TilusbuildError, match=re.escape(MANIFEST)):
        collect_garbage(cache)
    assert published(cache) == {sample.hash("a")}
    publish_script(cache, record)
    assert collect_garbage(cache).removed == ()


def test_a_running_build_is_never_disturbed(cache: Tree, sample: Sample):
    sample.program("a")
    with cache.hold_use():
        with pytest.raises(TilusbuildError, match="a build is using"):
            collect_garbage(cache)
        with pytest.raises(TilusbuildError, match="a build is using"):
            clear_cache(cache)
        assert len(collect_garbage(cache, dry_run=True).removed) == 1
        assert lookup_entry(cache, sample.hash("a")) is not None
    collect_garbage(cache)
    assert lookup_entry(cache, sample.hash("a")) is None
    stage = Stage(cache)
    with pytest.raises(TilusbuildError, match="a build is using"):
        collect_garbage(cache)
    stage.discard()
    Path(cache.state_path, "history").write_text("")
    clear_cache(cache)
    assert verify_cache(cache) == []
    assert read_index(cache) == {}
    assert collect_stats(cache).size == 0
    assert sample.program("a").status == "built"


@settings(max_examples=25)
@given(
    scripts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=4),
    rooted=st.sets(st.integers(0, 3)),
    ages=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    older_than=st.none() | st.integers(0, 50),
    max_size=st.none() | st.integers(0, 6000),
)
def test_whatever_goes_nothing_dangles_and_no_root_is_lost(
    memory, scripts, rooted, ages, older_than, max_size
):
    sample = sample_at(tempfile.mkdtemp(dir=memory), None)
    cache = sample.cache
    for number in range(6):
        headers = sample.include(a=str(number % 3))
        sample.program(str(number), include=headers)
    records = [sample.record([str(n) for n in numbers]) for numbers in scripts]
    for record in records:
        publish_script(cache, record)
    roots = [("matmul", records[n].hash) for n in rooted if n < len(records)]
    record_build(cache, MANIFEST, "p", roots)
    paths = [*_list(cache, "programs"), *_list(cache, "include")]
    paths += [cache.script_path("matmul", record.hash) for record in records]
    for path, days in zip(paths, ages, strict=False):
        age(path, days)
    collect_garbage(
        cache, older_than=None if older_than is None else older_than * DAY, max_size=max_size
    )
    assert verify_cache(cache) == []
    script_by_hash = {script.hash: script for script in list_scripts(cache)}
    assert all(script_by_hash[digest].statuses["missing"] == 0 for _, digest in roots)
    for program in os.listdir(cache.path("programs")):
        text = Path(cache.program_path(program), "module/compile.sh").read_text()
        assert os.path.isdir(cache.include_path(text.split("include/")[1][:64]))


def test_a_script_that_is_loaded_stays_with_its_programs(cache: Tree, sample: Sample):
    sample.program("old")
    record = sample.record(["old"])
    path = publish_script(cache, record)
    hold = ReaderLock(cache.root, [record.hash])
    assert collect_garbage(cache, dry_run=True).removed == collect_garbage(cache).removed == ()
    assert collect_garbage(cache, max_size=0).removed == ()
    assert os.path.isdir(path)
    del hold
    for dry_run in (True, False):
        removed = collect_garbage(cache, dry_run=dry_run).removed
        assert [item.name.split("/")[0] for item in removed] == ["scripts", "programs"]


def test_a_reader_waits_for_a_collection_and_then_finds_nothing(cache, sample, monkeypatch):
    """Given a collection that is about to remove a script, when a reader asks for it, then the
    reader goes on only when it is removed."""
    sample.program("old")
    record = sample.record(["old"])
    path = publish_script(cache, record)
    seen, loading = [], []

    def load() -> None:
        ReaderLock(cache.root, [record.hash])
        seen.append(os.path.isdir(path))

    remove_entry = cache.remove_entry

    def removing(name: str) -> None:
        if name == path:
            loading.append(threading.Thread(target=load))
            loading[0].start()
            loading[0].join(0.05)  # it waits: were it not to, it would still see the directory
        remove_entry(name)

    monkeypatch.setattr(cache, "remove_entry", removing)
    collect_garbage(cache)
    loading[0].join()
    assert seen == [False]


def test_without_an_index_nothing_is_garbage(cache: Tree, sample: Sample):
    """Deleting a damaged index, as one may delete anything, costs nobody's programs."""
    for name in ("a", "b"):
        sample.program(name)
        publish_script(cache, record := sample.record([name], directory=name))
        record_build(cache, OTHERS[name], name, [(name, record.hash)])
    sample.program("of nobody")
    os.unlink(cache.path("index.json"))
    for dry_run in (True, False):
        with pytest.raises(TilusbuildError, match="nothing was removed"):
            collect_garbage(cache, dry_run=dry_run)
    assert len(published(cache)) == 3
    a, b = (script for script in list_scripts(cache))
    record_build(cache, OTHERS["a"], "a", [(a.directory, a.hash)])
    assert set(read_index(cache)) == {OTHERS["a"], LOST_ROOT}
    assert len(collect_garbage(cache).removed) == 1, (
        "of the other project the index knows again, too"
    )
    record_build(cache, OTHERS["b"], "b", [(b.directory, b.hash)])
    assert set(read_index(cache)) == {OTHERS["a"], OTHERS["b"]}
    assert collect_garbage(cache).removed == ()


def test_a_build_of_one_level_leaves_the_other_programs(cache: Tree, sample: Sample):
    """The script of all programs stays the one that is loaded, as long as it has the new ones."""
    for name in ("a", "b", "c"):
        sample.program(name)
    complete, default, other = (sample.record(names) for names in (["a", "b"], ["a"], ["c"]))

    def list_after(record: ScriptRecord, edition: int, level: int = 2) -> object:
        publish_script(cache, record)
        origin = {"tilus.toml": f"edition {edition}"}
        scripts = [(record.directory, record.hash)]
        record_build(
            cache, MANIFEST, "p", scripts, replace=False, keeps_larger=level < 2, origin=origin
        )
        (listed,) = read_index(cache)[MANIFEST].scripts
        return listed[1]

    assert list_after(complete, 1) == complete.hash
    assert list_after(default, 1, level=0) == complete.hash
    assert list_after(other, 1, level=0) == other.hash
    assert list_after(complete, 1) == complete.hash
    assert list_after(default, 2, level=0) == default.hash, "what the edit removed is not loaded"
    assert list_after(complete, 2) == complete.hash
    assert list_after(default, 2) == default.hash
