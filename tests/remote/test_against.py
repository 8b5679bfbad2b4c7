"""`verify --against-remote`: what differs is named, and a compile says which one is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.casd import Casd, needs_casd
from support.http_cache import HttpCache
from support.poison import poison
from support.project import NewProject, Project
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote.record import key
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.sealed import seal, unseal
from tilusbuild.state.files import sha256_bytes


def sent(new_user: NewProject, address: str) -> Project:
    """A user whose two programs the remote has."""
    user = new_user(address, WRITE="1")
    assert user.build()["remote"]["sent"] == 2
    return user


def other_library(user: Project, program: str) -> None:
    """Put another library into the cache, listed as it should be."""
    path = user.programs[program]
    data = (path / "module" / "lib.so").read_bytes() + b"\0"
    meta = unseal((path / "meta.json").read_bytes())
    meta["files"]["module/lib.so"] = {"size": len(data), "sha256": sha256_bytes(data)}
    for name, content in (("module/lib.so", data), ("meta.json", seal(meta))):
        (path / name).chmod(0o755)
        (path / name).write_bytes(content)


def test_what_is_the_same_is_counted(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    puts = server.count("PUT")
    ran = user.run("verify", "--against-remote")
    assert ran.out == f"{server.address}: 2 programs the same, 0 not\n"
    assert server.count("PUT") == puts


def test_another_library_there_is_named(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    poison(server, user, user.programs.copy().popitem()[0])
    poisoned = list(user.programs)[-1]
    said = user.run("verify", "--against-remote", status=1).out
    assert f"({poisoned[:12]}): module/lib.so, meta.json: the remote's is wrong" in said
    assert "compiled again, it is as in this cache" in said
    assert "1 program the same, 1 not" in said


def test_another_library_here_is_named(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    program = min(user.programs)
    other_library(user, program)
    ran = user.run("verify", "--against-remote", "--json", status=1)
    differs, summary = ran.events
    assert (differs["program"], differs["wrong"]) == (program, "cache")
    assert differs["files"] == ["module/lib.so", "meta.json"]
    assert differs["why"] == "compiled again, it is as the remote's"
    assert (summary["same"], summary["differing"], summary["missing"]) == (1, 1, 0)


def test_what_neither_has_is_wrong_on_both_sides(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    program = min(user.programs)
    other_library(user, program)
    poison(server, user, program)
    ran = user.run("verify", "--against-remote", "--json", status=1)
    assert ran.events[0]["wrong"] == "both"


@pytest.mark.parametrize("name", ["module/lib.so", "program.txt"])
def test_damage_shows_without_a_compile(name: str, server: HttpCache, new_user: NewProject) -> None:
    """nginx has other bytes under a digest, or a file here was written to."""
    user = sent(new_user, server.address)
    program = min(user.programs)
    record = reapi.ActionResult.FromString(server.held[f"/ac/{key(program).digest}"])
    digest = next(each.digest.hash for each in record.output_files if each.path == name)
    whole = server.held[f"/cas/{digest}"]
    server.held[f"/cas/{digest}"] = b"x" * len(whole)
    ran = user.run("verify", "--against-remote", "--json", status=1)
    assert {each["wrong"] for each in ran.events[:-1]} == {"remote"}
    assert f"{name} has other bytes" in ran.events[0]["why"]
    server.held[f"/cas/{digest}"] = whole
    path = user.programs[program] / name
    path.chmod(0o755)
    path.write_bytes(b"x" * len(whole))
    (differs, _) = user.run("verify", "--against-remote", "--json", status=1).events
    assert (differs["wrong"], differs["files"]) == ("cache", [name])
    assert f"{name} was modified" in differs["why"]


def test_a_claim_that_does_not_hold_is_named(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    one, other = user.programs
    server.held[f"/ac/{key(one).digest}"] = server.held[f"/ac/{key(other).digest}"]
    (differs, _) = user.run("verify", "--against-remote", "--json", status=1).events
    assert (differs["wrong"], differs["program"]) == ("remote", one)
    assert "are of another program" in differs["why"]


def test_what_the_remote_has_not_is_no_failure(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    del server.held[f"/ac/{key(min(user.programs)).digest}"]
    assert "1 program the same, 0 not, 1 not there" in user.run("verify", "--against-remote").out
    for path in server.names("cas"):
        if server.held[path].startswith(b"\x7fELF"):
            del server.held[path]
    assert "0 programs the same, 0 not, 2 not there" in user.run("verify", "--against-remote").out


def test_scripts_and_programs_can_be_named(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    assert ": 1 program the same" in user.run("verify", "--against-remote", "scale/1").out
    assert ": 2 programs the same" in user.run("verify", "--against-remote", "scale").out
    assert 'no script "scald"' in user.run("verify", "--against-remote", "scald", status=2).err


def test_a_remote_in_trouble_is_no_verdict(server: HttpCache, new_user: NewProject) -> None:
    user = sent(new_user, server.address)
    server.status = 403
    ran = user.run("verify", "--against-remote", status=1)
    assert "answers GET with status 403" in ran.err
    assert (
        "there is no remote cache"
        in user.run("verify", "--against-remote", status=2, TILUSBUILD_REMOTE_CACHE="off").err
    )


@pytest.fixture
def casd(tmp_path: Path) -> Iterator[Casd]:
    pytest.importorskip("grpc", reason="needs tilusbuild[remote]")
    needs_casd()
    server = Casd(tmp_path / "casd")
    yield server
    server.kill()


def test_a_server_of_the_protocol(casd: Casd, new_user: NewProject) -> None:
    user = sent(new_user, casd.address)
    user.run("verify", "--against-remote")
    poison_there(casd, user, program := max(user.programs))
    (differs, summary) = user.run("verify", "--against-remote", "--json", status=1).events
    assert (differs["program"], differs["wrong"]) == (program, "remote")
    assert (summary["same"], summary["differing"]) == (1, 1)


def poison_there(casd: Casd, user: Project, program: str) -> None:
    """`poison` of a server that checks what it keeps."""
    from tilusbuild.remote.reapi import ReapiBackend
    from tilusbuild.remote.record import blob_for

    backend = ReapiBackend(RemoteSettings(casd.address, "test"))
    server = HttpCache()
    (record,) = backend.results([key(program)])
    assert record is not None
    path = f"/ac/{key(program).digest}"
    server.held[path] = record
    poison(server, user, program)
    poisoned = server.held.pop(path)
    backend.send({blob_for(data): data for data in server.held.values()})
    backend.send_result(key(program), poisoned)
    backend.close()
