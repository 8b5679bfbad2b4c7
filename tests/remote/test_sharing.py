"""What one user built and sent, another fetches: the same bytes, checked, and never worse."""

import time
from pathlib import Path
from typing import Any

import pytest

from support.http_cache import Faults, HttpCache, line_to
from support.poison import path_of, unpack
from support.project import NewProject, Project
from support.scale import include_headers
from support.trees import published
from tilusbuild.remote.archive import include_key, pack_entry, program_key


def warnings(project: Project, *words: str) -> tuple[dict[str, Any], list[str]]:
    """The summary of a build that ends well, and its warnings."""
    ran = project.run("build", "--json", *words)
    messages = [event["message"] for event in ran.events if event["event"] == "warning"]
    return ran.summary, messages


def test_what_one_user_builds_another_fetches(server: HttpCache, new_user: NewProject) -> None:
    first, second = new_user(server.address, WRITE="1"), new_user(server.address)
    for user in (first, second):
        include_headers(user)
    built = first.build()
    assert built["attempts"] == built["remote"]["sent"] == 2
    fetched = second.build()
    assert (fetched["attempts"], fetched["cached"], fetched["remote"]["hits"]) == (0, 2, 2)
    assert published(first.cache) == published(second.cache)
    assert list(second.cache.glob("include/**/a/b.h"))
    second.run("cache", "verify")


def test_an_entry_comes_last_and_what_was_fetched_is_not_sent_back(server, new_user) -> None:
    user = new_user(server.address, WRITE="1")
    user.build()
    puts = [path for method, path, _ in server.requests if method == "PUT"]
    includes = {path_of(include_key(directory.name)) for directory in user.cache.glob("include/*")}
    programs = {path_of(program_key(program)) for program in user.programs}
    assert includes | programs == set(puts)
    assert set(puts[: len(includes)]) == includes, "once each, and first"
    assert new_user(server.address, WRITE="1").build()["remote"]["hits"] == 2
    assert server.count("PUT") == len(puts)


def test_a_program_that_does_not_compile_is_a_result(
    server: HttpCache, new_user: NewProject
) -> None:
    wrong = "{% if unroll == 2 %}int x = ;{% endif %}"
    users = [new_user(server.address, WRITE="1"), new_user(server.address)]
    for user in users:
        user.edit("kernels/scale.cu.j2", "{# y = a * x #}", wrong)
    assert users[0].build()["remote"]["sent"] == 2
    summary = users[1].build()
    assert (summary["attempts"], summary["cached"], summary["failed"]) == (0, 1, 1)
    assert published(users[0].cache) == published(users[1].cache)


@pytest.mark.parametrize("name", ["module/lib.so", "meta.json"])
def test_a_file_with_other_bytes_is_refused_by_name(server, new_user, name) -> None:
    first, second = new_user(server.address, WRITE="1"), new_user(server.address, WRITE="1")
    first.build()
    path = path_of(program_key(next(iter(first.programs))))
    content = server.held[path]
    files = unpack(content)
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    server.held[path] = pack_entry(files)
    summary, messages = warnings(second)
    assert summary["attempts"] == summary["remote"]["refused"] == 1
    assert any(name in message and "scale/" in message for message in messages)
    assert published(first.cache) == published(second.cache)
    # The right one was sent again, with how long its compile took.
    assert unpack(server.held[path]) == unpack(content)


def test_an_entry_without_its_directory_is_a_miss_and_is_completed(server, new_user) -> None:
    first, second = new_user(server.address, WRITE="1"), new_user(server.address, WRITE="1")
    first.build()
    for directory in first.cache.glob("include/*"):
        del server.held[path_of(include_key(directory.name))]
    summary, messages = warnings(second)
    assert (summary["attempts"], messages) == (2, [])
    assert published(first.cache) == published(second.cache)
    assert new_user(server.address).build()["remote"]["hits"] == 2


def test_what_an_older_version_sent_is_a_miss(server: HttpCache, new_user: NewProject) -> None:
    user = new_user(server.address)
    server.held[path_of("tilusbuild program 2 " + "0" * 64)] = b"{}"
    summary, messages = warnings(user)
    assert (summary["attempts"], summary["remote"]["misses"], messages) == (2, 2, [])


def test_an_interrupt_leaves_nothing_behind(server: HttpCache, new_user: NewProject) -> None:
    new_user(server.address, WRITE="1").build()
    with line_to(server.port, Faults(delay=30)) as line:
        user = new_user(line.address)
        process = user.start("build", "--json")
        while line.connections == 0:
            time.sleep(0.02)
        process.send_signal(2)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert list(user.cache.glob("staging/*")) == []


def test_doctor_asks_the_remote(server: HttpCache, new_user: NewProject) -> None:
    user = new_user(server.address)
    assert f"ok       remote cache: {server.address}, read: " in user.run("doctor", status=None).out
    server.status = 503
    assert "answers GET with status 503" in user.run("doctor", status=None).out


def test_no_extra_is_needed(server: HttpCache, new_user: NewProject, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    for name in ("google", "grpc"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text("raise ModuleNotFoundError(name=__name__)")
    address = server.address
    users = [new_user(address, WRITE="1"), new_user(address), new_user("grpc://127.0.0.1:1")]
    for user in users:
        user.environment["PYTHONPATH"] = str(hidden)
    assert users[0].build()["remote"]["sent"] == 2
    assert users[1].build()["remote"]["hits"] == 2
    summary, messages = warnings(users[2])
    assert (summary["attempts"], len(messages)) == (2, 1)
    assert "tilusbuild[remote]" in messages[0]
