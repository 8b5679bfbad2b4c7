"""What would be chosen on machines that are not here: the table of answers, each right.

The packages are the marks project's, their scripts described as for other targets: which code runs
where follows from the descriptions and the list, as it does in a deployment.
"""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.packages import Hand
from support.project import Project, head
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import HostNeeds
from tilusbuild.package.model import Image
from tilusbuild.package.read import select_script_files, unpack_package
from tilusbuild.preflight.prediction import (
    ANY_GPU,
    NEWEST_DRIVER,
    DescribedHost,
    PreflightReport,
    predict_run,
)
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.sealed import seal_json, unseal_json

MACHINE = platform.machine()
AMPERE = {"name": "ampere", "archs": ["sm_80"], "ptx": True}
HOPPER = {"name": "hopper", "archs": ["sm_90a"], "ptx": False}


def for_targets(hand: Hand, *targets: dict[str, Any], table: Any = None) -> Any:
    """The package with its script `mark` for these CUDA targets instead of the cpu.

    Each target's script.txt differs in a line, as a build's would, so its hash does.
    """
    (entry,) = [s for s in hand.listing.scripts if s.script == "mark"]
    where = entry.root
    text = hand.files[f"{where}/script.txt"].decode()
    described = unseal_json(hand.files[f"{where}/script.json"])
    files: dict[str, bytes] = {}
    scripts, listed = [], {}
    for target in targets:
        own = text.replace('target = "cpu"', f'target = "{target["name"]}"').encode()
        digest = hashlib.sha256(own).hexdigest()
        value = {"kind": "cuda", "toolkit": "13.0.88", "machine": MACHINE, **target}
        directory = f"scripts/mark/{digest}"
        files[f"{directory}/script.txt"] = own
        files[f"{directory}/script.json"] = seal_json(
            {**described, "hash": digest, "target": value}
        )
        if table is not None:
            files[f"{directory}/dispatch_table.json"] = (
                json.dumps(table).replace("*", digest).encode()
            )
        scripts.append(replace(entry, hash=digest, target=target["name"]))
        listed[target["name"]] = replace(
            hand.listing.targets["cpu"],
            kind="cuda",
            archs=tuple(target["archs"]),
            ptx=target["ptx"],
            toolkit="13.0.88",
        )
    owner = min(scripts, key=lambda s: (s.script, s.target))
    images = tuple(Image("sass", arch) for target in targets for arch in target["archs"]) + tuple(
        Image("ptx", t["archs"][-1]) for t in targets if t["ptx"]
    )
    programs = {
        digest: replace(program, target=owner.target, images=images)
        for digest, program in hand.listing.programs.items()
        if program.script == "mark"
    }
    kept = {p: d for p, d in hand.files.items() if p.split("/")[1] in programs}
    hand.files = {**kept, **files}
    return hand.relist(
        scripts=tuple(sorted(scripts, key=lambda s: (s.script, s.target, s.hash))),
        programs=programs,
        targets=listed,
    )


def gpu(arch: str, driver: int = NEWEST_DRIVER, name: str = ANY_GPU) -> Device:
    return Device("cuda", 0, name, arch, driver)


def ask(path: Path, host: DescribedHost) -> PreflightReport:
    with unpack_package(str(path), select_script_files, Limits()) as (listing, directory):
        return predict_run(listing, directory, host)


@pytest.mark.parametrize(
    ("arch", "target", "why"),
    [
        ("sm_80", "ampere", "sm_80 code"),
        ("sm_89", "ampere", "sm_80 code"),
        ("sm_90", "hopper", "sm_90a code"),
        ("sm_100", "ampere", "sm_80 PTX is compiled by the driver"),
        ("sm_75", None, ""),
    ],
)
def test_which_target_serves_which_gpu(hand, arch, target, why, tmp_path) -> None:
    """Given code for sm_80 with PTX and for sm_90a, when each GPU is asked about, then this."""
    path = for_targets(hand, AMPERE, HOPPER).archive(tmp_path / "p")
    result = ask(path, DescribedHost(gpu(arch), MACHINE))
    (answer,) = result.instances
    assert answer.target == target
    assert answer.why.startswith(why)
    assert result.ok == (target is not None)


