"""Programs compiled again: the same bytes, or which are not, and nothing of a stranger is run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.packages import Hand, by_hand
from support.project import Project
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits
from tilusbuild.rebuild.sample import rebuild_share, sample_programs

HASHES = [f"{number:02x}" + "0" * 62 for number in range(256)]


def test_a_sample_is_the_lowest_part_of_the_hashes() -> None:
    assert sample_programs(HASHES, 1.0) == set(HASHES)
    assert sample_programs(HASHES, 0.25) == set(HASHES[:64])
    assert sample_programs(reversed(HASHES), 0.25) == set(HASHES[:64])


def test_a_sample_of_few_has_one() -> None:
    assert sample_programs(HASHES[100:], 0.01) == {HASHES[100]}
    assert sample_programs([], 0.5) == set()


def test_all_programs_of_a_package_are_reproduced(project: Project, tmp_path: Path) -> None:
    path = by_hand(project.cache, sources=True).archive(tmp_path / "p")
    results = list(rebuild_share(str(path), 1.0, Limits()))
    assert len(results) == 4
    assert all(result.same for result in results)


def test_a_library_that_the_sources_do_not_make(project: Project, tmp_path: Path) -> None:
    hand = by_hand(project.cache, sources=True)
    name = hand.path("module/lib.so")
    hand.files[name] += b"\0"
    results = rebuild_share(str(hand.relist().archive(tmp_path / "p")), 1.0, Limits())
    assert [r.program for r in results if not r.same] == [name.split("/")[1]]


def test_a_source_that_does_not_compile(project: Project, tmp_path: Path) -> None:
    hand = by_hand(project.cache, sources=True).only("twice")
    hand.files[hand.path("source.cu")] += b"oops\n"
    (result,) = rebuild_share(str(hand.relist().archive(tmp_path / "p")), 1.0, Limits())
    assert result.rebuilt_sha256 is None
    assert "does not compile here" in str(result)


CANARY = "#!/bin/sh\ntouch {canary}\n"


def test_nothing_that_came_with_a_package_is_run(project: Project, tmp_path: Path) -> None:
    hand = by_hand(project.cache, sources=True).only("twice")
    script = hand.files[hand.path("compile.sh")].decode()
    evil = CANARY.format(canary=tmp_path / "ran") + script
    hand.files[hand.path("compile.sh")] = evil.encode()
    (result,) = rebuild_share(str(hand.relist().archive(tmp_path / "p")), 1.0, Limits())
    assert result.same
    options = hand.files[hand.path("options.txt")].decode()
    name, commands = hand.path("options.txt"), ("{cxx} -c", "{cxx} -fplugin=./x.so -c")
    hand.files[name] = options.replace(*commands).encode()
    (result,) = rebuild_share(str(hand.relist().archive(tmp_path / "q")), 1.0, Limits())
    assert result.rebuilt_sha256 is None
    assert "its commands differ from those of this tilusbuild" in str(result)
    assert not (tmp_path / "ran").exists()


def test_a_package_without_sources(hand: Hand, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"compile\.sh is not packed"):
        list(rebuild_share(str(hand.archive(tmp_path / "p")), 1.0, Limits()))


def test_a_cache_is_verified_and_rebuilt_and_not_written(project: Project) -> None:
    cache = os.fspath(project.cache)
    before = sorted((p, p.lstat().st_mtime_ns) for p in project.cache.rglob("*"))
    output = project.run("verify", "--rebuild", cache).out
    assert output.endswith("4 programs compiled again, 0 not reproduced\n")
    assert sorted((p, p.lstat().st_mtime_ns) for p in project.cache.rglob("*")) == before


def test_the_command_tells_what_is_wrong_and_how_many(project, hand, tmp_path) -> None:
    path = hand.write("directory", tmp_path)
    for end in ("lib.so", "script.json"):
        name = path / hand.path(end)
        name.write_bytes(name.read_bytes()[:-1] + b"?")
    done = project.run("verify", os.fspath(path), status=1)
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["ChangedFile"] * 2
    assert done.err == "2 problems\n"
    lines = project.run("verify", os.fspath(path), "--json", status=1).out.splitlines()
    assert json.loads(lines[-1]) == {"event": "summary", "problems": 2}


@pytest.mark.parametrize(
    "words", [("verify",), ("verify", "p", "--rebuild=0%"), ("verify", "p", "--rebuild=x")]
)
def test_mistakes_on_the_command_line(project: Project, words: Any) -> None:
    assert "error: " in project.run(*words, status=2).err
