"""Libraries of objects through a remote: every object and the link are fetched, checked, and the
same bytes; what a hash does not cover stays."""

import stat

import pytest

from support.casd import SLOW, Casd
from support.http_cache import HttpCache
from support.one_library import FILES, MANIFEST, archive
from support.poison import path_of, poison
from support.project import NewProject, Project, head
from support.stores import address
from support.trees import published
from tilusbuild.remote.archive import program_key

__all__ = ["address"]

OUTPUT = "out/cpu/libbackend.so"


def library(new_user: NewProject, address: str, keys: str = "", **remote: str) -> Project:
    """The project of a library, for one more user."""
    user = new_user(address, **remote)
    return user.write_all({**FILES, "tilus.toml": MANIFEST.replace("LIBRARY\n", keys)})


def same(one: Project, other: Project, output: str = OUTPUT) -> None:
    """Assert that all appears twice, byte for byte and with the same modes."""
    assert published(one.cache) == published(other.cache)
    modes = [
        {path.relative_to(project.cache): stat.S_IMODE(path.stat().st_mode) for path in paths}
        for project in (one, other)
        if (paths := [*project.cache.glob("programs/**/*")])
    ]
    assert modes[0] == modes[1]
    first_output, second_output = (project.directory / output for project in (one, other))
    assert first_output.read_bytes() == second_output.read_bytes()
    assert first_output.stat().st_mode == second_output.stat().st_mode


def product_of(user: Project, suffix: str) -> str:
    """A program with this product."""
    return next(name for name, path in user.programs.items() if list(path.glob(f"**/*{suffix}")))


def test_what_one_user_builds_another_fetches(address: str, new_user: NewProject) -> None:
    first, second = (library(new_user, address, WRITE=write) for write in "10")
    assert first.build()["remote"]["sent"] == 6
    summary = second.build()
    assert (summary["attempts"], summary["cached"], summary["remote"]["hits"]) == (0, 6, 6)
    alone = library(new_user, "off")
    assert alone.build()["attempts"] == 6
    same(second, alone)
    second.run("cache", "verify")
    second.run("verify", second.cache, "--rebuild")
    assert second.build()["attempts"] == 0
    # An edit compiles what it is in, and links; taken back, it compiles nothing.
    second.edit("src/c.c", "100", "200")
    assert second.compiled() == 2
    second.edit("src/c.c", "200", "100")
    assert second.compiled() == 0


def test_a_static_library_and_vendored_objects_come_along(address, new_user) -> None:
    users = [
        library(new_user, address, 'kind = "static"\nobjects = ["vendor/x.o"]\n', WRITE=write)
        for write in "10"
    ]
    for user in users:
        user.edit("tilus.toml", "libbackend.so", "libbackend.a")
        archive(user.directory / "vendor", 5)
    assert users[0].build()["remote"]["sent"] == 6
    assert users[1].build()["attempts"] == 0
    same(users[0], users[1], "out/cpu/libbackend.a")


def test_what_is_linked_by_its_name_alone_is_linked_here(server, new_user) -> None:
    users = [
        library(new_user, server.address, 'link-libs = ["gcc_eh"]\n', WRITE=write) for write in "10"
    ]
    why = "gcc_eh of link-libs comes from the system, and no hash covers it"
    assert f"not in the remote cache: {why}" in users[0].run("explain").out
    assert users[0].build()["remote"]["sent"] == 5
    summary = users[1].build()
    assert (summary["attempts"], summary["remote"]["hits"], summary["remote"]["misses"]) == (
        1,
        5,
        0,
    )
    same(users[0], users[1])
    users[1].run("cache", "push")
    link = product_of(users[1], "lib.so")
    sent = {
        program for program in users[1].programs if path_of(program_key(program)) in server.held
    }
    assert sent == users[1].programs.keys() - {link}


@pytest.mark.parametrize(("suffix", "start"), [("object.o", b"\x7fELF"), ("lib.a", b"!<arch>")])
def test_what_is_no_object_is_refused(server, new_user, suffix, start) -> None:
    keys = 'kind = "static"\n' if suffix == "lib.a" else ""
    first, second = (library(new_user, server.address, keys, WRITE=write) for write in "10")
    first.build()
    program = product_of(first, suffix)
    product_path = first.programs[program] / "module" / suffix
    content = product_path.read_bytes()
    assert content.startswith(start)
    product_path.chmod(0o755)
    product_path.write_bytes(b"#" + content)
    poison(server, first, program, f"module/{suffix}")
    product_path.write_bytes(content)
    ran = second.run("build", "--json")
    (warning,) = [event["message"] for event in ran.events if event["event"] == "warning"]
    assert f"module/{suffix}: is not what its name says" in warning
    assert ran.summary["attempts"] == 1
    assert published(first.cache) == published(second.cache)