def test_code_that_is_not_what_its_target_says(hand: Hand, tmp_path: Path) -> None:
    """Given a program whose binary holds code for sm_90 only, when its target says sm_80, then
    that program is told: the runtime would refuse it at its first call."""
    package = for_targets(hand, AMPERE)
    programs = dict(package.listing.programs)
    odd = min(programs)
    programs[odd] = replace(programs[odd], images=(Image("sass", "sm_90"),))
    path = package.relist(programs=programs).archive(tmp_path / "p")
    (answer,) = ask(path, DescribedHost(gpu("sm_80"), MACHINE)).instances
    (problem,) = answer.problems
    assert "holds nothing that runs on cuda:0" in problem


# Sizes.


def table(device: str, *sizes: int) -> dict[str, Any]:
    entries = [[[size], 0, 1e-6, [size], None, False, []] for size in sizes]
    fingerprint = {"script": "*", "device": device, "arch": "sm_80"}
    return {
        "schema": 2,
        "keys": ["n"],
        "tables": [{"fingerprint": fingerprint, "entries": entries}],
    }


def test_a_table_of_another_gpu_does_not_count(hand: Hand, tmp_path: Path) -> None:
    path = for_targets(hand, AMPERE, table=table("A100", 8, 16)).archive(tmp_path / "p")
    (answer,) = ask(path, DescribedHost(gpu("sm_80", name="A30"), MACHINE)).instances
    assert answer.tables == ()
    (answer,) = ask(path, DescribedHost(gpu("sm_80"), MACHINE)).instances
    assert answer.tables == ("A100",)


def test_a_default_that_is_not_packaged(hand: Hand, tmp_path: Path) -> None:
    """Given a package that left the default schedule out, then the first that is there serves."""
    package = for_targets(hand, AMPERE)
    (script,) = package.listing.scripts
    gone = script.programs[1]
    programs = {d: p for d, p in package.listing.programs.items() if d != gone}
    package.files = {path: data for path, data in package.files.items() if gone not in path}
    scripts = (replace(script, programs=(script.programs[0], script.programs[2])),)
    path = package.relist(scripts=scripts, programs=programs).archive(tmp_path / "p")
    result = ask(path, DescribedHost(gpu("sm_80"), MACHINE))
    assert result.ok


# The host.


NEEDS = HostNeeds(MACHINE, "x86-64-v2", "2.28", ("libc.so.6",), "0.1.9", "3.4.25")


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ({}, None),
        ({"glibc": "2.9"}, "glibc 2.28"),
        ({"isa": "x86-64-v3"}, None),
        ({"isa": "x86-64"}, "x86-64-v2"),
        ({"isa": "znver4"}, "x86-64-v2"),
        ({"libstdcxx": "3.4.24"}, "3.4.25"),
        ({"tvm_ffi": "0.1.8"}, "tvm-ffi ~=0.1.9"),
        ({"tvm_ffi": "0.1.9"}, None),
        ({"tvm_ffi": "0.1.12"}, None),
        ({"tvm_ffi": "0.1.9.post2"}, None),
        ({"tvm_ffi": "0.2.0"}, "tvm-ffi ~=0.1.9"),
        ({"tvm_ffi": "1.1.9"}, "tvm-ffi ~=0.1.9"),
    ],
)
def test_what_the_host_is_missing(hand, host, problem, tmp_path) -> None:
    path = hand.relist(needs=NEEDS).archive(tmp_path / "p")
    result = ask(path, DescribedHost(Device("cpu", 0, "cpu", "cpu"), MACHINE, **host))
    assert result.ok == (problem is None)
    assert [str(problem) in message for message in result.problems] == ([True] if problem else [])


