"""Script directories: what people open first."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cache_sample import Sample
from support.processes import run_to_end
from support.trees import snapshot
from tilusbuild.cache import layout
from tilusbuild.cache.index import collect_stats, find_program, list_scripts
from tilusbuild.cache.scripts import ScriptRecord, parse_script_txt, publish_script
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache
from tilusbuild.errors import InputError
from tilusbuild.runtime.sealed import CorruptFileError


def test_a_script_directory_is_named_by_its_text_and_links_its_programs(cache, sample):
    for name, status in (("a", "built"), ("b", "failed"), ("c", "pruned")):
        reason = sample.program(name, status).reason
        assert reason == ("" if name == "a" else f"{name} is wrong")
    path = Path(publish_script(cache, sample.record(["a", "b", "c", "d"])))
    printed = run_to_end(["sha256sum", "script.txt"], status=None, cwd=path)
    assert printed.stdout.split()[0] == path.name
    assert path.parent == Path(cache.root, "scripts/matmul")
    assert os.listdir(path / "programs") == ["0"]
    assert sorted(os.listdir(path / "failed")) == ["1", "2"]
    target = os.readlink(path / "programs/0")
    assert target == f"../../../../programs/{sample.hash('a')}"
    assert (path / "programs/0/program.txt").read_text() == sample.program_txt("a")
    assert (path / "failed/1/module/nvcc_output.txt").read_text() == "log of b\n"
    assert (path / "schedule.txt").read_text().splitlines()[0] == "  index  name"
    assert verify_cache(cache) == []
    before = snapshot(cache.root)
    publish_script(cache, sample.record(["a", "b", "c", "d"]))
    assert snapshot(cache.root) == before, "the same again writes nothing"


def test_it_follows_what_becomes_of_its_programs(cache: Tree, sample: Sample):
    record = sample.record(["a", "b"])
    path = Path(publish_script(cache, record))
    assert os.listdir(path / "programs") == os.listdir(path / "failed") == []
    sample.program("a", "failed")
    publish_script(cache, record)
    assert os.listdir(path / "failed") == ["0"]
    subprocess.run(["rm", "-r", cache.program_path(sample.hash("a"))], check=True)
    sample.program("a")
    sample.program("b")
    publish_script(cache, record)
    assert os.listdir(path / "failed") == []
    assert sorted(os.listdir(path / "programs")) == ["0", "1"]
    # Measurements are no files of ours.
    (path / "dispatch_table.json").write_text("{}")
    (path / "latency/1024").mkdir(parents=True)
    changed = ScriptRecord(record.directory, record.script_txt, ("index",), [(0,), (1,)])
    publish_script(cache, changed, {sample.hash("a"): "built"})
    assert os.listdir(path / "programs") == ["0"]
    assert (path / "schedule.txt").read_text() == "  index\n-------\n      0\n      1\n"
    assert (path / "dispatch_table.json").read_text() == "{}"
    assert (path / "latency/1024").is_dir()


def test_what_is_in_the_way_is_replaced(cache: Tree, sample: Sample):
    sample.program("a")
    record = sample.record(["a"])
    path = Path(publish_script(cache, record))
    (path / "programs/0").unlink()
    (path / "programs/0").mkdir()
    (path / "programs/0/file").write_text("")
    (path / "failed").rmdir()
    (path / "failed").symlink_to("/tmp")
    publish_script(cache, record)
    assert verify_cache(cache) == []
    assert os.path.isdir("/tmp")


def test_listing_counts_each_program_once(cache: Tree, sample: Sample):
    sample.program("a")
    sample.program("b", "pruned")
    publish_script(cache, sample.record(["a", "b", "c", "a"]))
    (listing,) = list_scripts(cache)
    assert listing.head["script"] == "Matmul"
    assert listing.head["target"] == "h100"
    assert listing.statuses == {"built": 1, "failed": 0, "pruned": 1, "missing": 1}
    assert len(listing.programs) == 4
    entries = [sample.entry(name) for name in ("a", "b")]
    assert listing.size == sum(entry.size for entry in entries)
    stats = collect_stats(cache)
    assert stats.statuses == {"built": 1, "failed": 0, "pruned": 1, "broken": 0}
    assert stats.size == sum(stats.sizes.values()) > listing.size


def test_a_program_is_named_by_its_number_or_by_its_first_digits(cache: Tree, sample: Sample):
    sample.built("old")
    sample.built("a", "b")
    assert find_program(cache, "Matmul/0") == find_program(cache, sample.hash("a")[:10])
    assert find_program(cache, "Matmul/1") == sample.hash("b")
    wrong = {
        "Matmul": "names 2 programs",
        "Other": 'no script "Other"',
        "0" * 64: "no program starts",
    }
    for word, pattern in {**wrong, "Matmul/7": 'no "Matmul/7"', "": "name"}.items():
        with pytest.raises(InputError, match=pattern):
            find_program(cache, word)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "-x", "a\n", "é", "x" * 256])
def test_a_script_cannot_be_called_so(cache: Tree, sample: Sample, name):
    with pytest.raises(ValueError, match="directory can be called"):
        publish_script(cache, ScriptRecord(name, sample.record([]).script_txt))


@given(st.text())
def test_names_that_are_ours_are_safe(name):
    if layout.is_script_directory(name):
        assert os.path.basename(os.path.normpath(os.path.join("/root", name))) == name
    if layout.is_inside(name):
        assert os.path.normpath(os.path.join("/root", name)) == f"/root/{name}"
    if layout.is_program_number(name):
        assert str(int(name)) == name
    if layout.is_hash(name):
        assert len(name) == 64
        int(name, 16)


@given(st.text())
def test_any_text_is_a_script_or_broken(text):
    try:
        script = parse_script_txt(text + "\n[programs]\n" + text)
    except CorruptFileError:
        return
    assert all(layout.is_hash(program) for program in script.programs)


@pytest.mark.parametrize(
    "line",
    [
        *("0 " + "a" * 63, "0  " + "a" * 64, "x", "-1 " + "a" * 64, "01 " + "a" * 64),
        *("9" * 101 + " " + "a" * 64, f"2 {'a' * 64}\n1 {'a' * 64}", f"2 {'a' * 64}\n2 {'b' * 64}"),
    ],
)
def test_a_malformed_list_of_programs_is_broken(line):
    with pytest.raises(CorruptFileError, match="list of programs"):
        parse_script_txt(f"[programs]\n{line}\n")
