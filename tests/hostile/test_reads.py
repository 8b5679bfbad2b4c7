"""Sources that read what no hash covers: nothing of them is published, or nothing goes stale.

Spellings are generated (`support/hostile/reads.py`) and compiled by the real compilers twice, from
nothing, with an edit in between of every file that they name. A program of the same hash with other
bytes is the finding. `READS=300` tries so many of each compiler.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.command_line import run
from support.hostile import reads
from support.project import needs_cxx

COUNT = int(os.environ.get("READS", "6"))
_ARGUMENTS = '{ x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }'


def write(directory: Path, spellings: Sequence[str | list[str]], target: str) -> None:
    """A project of one script for each spelling; one that is flags has a target of its own."""
    qualifier = "" if target == "cpu" else "__global__ "
    lines = ['edition = 1\nproject = { name = "p", version = "1" }', 'build.cache-dir = ".cache"']
    lines += [f'build.unsafe-flags = true\ntoolchain.std = "c++14"\n[target.t]\narch = "{target}"']
    for number, spelling in enumerate(spellings):
        if isinstance(spelling, list):
            lines += [f'[target.t{number}]\narch = "cpu"\nflags = {json.dumps(spelling)}']
    for number, spelling in enumerate(spellings):
        own, text = (f"t{number}", reads.CALLS) if isinstance(spelling, list) else ("t", spelling)
        lines += [f'[script.s{number}]\ntemplate = "s{number}.cu.j2"\nkernel = "k"']
        lines += [f'targets = ["{own}"]', f"args = {_ARGUMENTS}"]
        lines += ['launch = { grid = ["n"], block = [256] }']
        body = (
            f"{text}\n#ifndef VALUE\n#define VALUE 0\n#endif\n"
            f'extern "C" {qualifier}void k(const float *x, float *y, long long n) '
            "{ y[0] = x[0] + VALUE; }\n"
        )
        (directory / f"s{number}.cu.j2").write_text("{% raw %}" + body + "{% endraw %}")
    (directory / "tilus.toml").write_text("\n".join(lines) + "\n")


def published(directory: Path) -> dict[str, bytes]:
    """The libraries of a cache by their hashes."""
    paths = directory.glob(".cache/programs/*/module/lib.so")
    return {path.parent.parent.name: path.read_bytes() for path in paths}


def stale(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> list[str]:
    """The hashes that both have, with other bytes."""
    return [name for name in first.keys() & second.keys() if first[name] != second[name]]


def tried(directory: Path, seed: str, target: str, build: Callable[..., object]) -> "Tried":
    """Build, edit, build from nothing."""
    needs_cxx()
    around, project = directory / "out", directory / "project"
    project.mkdir()
    rng = random.Random(seed)
    chosen: list[str | list[str]] = [
        reads.spelling(rng, around, host=target == "cpu") for _ in range(COUNT)
    ]
    if target == "cpu":
        chosen += [reads.flags(rng, around) for _ in range(COUNT // 3)]
    write(project, chosen, target)
    both = []
    for value, when in ((41, 1_000_000_000), (42, 1_700_000_000)):
        reads.outside(around, value)
        for path in around.iterdir():
            os.utime(path, (when, when))
        build(project, "build", "-q", "--cache-dir", str(directory / f"{value}" / ".cache"))
        both.append(published(directory / f"{value}"))
    first, second = both
    return Tried(len(first.keys() & second.keys()), stale(first, second))


class Tried(NamedTuple):
    """How many programs both builds published, and the hashes of those with other bytes."""

    both: int
    stale: list[str]


def builds(*words: str, **environment: str) -> Callable[..., object]:
    """Return what builds a project, whatever comes of it."""

    def build(project: Path, verb: str, *more: str) -> None:
        ran = run(project, verb, *words, *more, status=None, environment=environment)
        assert ran.status in (0, 1), ran.err

    return build


_BLIND = """\
import sys
from tilusbuild.cli.main import main
from tilusbuild.compile.reads import CompileReads

CompileReads.find_problem = lambda *_: None
sys.exit(main(sys.argv[1:]))
"""


def builds_blindly(project: Path, *words: str) -> None:
    """Build where nothing holds a compile, and nobody looks at what it read."""
    command = [sys.executable, "-c", _BLIND, *words]
    environment = {**os.environ, "TILUSBUILD_SANDBOX": "0"}
    ran = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True)
    assert ran.returncode in (0, 1), ran.stderr


def _sources(directory: Path, names: list[str]) -> list[str]:
    programs = directory / "41/.cache/programs"
    return [(programs / name / "module/source.cu").read_text() for name in names]


@pytest.mark.parametrize("sandbox", ["1", "0"])
def test_through_the_host_compiler(tmp_path: Path, sandbox: str) -> None:
    result = tried(tmp_path, f"cpu {COUNT}", "cpu", builds(TILUSBUILD_SANDBOX=sandbox))
    assert not _sources(tmp_path, result.stale)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_through_a_device_compiler(tmp_path: Path, compiler: str) -> None:
    result = tried(tmp_path, f"gpu {COUNT}", "sm_80", builds("--device-compiler", compiler))
    assert not result.stale, _sources(tmp_path, result.stale)


def test_the_generator_finds_a_builder_that_is_blind(tmp_path: Path) -> None:
    """The inputs are such that they go stale, by sources and by flags, where nothing holds them."""
    result = tried(tmp_path, f"cpu {COUNT}", "cpu", builds_blindly)
    sources = _sources(tmp_path, result.stale)
    assert any(reads.CALLS in text for text in sources)
    assert sum(reads.CALLS not in text for text in sources) >= COUNT // 3


@pytest.mark.parametrize("sandbox", ["1", "0"])
def test_a_compiler_that_reads_of_itself(tmp_path: Path, sandbox: str, monkeypatch: Any) -> None:
    """A wrapper that reads a file: the trace of the host compiler has it, so that it is hashed."""
    monkeypatch.setattr(reads, "spelling", lambda *_, **__: "")
    monkeypatch.setattr(reads, "flags", lambda *_: ["-DVALUE=1"])
    real = shutil.which("g++")
    wrapper = tmp_path / "bin/g++"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nread v < {tmp_path}/out/v.txt\nexec {real} -DVALUE="$v" "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{os.environ['PATH']}"
    result = tried(tmp_path, "none", "cpu", builds(PATH=path, TILUSBUILD_SANDBOX=sandbox))
    assert result.stale == []
