"""Sources that read what no hash covers: nothing of them is published, or nothing goes stale.

Spellings are generated (`support/hostile/reads.py`) and compiled by the real compilers twice, from
nothing, with an edit in between of every file that they name. A program of the same hash with other
bytes is the finding. `READS=300` tries so many of each compiler.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run
from support.hostile import reads
from support.project import needs_cxx

COUNT = int(os.environ.get("READS", "12"))
_ARGUMENTS = '{ x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }'


def write(directory: Path, spellings: list[str], target: str) -> None:
    """A project of one script for each spelling."""
    qualifier = "" if target == "cpu" else "__global__ "
    lines = ['edition = 1\nproject = { name = "p", version = "1" }', 'build.cache-dir = ".cache"']
    lines += [f'toolchain.std = "c++14"\n[target.one]\narch = "{target}"']
    for number, text in enumerate(spellings):
        lines += [f'[script.s{number}]\ntemplate = "s{number}.cu.j2"\nkernel = "k"']
        lines += [f'args = {_ARGUMENTS}\nlaunch = {{ grid = ["n"], block = [256] }}']
        body = (
            f"{text}\n#ifndef VALUE\n#define VALUE 0\n#endif\n"
            f'extern "C" {qualifier}void k(const float *x, float *y, long long n) '
            "{ y[0] = x[0] + VALUE; }\n"
        )
        (directory / f"s{number}.cu.j2").write_text("{% raw %}" + body + "{% endraw %}")
    (directory / "tilus.toml").write_text("\n".join(lines) + "\n")


def published(directory: Path) -> dict[str, bytes]:
    """The libraries of a cache by their hashes."""
    found = directory.glob(".cache/programs/*/module/lib.so")
    return {path.parent.parent.name: path.read_bytes() for path in found}


def stale(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> list[str]:
    """The hashes that both have, with other bytes."""
    return [name for name in first.keys() & second.keys() if first[name] != second[name]]


def check(directory: Path, seed: str, target: str, *words: str, **environment: str) -> int:
    """Build, edit, build from nothing; return how many programs both have."""
    needs_cxx()
    around, project = directory / "out", directory / "project"
    project.mkdir()
    rng = random.Random(seed)
    chosen = [reads.spelling(rng, around, host=target == "cpu") for _ in range(COUNT)]
    write(project, chosen, target)
    both = []
    for value, when in ((41, 1_000_000_000), (42, 1_700_000_000)):
        reads.outside(around, value)
        for path in around.iterdir():
            os.utime(path, (when, when))
        command = ("build", "-q", *words, "--cache-dir", str(directory / f"{value}" / ".cache"))
        run(project, *command, status=None, environment=environment)
        both.append(published(directory / f"{value}"))
    first, second = both
    wrong = stale(first, second)
    assert not wrong, [_source(directory, name) for name in wrong]
    return len(first.keys() & second.keys())


def _source(directory: Path, name: str) -> str:
    (path,) = directory.glob(f"41/.cache/programs/{name}/module/source.cu")
    return path.read_text()


@pytest.mark.parametrize("sandbox", ["1", "0"])
def test_through_the_host_compiler(tmp_path: Path, sandbox: str) -> None:
    check(tmp_path, f"cpu {COUNT}", "cpu", TILUSBUILD_SANDBOX=sandbox)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_through_a_device_compiler(tmp_path: Path, compiler: str) -> None:
    check(tmp_path, f"gpu {COUNT}", "sm_80", "--device-compiler", compiler)


def test_the_oracle_sees_other_bytes_of_one_hash() -> None:
    assert stale({"a": b"1", "b": b"1"}, {"a": b"2", "c": b"2"}) == ["a"]
    assert stale({"a": b"1"}, {"a": b"1"}) == []


def test_what_reads_nothing_is_published_twice(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reads, "spelling", lambda *_, **__: "")
    assert check(tmp_path, "none", "cpu") == COUNT