def test_an_object_that_does_not_compile_is_a_result_and_no_link_is_asked_for(
    server: HttpCache, new_user: NewProject
) -> None:
    users = [library(new_user, server.address, WRITE=write) for write in "10"]
    for user in users:
        user.edit("src/deep/part.cpp", "return 1000", "retrn 1000")
    assert users[0].build(status=1)["remote"]["sent"] == 5
    ran = users[1].run("build", "--json", status=1)
    assert (ran.summary["attempts"], ran.summary["skipped"]) == (0, 1)
    assert ran.summary["remote"]["misses"] == 0
    assert published(users[0].cache) == published(users[1].cache)


def many(new_user: NewProject, address: str) -> Project:
    """A library of which nearly all objects have to go elsewhere: there is one place here."""
    user = library(new_user, "off", EXECUTOR=address, JOBS="4")
    user.edit("tilus.toml", "n = [2, 3]", f"n = {[*range(2, 12)]}")
    user.edit("scale.cpp.j2", "#include", f"{SLOW}#include")
    return user


@pytest.mark.slow
def test_objects_are_compiled_on_workers_and_linked_here(farm: Casd, new_user: NewProject) -> None:
    local_user, remote_user = many(new_user, "off"), many(new_user, farm.address)
    local_user.build()
    why = remote_user.run("explain").out
    assert "a link reads the objects and the system's libraries, which are here" in why
    ran = remote_user.run("build", "--json", "-j1")
    assert [item for item in ran.events if item["event"] == "warning"] == []
    same(local_user, remote_user)
    link = product_of(remote_user, "lib.so")
    placed = [item for item in ran.events if item["event"] == "placed"]
    assert {item["place"] for item in placed if item["hash"] == link} - {"waiting"} == {"here"}
    remote_hashes = {item["hash"] for item in ran.events if item.get("worker") == farm.address}
    assert len(remote_hashes) == ran.summary["remote"]["executed"] >= 1
    assert link not in remote_hashes
    assert all((remote_user.programs[item] / "module/object.o").is_file() for item in remote_hashes)


@pytest.mark.slow
def test_flags_that_no_hash_covers_are_compiled_here(farm: Casd, new_user: NewProject) -> None:
    user = many(new_user, farm.address)
    user.edit("tilus.toml", "[build]\n", "[build]\nunsafe-flags = true\n")
    user.edit("tilus.toml", 'arch = "cpu"\n', 'arch = "cpu"\nflags = ["-fstack-usage"]\n')
    why = user.run("explain", "scale").out
    assert "compiled on this machine: -fstack-usage needs unsafe-flags" in why
    ran = user.run("build", "scale", "--json", "-j1")
    assert (ran.summary["remote"] or {}).get("executed", 0) == 0
    placed = [event for event in ran.events if event["event"] == "placed"]
    assert {event["place"] for event in placed} <= {"waiting", "here"}
    assert len([event for event in placed if event["place"] == "here"]) == 10


@pytest.mark.nvcc
def test_device_code_comes_along(server: HttpCache, new_user: NewProject) -> None:
    text = head("gpu", "sm_80") + (
        '[library.l]\nsources = ["src/*"]\noutput = "l.so"\nrdc = true\n'
    )
    files = {
        "src/a.cu": "extern __device__ float part(float);\n",
        "src/b.cu": "__device__ float part(float x) { return 2 * x; }\n",
    }
    files["src/a.cu"] += (
        "__global__ void a(float *x) { *x = part(*x); }\nvoid run(float *x) { a<<<1, 1>>>(x); }\n"
    )
    users = [new_user(server.address, WRITE=write) for write in "10"]
    for user in users:
        user.write_all({**files, "tilus.toml": text}).run("explain")
    assert users[0].build()["remote"]["sent"] == 3
    ran = users[1].run("build", "--json")
    assert [event for event in ran.events if event["event"] == "warning"] == []
    assert (ran.summary["attempts"], ran.summary["remote"]["hits"]) == (0, 3)
    same(users[0], users[1], "l.so")
