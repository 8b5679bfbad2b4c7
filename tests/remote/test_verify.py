"""Programs of a remote that are compiled again before they are accepted."""

import pytest

from support.http_cache import HttpCache
from support.poison import files_of, path_of, poison
from support.project import NewProject, Project
from support.trees import published
from tilusbuild.remote.archive import pack_entry, program_key
from tilusbuild.runtime.sealed import seal_json, unseal_json
from tilusbuild.state.files import sha256_bytes


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


def test_what_is_right_is_compiled_again_and_accepted(server, writer, new_user) -> None:
    user = reader(new_user, server.address, "1")
    summary = user.build()
    remote = summary["remote"]
    assert (summary["attempts"], remote["hits"]) == (0, 3)
    assert (remote["verified"], remote["wrong"]) == (3, 0)
    assert published(user.cache) == published(writer.cache)


def test_without_a_share_another_library_is_believed(server, writer, new_user) -> None:
    program = min(writer.programs)
    poison(server, writer, program)
    user = reader(new_user, server.address, "0")
    assert user.build()["remote"]["hits"] == 3
    assert user.libraries[program] != writer.libraries[program]
    # By hand it is found as well.
    result = user.run("verify", user.cache, "--rebuild", status=1)
    assert program in result.out + result.err


def test_what_is_wrong_is_named_and_compiled_here(server, writer, new_user) -> None:
    poisoned = min(writer.programs)
    poison(server, writer, poisoned)
    user = reader(new_user, server.address, "1")
    ran = user.run("build", "--json", status=1)
    (warning,) = [event["message"] for event in ran.events if event["event"] == "warning"]
    assert f"({poisoned[:12]}) of {server.address} is not what this machine compiles" in warning
    assert "module/lib.so has other bytes" in warning
    assert ran.summary["remote"]["wrong"] == 1
    assert user.libraries == writer.libraries
    assert user.build()["exit_status"] == 0


def test_what_cannot_be_compiled_again_is_compiled_here(server, writer, new_user) -> None:
    """Its compile.sh, which no hash covers, has other words than a build writes."""
    program = min(writer.programs)
    files = files_of(writer.programs[program])
    meta = unseal_json(files.pop("meta.json"))
    files["module/compile.sh"] = files["module/compile.sh"].replace(
        b"# given: {", b'# given: {"x":1,'
    )
    data = files["module/compile.sh"]
    meta["files"]["module/compile.sh"] = {"size": len(data), "sha256": sha256_bytes(data)}
    server.held[path_of(program_key(program))] = pack_entry({**files, "meta.json": seal_json(meta)})
    user = reader(new_user, server.address, "1")
    ran = user.run("build", "--json")
    (warning,) = [event["message"] for event in ran.events if event["event"] == "warning"]
    assert "it cannot be compiled again" in warning
    remote = ran.summary["remote"]
    assert (ran.summary["attempts"], remote["refused"], remote["wrong"]) == (1, 1, 0)
    assert user.libraries == writer.libraries
