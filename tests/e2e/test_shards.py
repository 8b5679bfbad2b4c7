"""Shards: machines that build a part each and never talk come, merged, to what one would have."""

import json
import shutil
from typing import Any

import pytest

from support import scale
from support.project import NewProject, Project
from support.trees import published


@pytest.fixture
def two_scripts(new_project: NewProject) -> Any:
    """Scripts with 4 and 3 schedules; `scale` is dispatched by hand and by what was measured."""
    dispatch = """[script.scale.dispatch]
keys = ["n"]
bucket = { n = "pow2" }
table = [{ when = "n <= 16", use = { unroll = 2 } }]
"""
    text = scale.manifest(
        scale.script(schedules=4, more=dispatch), scale.script("other", schedules=3)
    )
    files = {f"kernels/{name}.cu.j2": scale.TEMPLATE for name in ("scale", "other")}
    return new_project(text, files)


class Shard(Project):
    """A copy of a project that was built apart."""

    summary: dict[str, Any]


def built_apart(project: Project, count: int, *words: str, **how: Any) -> list[Shard]:
    """A copy of the project for each shard, each in a directory of its own, built."""
    shards = []
    for number in range(1, count + 1):
        directory = project.directory.parent / f"shard {number}"
        shard = Shard(project.copy(directory, cache=False).directory)
        shard.summary = shard.build("--shard", f"{number}/{count}", *words, **how)
        shards.append(shard)
    return shards


def test_shards_built_apart_and_merged_are_the_tree_of_one_build(two_scripts: Any) -> None:
    shards = built_apart(two_scripts, 4)
    assert sum(shard.summary["compiled"] for shard in shards) == 7
    assert all(len(shard.programs) == shard.summary["compiled"] for shard in shards)
    assert len({name for shard in shards for name in shard.programs}) == 7
    whole = two_scripts.copy(two_scripts.directory.parent / "whole", cache=False)
    whole.build()

    merged = two_scripts.run("cache", "merge", *(str(shard.cache) for shard in shards))
    assert "merged 7 programs" in merged.out
    assert merged.err == ""
    assert published(two_scripts.cache) == published(whole.cache)
    assert two_scripts.compiled() == 0
    assert published(two_scripts.cache) == published(whole.cache)
    two_scripts.run("cache", "verify")
    two_scripts.run("cache", "gc")
    assert published(two_scripts.cache) == published(whole.cache)


def test_a_missing_shard_is_reported_and_the_next_build_compiles_it(two_scripts) -> None:
    shards = built_apart(two_scripts, 3)
    merged = two_scripts.run("cache", "merge", *(str(shard.cache) for shard in shards[:2]))
    assert "missing in all of the caches" in merged.err
    assert two_scripts.compiled() == shards[2].summary["compiled"]


def test_a_script_whose_schedules_build_elsewhere_does_not_fail_here(new_project) -> None:
    """Given schedules of which the first does not compile, when each is a shard of its own, then
    that shard is no failure, and the failure is known after the merge."""
    template = scale.TEMPLATE.replace("{# y", "{% if unroll == 1 %}#error no{% endif %}\n{# y")
    project = new_project(files={"kernels/scale.cu.j2": template})
    first, second = built_apart(project, 2)
    assert sorted((s.summary["failed"], s.summary["compiled"]) for s in (first, second)) == [
        (0, 1),
        (1, 0),
    ]
    project.run("cache", "merge", str(first.cache), str(second.cache))
    summary = project.build()
    assert (summary["attempts"], summary["failed"], summary["cached"]) == (0, 1, 1)


def test_shards_of_different_sources_are_not_mixed(project: Project) -> None:
    first, second = built_apart(project, 2)
    second.edit("kernels/scale.cu.j2", "a * x", "a + x")
    shutil.rmtree(second.cache)
    second.build("--shard", "2/2")
    merged = project.run("cache", "merge", str(first.cache), str(second.cache), status=1)
    assert "they were not built from the same inputs" in merged.err


def test_what_each_machine_measured_is_joined(two_scripts: Any) -> None:
    """Given two caches with tables of their own, of different devices and different sizes, when
    they are merged, then all rows are there, and where both say something the first stays."""
    one, two = (two_scripts.copy(two_scripts.directory.parent / n, cache=False) for n in "ab")
    for project, tables in (
        (one, {"X": [[[16], 1, "measured", 1e-6]], "Y": [[[32], 0, "measured", 5e-6]]}),
        (two, {"X": [[[16], 3, "measured", 9e-6], [[64], 2, "measured", 2e-6]]}),
    ):
        project.build()
        (directory,) = project.cache.glob("scripts/scale/*")
        written = [
            {
                "fingerprint": {"script": directory.name, "device": device, "arch": "cpu"},
                "entries": rows,
            }
            for device, rows in tables.items()
        ]
        value = {"schema": 1, "keys": ["n"], "tables": written}
        (directory / "dispatch_table.json").write_text(json.dumps(value))
    two_scripts.run("cache", "merge", str(one.cache), str(two.cache))
    (made,) = two_scripts.cache.glob("scripts/scale/*/dispatch_table.json")
    found = {
        table["fingerprint"]["device"]: [row[:2] for row in table["entries"]]
        for table in json.loads(made.read_text())["tables"]
    }
    assert found == {"X": [[[16], 1], [[64], 2]], "Y": [[[32], 0]]}
    assert (made.parent / "dispatch_table.txt").exists()


def shard_event(project: Project, shard: str, *words: str) -> dict[str, Any]:
    """The event that says what a shard is."""
    events = project.run("build", "--json", "-n", "--shard", shard, *words).events
    found: dict[str, Any] = next(event for event in events if event["event"] == "shard")
    return found


def test_the_programs_are_dealt_out_evenly_and_a_bad_word_ends_with_status_2(project) -> None:
    project.write("tilus.toml", scale.manifest(scale.script(schedules=5)))
    dealt = [shard_event(project, f"{number}/2") for number in (1, 2)]
    assert [event["programs"] for event in dealt] == [3, 2]
    assert dealt[0]["split"] == dealt[1]["split"]
    ran = project.run("build", "--shard", "5/4", status=2)
    assert ran.err.startswith('error: --shard "5/4": there is no shard 5 of 4')
    assert not project.cache.exists()
