"""A cache as Tilus, TileLang and Hidet lay out theirs."""

import hashlib
import json
import os

import pytest

from support import scale
from support.project import NewProject
from tilusbuild.interop.export import LAYOUTS


@pytest.fixture
def built(new_project: NewProject):
    """Three schedules, of which the second does not compile, and a table for two sizes."""
    text = scale.manifest(scale.script(schedules=3))
    broken = scale.TEMPLATE.replace("#}", "#}\n{% if unroll == 2 %}oops{% endif %}", 1)
    project = new_project(text, {"kernels/scale.cu.j2": broken})
    project.build()
    (directory,) = project.cache.glob("scripts/scale/*")
    entries = [[[n], program, 1e-6, [n], None, False, []] for n, program in ((1024, 0), (2048, 2))]
    fingerprint = {"script": "*", "device": "A GPU", "arch": "sm_90a"}
    table = {"schema": 2, "keys": ["n"]}
    table["tables"] = [{"fingerprint": fingerprint, "entries": entries}]
    (directory / "dispatch_table.json").write_text(json.dumps(table))
    return project


def programs(project):
    """The hashes in plan order."""
    (text,) = project.cache.glob("scripts/scale/*/script.txt")
    listed = text.read_text().partition("[programs]\n")[2]
    return [line.split()[1] for line in listed.splitlines()]


def tilus_name(built, digest):
    """A program's name by Tilus' own rule."""
    texts = (
        (built.programs[digest] / f"{name}.txt").read_bytes() for name in ("options", "program")
    )
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_what_is_wrong_with_an_export_is_nothing(built, layout):
    """Given an export in the layout of a cache, when it is verified, then nothing is wrong, and
    nothing of it is broken."""
    built.run("cache", "export", "--layout", layout, "view")
    assert "no problems" in built.run("cache", "verify", "view").out
    before = sorted(built.directory.glob("view/**/*"))
    built.run("cache", "gc", "--broken", "view")
    assert sorted(built.directory.glob("view/**/*")) == before


def test_tilus(built):
    result = built.run("cache", "export", "--layout", "tilus", "view")
    assert result.out.startswith("view: 1 script, ")
    view, hashes = built.directory / "view", programs(built)
    (script,) = view.glob("scripts/scale/*")
    links = {path.name: os.readlink(path) for path in (script / "programs").iterdir()}
    assert links == {  # numbered among those that were built
        "0": f"../../../../programs/{tilus_name(built, hashes[0])}",
        "1": f"../../../../programs/{tilus_name(built, hashes[2])}",
    }
    for number in links:
        link = script / "programs" / number
        program = built.programs[hashes[0 if number == "0" else 2]]
        assert (link / "module/lib.so").samefile(program / "module/lib.so")
        assert {"program.txt", "options.txt"} <= {path.name for path in link.iterdir()}
    assert (script / "failed/building/1").resolve().is_dir()
    assert "oops" in (script / "failed/building/1.txt").read_text()
    table = json.loads((script / "dispatch_table.json").read_text())
    assert table["entries"] == [[[1024], 0], [[2048], 1]]
    assert table["_metadata"]["gpu"] == "A GPU"
    assert (script / "dispatch_table.txt").read_text().splitlines()[2:] == [
        "1024         0",
        "2048         1",
    ]
    rows = (script / "schedule.txt").read_text().splitlines()
    assert [row.split() for row in rows[2:]] == [["0", "1"], ["1", "3"]]


def test_hidet(built):
    built.run("cache", "export", "--layout", "hidet", "view")
    above = built.directory / "view/ops/cpu_space_2/scale"
    directories = {path.name for path in above.iterdir() if path.is_dir()}
    hashes = programs(built)
    assert directories == {hashes[0][:16], hashes[2][:16]}
    for name in directories:
        names = {path.name for path in (above / name).iterdir()}
        texts = {"source.cu", "nvcc_log.txt", "summary.txt", "task.txt", "meta.json"}
        assert names == {"lib.so", *texts}
        assert '"$CXX"' in (above / name / "nvcc_log.txt").read_text().splitlines()[0]
        assert "unroll" in (above / name / "summary.txt").read_text()
    (table,) = above.glob("*.dispatch_table.txt")
    assert table.read_text() == f"n program\n1024 {hashes[0][:16]}\n2048 {hashes[2][:16]}\n"


def test_hidets_space_is_the_level_that_was_built(built):
    for level, space in ((0, "cpu_space_0"), (2, "cpu_space_2")):
        built.run("build", "--level", str(level))
        built.run("cache", "export", "--layout", "hidet", "view")
        assert os.listdir(built.directory / "view/ops") == [space]
    with open(built.directory / "tilus.toml", "a") as manifest:
        manifest.write("[script.scale.levels]\nsample = 2\n")
    built.run("build", "--level", "1")
    built.run("cache", "export", "--layout", "hidet", "view")
    assert os.listdir(built.directory / "view/ops") == ["cpu_space_1"]


def test_a_view_is_replaced_and_nothing_else_is(built):
    built.run("cache", "export", "--layout", "tilus", "view")
    built.run("cache", "export", "--layout", "hidet", "view")
    assert sorted(os.listdir(built.directory / "view")) == [".tilusbuild-view", "ops"]
    refused = built.run("cache", "export", "--layout", "tilus", "kernels", status=2)
    assert "holds something else" in refused.err
    assert os.listdir(built.directory / "kernels") == ["scale.cu.j2"]
    leftover = [name for name in os.listdir(built.directory) if name.startswith(".view")]
    assert not leftover
    assert built.run("cache", "verify").out == "no problems found\n"


def test_a_damaged_script_is_named(built):
    (text,) = built.cache.glob("scripts/scale/*/script.json")
    text.write_text("{")
    result = built.run("cache", "export", "--layout", "tilus", "view", status=1)
    assert "script.json is damaged" in result.err
    assert not (built.directory / "view").exists()


def test_in_a_project_its_own_scripts_are_listed_and_exported(built, tmp_path):
    other = built.copy(tmp_path / "other")
    other.edit("tilus.toml", "[script.scale", "[script.plus")
    other.run("build", "--cache-dir", str(built.cache))
    other.run("cache", "export", "--layout", "tilus", "view", "--cache-dir", str(built.cache))
    assert [path.name for path in (other.directory / "view/scripts").iterdir()] == ["plus"]
    listings = [
        other.run("cache", "ls", *option, "--cache-dir", str(built.cache))
        for option in ((), ("--all",))
    ]
    assert [("plus" in listing.out, "scale" in listing.out) for listing in listings] == [
        (True, False),
        (True, True),
    ]
    assert listings[0].err.startswith("--all lists ")
