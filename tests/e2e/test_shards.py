"""Shards: machines that build a part each and write it to a remote come to what one would have."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import scale
from support.http_cache import http_cache
from support.project import NewProject, Project
from support.trees import published


@pytest.fixture
def two_scripts(new_project: NewProject) -> Any:
    """Scripts with 4 and 3 schedules; `scale` is dispatched by hand."""
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


@contextmanager
def remote_at(scheme: str, directory: Path) -> Iterator[str]:
    """The address of an empty remote cache."""
    if scheme == "file":
        yield f"file://{directory / 'remote'}"
    else:
        with http_cache() as server:
            yield server.address


class Shard(Project):
    """A copy of a project that was built apart."""

    summary: dict[str, Any]


def built_apart(
    project: Project, count: int, address: str, numbers: tuple[int, ...] = ()
) -> list[Shard]:
    """A copy of the project for each shard, or those of these numbers, each in a directory of its
    own, built and sent."""
    shards = []
    for number in numbers or range(1, count + 1):
        directory = project.directory.parent / f"shard {number}"
        shard = Shard(project.copy(directory, cache=False).directory)
        shard.environment |= {"TILUSBUILD_REMOTE_CACHE": address, "TILUSBUILD_REMOTE_WRITE": "1"}
        shard.summary = shard.build("--shard", f"{number}/{count}")
        shards.append(shard)
    project.environment["TILUSBUILD_REMOTE_CACHE"] = address
    return shards


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_shards_built_apart_and_fetched_are_the_tree_of_one_build(
    two_scripts: Any, scheme: str
) -> None:
    reference = two_scripts.copy(two_scripts.directory.parent / "whole", cache=False)
    reference.build()
    with remote_at(scheme, two_scripts.directory.parent) as address:
        shards = built_apart(two_scripts, 4, address)
        assert sum(shard.summary["compiled"] for shard in shards) == 7
        assert all(len(shard.programs) == shard.summary["compiled"] for shard in shards)
        summary = two_scripts.build()
    assert (summary["attempts"], summary["remote"]["hits"]) == (0, 7)
    assert published(two_scripts.cache) == published(reference.cache)
    two_scripts.run("cache", "verify")


def test_what_a_missing_shard_would_have_built_is_compiled(two_scripts: Any) -> None:
    address = f"file://{two_scripts.directory.parent / 'remote'}"
    shards = built_apart(two_scripts, 3, address, numbers=(1, 3))
    assert two_scripts.compiled() == 7 - sum(shard.summary["compiled"] for shard in shards)


def test_a_script_whose_schedules_build_elsewhere_does_not_fail_here(new_project) -> None:
    """Given schedules of which the first does not compile, when each is a shard of its own, then
    that shard is no failure, and the failure is known to the build that joins them."""
    template = scale.TEMPLATE.replace("{# y", "{% if unroll == 1 %}#error no{% endif %}\n{# y")
    project = new_project(files={"kernels/scale.cu.j2": template})
    first, second = built_apart(project, 2, f"file://{project.directory.parent / 'remote'}")
    assert sorted((s.summary["failed"], s.summary["compiled"]) for s in (first, second)) == [
        (0, 1),
        (1, 0),
    ]
    summary = project.build()
    assert (summary["attempts"], summary["failed"], summary["cached"]) == (0, 1, 1)


def test_a_merged_cache_is_that_of_the_build_it_is_from(two_scripts: Any) -> None:
    """Given the cache of another machine, when it is merged, then a collection keeps it, a build
    compiles nothing, and the tree is that of one build."""
    other_project = two_scripts.copy(two_scripts.directory.parent / "there", cache=False)
    other_project.build()
    merged = two_scripts.run("cache", "merge", str(other_project.cache))
    assert "merged 7 programs" in merged.out
    assert merged.err == ""
    two_scripts.run("cache", "gc")
    assert two_scripts.compiled() == 0
    assert published(two_scripts.cache) == published(other_project.cache)
    two_scripts.run("cache", "verify")
    again = two_scripts.run("cache", "merge", str(other_project.cache)).out
    assert "merged 0 programs (7 known before)" in again


def shard_event(project: Project, shard: str, *words: str) -> dict[str, Any]:
    """The event that says what a shard is."""
    events = project.run("build", "--json", "-n", "--shard", shard, *words).events
    line: dict[str, Any] = next(event for event in events if event["event"] == "shard")
    return line


def test_the_programs_are_dealt_out_evenly_and_a_bad_word_ends_with_status_2(project) -> None:
    project.write("tilus.toml", scale.manifest(scale.script(schedules=5)))
    dealt = [shard_event(project, f"{number}/2") for number in (1, 2)]
    assert [event["programs"] for event in dealt] == [3, 2]
    assert dealt[0]["split"] == dealt[1]["split"]
    ran = project.run("build", "--shard", "5/4", status=2)
    assert ran.err.startswith('error: --shard "5/4": there is no shard 5 of 4')
    assert not project.cache.exists()
