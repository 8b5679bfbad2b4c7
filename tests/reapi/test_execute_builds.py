"""Builds of which workers compile a part: the same bytes, and all is cancelled there."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

from support.casd import SLOW, Casd, worker
from support.processes import wait_until
from support.project import NewProject, Project
from support.trees import published


def project(new_user: NewProject, address: str, **remote: str) -> Project:
    """A project of which nearly all has to go elsewhere: there is one place here."""
    user = new_user("off", EXECUTOR=address, JOBS="4", **remote)
    user.edit("tilus.toml", "[1, 2]", "[1, 12]")
    user.edit("kernels/scale.cu.j2", "{# y = a * x #}", SLOW)
    return user


def build(user: Project) -> tuple[dict[str, Any], list[str]]:
    ran = user.run("build", "--json", "-j1")
    return ran.summary, [event["message"] for event in ran.events if event["event"] == "warning"]


@pytest.mark.slow
def test_what_workers_compile_is_what_is_compiled_here(farm: Casd, new_user: NewProject) -> None:
    local_user, remote_user = project(new_user, "off"), project(new_user, farm.address)
    build(local_user)
    ran = remote_user.run("build", "--json", "-j1")
    assert [event for event in ran.events if event["event"] == "warning"] == []
    remote = ran.summary["remote"]
    assert remote["executed"] >= 1
    assert remote["executor"] == farm.address
    assert min(remote[name] for name in ("executed_seconds", "inputs_bytes", "outputs_bytes")) > 0
    assert published(local_user.cache) == published(remote_user.cache)
    remote_hashes = {event["hash"] for event in ran.events if event.get("worker") == farm.address}
    assert len(remote_hashes) == remote["executed"]
    placed = [event for event in ran.events if event["event"] == "placed"]
    assert {event["hash"] for event in placed if event["place"] == "sent"} >= remote_hashes
    assert all(event["address"] == farm.address for event in placed if event["place"] == "sent")
    reported = remote_user.run("report", "--json").events
    (timeline,) = (event for event in reported if event["event"] == "timeline")
    elsewhere = {event["hash"] for event in timeline["attempts"] if event["elsewhere"]}
    assert elsewhere == remote_hashes


GENERATOR = f"""\
SOURCE = '''{SLOW}
extern "C" void scale(float a, const float *x, float *y, long long n) {{ *y = UNROLL * a; }}
'''


def scale(unroll):
    return SOURCE.replace("UNROLL", str(unroll))
"""


@pytest.mark.slow
def test_what_a_generator_returns_is_compiled_there(farm: Casd, new_user: NewProject) -> None:
    # Given two users of a generator, of whom one has workers,
    local_user, remote_user = project(new_user, "off"), project(new_user, farm.address)
    for user in (local_user, remote_user):
        user.edit("tilus.toml", "template =", 'generator = "kernels/gen.py:scale"  #')
        user.write("kernels/gen.py", GENERATOR)
        # when they build,
        summary, warnings = build(user)
        assert (summary["compiled"], warnings) == (12, [])
    # then workers have compiled, to the same programs.
    assert summary["remote"]["executed"] >= 1
    assert published(local_user.cache) == published(remote_user.cache)


LONG = """\
template <int N> constexpr int summed() {
  int sum = N;
  for (int i = 0; i < 100; ++i)
    for (int j = 0; j < 40000; ++j) sum ^= j;
  return sum;
}
""" + "".join(f"static_assert(summed<{number}>() != {number + 1});\n" for number in range(0, 80, 2))
"""What takes a compiler a minute, as each sum takes it a second."""


def compilers(process: int) -> int:
    """How many compilers run below a process."""
    below: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = path.read_text().rpartition(")")
            parent = int(after.split()[1])
            below.setdefault(parent, []).append((int(path.parent.name), before.partition("(")[2]))
    count, waiting = 0, [process]
    while waiting:
        for number, name in below.get(waiting.pop(), []):
            waiting.append(number)
            count += name == "cc1plus"
    return count


def test_an_interrupt_ends_what_runs_there(new_user: NewProject, tmp_path: Path) -> None:
    farm = Casd(tmp_path / "many", *worker(jobs=8))
    user = new_user("off", EXECUTOR=farm.address, JOBS="8")
    user.edit("tilus.toml", "[1, 2]", "[1, 20]")
    user.edit("kernels/scale.cu.j2", "{# y = a * x #}", LONG)
    process = user.start("build", "--json", "-j1")
    wait_until(lambda: compilers(farm.process.pid) == 8 or process.poll() is not None, 120)
    process.send_signal(2)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    # Not at the end of a minute: they were cancelled.
    wait_until(lambda: compilers(farm.process.pid) == 0, 20)
    farm.kill()


def test_without_a_server_a_build_compiles_here(new_user: NewProject) -> None:
    user = new_user("off", EXECUTOR="grpc://127.0.0.1:1", CONNECT_TIMEOUT="1s")
    summary, warnings = build(user)
    assert (summary["attempts"], summary["exit_status"]) == (2, 0)
    assert len(warnings) <= 1


@pytest.mark.slow
def test_what_is_verified_is_compiled_here(farm: Casd, new_user: NewProject) -> None:
    """The server of the cache is also who executes: it would vouch for itself."""
    first, second = (
        project(new_user, farm.address, WRITE=write, VERIFY=verify)
        for write, verify in (("1", "0"), ("0", "1"))
    )
    for user in (first, second):
        user.environment["TILUSBUILD_REMOTE_CACHE"] = farm.address
    assert build(first)[0]["remote"]["sent"] == len(first.programs)
    remote = build(second)[0]["remote"]
    assert remote["verified"] == len(second.programs)
    assert remote.get("executed", 0) == 0
