"""Hits that are compiled here as well: what is wrong is named, and nothing of that remote stays."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from support.http_cache import HttpCache
from support.poison import poison
from support.processes import wait_until
from support.project import NewProject, Project
from support.trees import published
from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.index import find_programs
from tilusbuild.cache.merging import merge_caches
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.events import Warned
from tilusbuild.engine.inbox import RemoteWithdrawn
from tilusbuild.remote.client import RemoteCache, sampled
from tilusbuild.remote.settings import RemoteSettings


@pytest.fixture
def writer(server: HttpCache, new_user: NewProject) -> Project:
    """A user who has sent three programs."""
    user = new_user(server.address, WRITE="1")
    user.edit("tilus.toml", "[1, 2]", "[1, 3]")
    assert user.build()["remote"]["sent"] == 3
    return user


def reader(new_user: NewProject, address: str, share: str) -> Project:
    user = new_user(address, VERIFY=share)
    user.edit("tilus.toml", "[1, 2]", "[1, 3]")
    return user


def test_what_is_right_is_compiled_as_well(server, writer, new_user) -> None:
    user = reader(new_user, server.address, "1")
    summary = user.build()
    assert (summary["attempts"], summary["remote"]["verified"]) == (3, 3)
    assert summary["remote"]["wrong"] == summary["remote"]["hits"] == 0
    assert published(user.cache) == published(writer.cache)


def test_without_a_share_another_library_is_believed(server, writer, new_user) -> None:
    program = min(writer.programs)
    poison(server, writer, program)
    user = reader(new_user, server.address, "0")
    assert user.build()["remote"]["hits"] == 3
    assert user.libraries[program] != writer.libraries[program]


def test_what_is_wrong_is_named_and_all_is_compiled_here(server, writer, new_user) -> None:
    user = new_user(server.address)
    assert user.build()["remote"]["hits"] == 2
    (poisoned,) = writer.programs.keys() - user.programs.keys()
    poison(server, writer, poisoned)
    user.edit("tilus.toml", "[1, 2]", "[1, 3]")
    user.environment["TILUSBUILD_REMOTE_VERIFY"] = "1"
    ran = user.run("build", "--json", status=1)
    (said,) = [each["message"] for each in ran.events if each["event"] == "warning"]
    assert f"scale/2 cpu ({poisoned[:12]}) of {server.address}" in said
    assert "module/lib.so, meta.json" in said
    # The two that an earlier build fetched were taken back, and compiled.
    assert (ran.summary["attempts"], ran.summary["remote"]["wrong"]) == (3, 1)
    assert user.libraries == writer.libraries
    assert user.build()["exit_status"] == 0


def test_hits_of_the_same_build_are_taken_back(server, writer, tmp_path) -> None:
    poisoned, *others = sorted(writer.programs)
    poison(server, writer, poisoned)
    cache = Tree(str(tmp_path / "cache"))
    told: SimpleQueue[Any] = SimpleQueue()
    with BuildStore(cache) as store:
        settings = RemoteSettings(server.address, "test", verify=0.5)
        client = RemoteCache(settings, store, cache, told.put)
        client._salt = only(poisoned, others)
        client.ask(dict.fromkeys((poisoned, *others), "scale/0 cpu"))
        wait_until(lambda: told.qsize() == 3)
        answers = {each.program: each.answer for each in (told.get() for _ in range(3))}
        assert [answers[each] is None for each in (poisoned, *others)] == [True, False, False]
        merge_caches(cache, [Tree(str(writer.cache))])  # as if it had been compiled
        client.built(poisoned, 1.0)
        client.close()
    assert client.summary().wrong == 1
    assert [type(told.get()) for _ in range(told.qsize())] == [Warned, RemoteWithdrawn]
    assert find_programs(cache, "") == [poisoned]


def only(wanted: str, others: list[str]) -> str:
    """The salt of a sample that has one program and none of the others."""
    for salt in map(str, range(1000)):
        if [sampled(each, 0.5, salt) for each in (wanted, *others)] == [True, False, False]:
            return salt
    raise AssertionError


def test_a_sample_is_of_the_hash_and_the_salt(tmp_path: Path) -> None:
    programs = [f"{number:064x}" for number in range(5000)]

    def chosen(share: float, salt: str) -> set[str]:
        return {program for program in programs if sampled(program, share, salt)}

    assert chosen(0.02, "a") == chosen(0.02, "a") != chosen(0.02, "b")
    assert chosen(0.02, "a") < chosen(0.2, "a") < chosen(1, "a") == set(programs)
    assert 50 < len(chosen(0.02, "a")) < 150
    assert chosen(0, "a") == set()
    cache = Tree(str(tmp_path / "cache"))
    with BuildStore(cache) as store:
        settings = RemoteSettings(f"file://{tmp_path}", "test")
        builds = [RemoteCache(settings, store, cache, lambda told: None) for _ in range(2)]
        assert builds[0]._salt != builds[1]._salt