def test_a_host_of_another_machine(hand: Hand, tmp_path: Path) -> None:
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    result = ask(hand.archive(tmp_path / "p"), DescribedHost(Device("cpu", 0, "cpu", "cpu"), other))
    assert not result.ok
    assert f"made for {MACHINE}, not {other}" in result.instances[0].candidates[0].why


# The command.


def test_the_command_prints_a_table_of_answers(hand, project, tmp_path) -> None:
    path = os.fspath(for_targets(hand, AMPERE, HOPPER).archive(tmp_path / "p"))
    devices = [word for arch in ("sm_80", "sm_90", "sm_120") for word in ("--device", arch)]
    output = project.run("preflight", path, *devices).out
    rows = [line.split() for line in output.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        ["sm_80", "mark", "ampere"],
        ["sm_90", "mark", "hopper"],
        ["sm_120", "mark", "ampere"],
    ]
    newest = ["--driver", "13.post1", "--tvm-ffi", "0.1.15.post2"]
    output = project.run("preflight", path, "-d", "sm_75", *newest, status=1).out
    assert "sm_75: missing: mark: mark has no program" in output
    lines = project.run("preflight", path, "-d", "sm_75", "--json", status=1).out.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[-1] == {"event": "summary", "devices": 1, "missing": 1}
    assert [c["suits"] for c in events[0]["candidates"]] == [False, False]


@pytest.mark.parametrize(
    "words",
    [("-d", "h100"), ("-d", "sm_80", "--glibc", "new"), ("-d", "sm_80", "--driver", "r580")],
)
def test_mistakes_on_the_command_line(hand, project, words, tmp_path) -> None:
    path = os.fspath(hand.archive(tmp_path / "p"))
    assert "error: " in project.run("preflight", path, *words, status=2).err


# Real code for sm_80 with PTX and for sm_90a, packed by the command and asked about each GPU.
MANIFEST = f"""\
{head("ampere", "sm_80")}\
ptx = true
[target.hopper]
arch = "sm_90a"

[script.scale]
template = "scale.cu.j2"
kernel = "scale"
[script.scale.args]
x = "f32*[n]"
y = {{ type = "f32*[n]", out = true }}
n = "i32"
[script.scale.launch]
grid = ["cdiv(n, 128)"]
block = ["128"]

[package.p]
include = ["sources"]
"""

SCALE = """\
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""


@pytest.mark.nvcc
def test_each_gpu_gets_the_right_answer(tmp_path: Path) -> None:
    """Given a package with both targets, when each GPU is asked about, then what NVIDIA's rules
    say; and its programs are reproduced from it."""
    own = Project.built(tmp_path, {"tilus.toml": MANIFEST, "scale.cu.j2": SCALE, ".git": ""})
    forms = [word for form in ("dir", "tar.zst", "oci") for word in ("--format", form)]
    own.run("package", *forms)
    answers = {
        "sm_80": "ampere",
        "sm_86": "ampere",
        "sm_90": "hopper",
        "sm_100": "ampere",
        "sm_120": "ampere",
    }
    devices = [word for arch in answers for word in ("--device", arch)]
    own.run("install", "dist/p-0.1.0.oci", "--cache-dir", "installed")
    assert own.run("diff", "installed", ".cache").out == "nothing changed\n"
    for name in ("p-0.1.0", "p-0.1.0.tar.zst", "p-0.1.0.oci"):
        path = f"dist/{name}"
        own.run("verify", path)
        lines = own.run("preflight", path, *devices, "--json").out.splitlines()
        events = [json.loads(line) for line in lines]
        assert {e["device"]: e["target"] for e in events if "target" in e} == answers
        assert events[-1]["missing"] == 0
    reasons = {e["device"]: e["why"] for e in events if "why" in e}
    assert reasons["sm_120"] == "sm_80 PTX is compiled by the driver for sm_120"
    output = own.run("verify", "--rebuild", "dist/p-0.1.0.tar.zst").out
    assert output.endswith("2 programs compiled again, 0 not reproduced\n")
