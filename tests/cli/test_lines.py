"""Every line that a verb prints with `--json` is one that it declares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.json_schema import valid
from tilusbuild.cli import events_schema
from tilusbuild.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = events_schema.schema()
MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.cpu]
arch = "cpu"
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
default = { unroll = 1 }
[script.scale.space]
unroll = { range = [1, 3] }
rules = ["unroll != 3"]
[script.scale.tune]
sizes = [{ n = 8 }]
[script.scale.dispatch]
keys = ["n"]
table = [{ when = "n < 4", use = { unroll = 1 } }]
[package.one]
"""
TEMPLATE = """\
constexpr int unroll = {{ unroll }};
extern "C" void scale(float a, const float *x, float *y, long long n) {
  for (long long i = 0; i < n; ++i) y[i] = a * x[i];
}
"""
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """run(verb, words…) is what a command prints in a project; each line must be declared."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    folder = tmp_path / "größe"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "tilus.toml").write_text(MANIFEST, encoding="utf-8")
    (folder / "scale.cu.j2").write_text(TEMPLATE)

    def run(verb: str, *words: object, status: int | None = 0) -> list[dict[str, Any]]:
        given = [*verb.split(), *map(str, words), "--json"]
        ended = main(given)
        out, err = capsys.readouterr()
        assert status in (None, ended), err
        assert out.isascii()
        lines = [json.loads(line) for line in out.splitlines()]
        rule = SCHEMA["$defs"][verb.replace(" ", "-")]
        assert lines
        assert [line for line in lines if not valid(line, rule, SCHEMA)] == []
        return lines

    return run


def test_the_lines_of_a_projects_verbs(run: Run) -> None:
    seen: dict[str, set[str]] = {}

    def check(verb: str, *words: object, status: int | None = 0) -> None:
        seen.setdefault(verb, set()).update(
            each["event"] for each in run(verb, *words, status=status)
        )

    check("plan")
    check("plan", "--space")
    check("explain")
    check("build")
    check("graph", "--programs")
    check("report")
    check("compdb")
    check("run", "scale")
    check("doctor", status=None)
    check("cache dir")
    check("cache ls")
    check("cache ls", "scale")
    check("cache show", "scale/0")
    check("cache stats")
    check("cache export", "view", "--layout", "tilus")
    check("dispatch", "show", "scale")
    check("dispatch", "coverage", "scale")
    check("package", "--format", "dir")
    check("package", "--size")
    (package,) = Path("dist").iterdir()
    check("preflight", package, "--device", "cpu")
    check("preflight", package, "--device", "sm_80", status=1)
    check("verify", package)
    check("verify", ".cache", "--rebuild", "50%")
    check("install", package, "--cache-dir", "other")
    check("diff", package, ".cache")
    check("cache merge", ".cache", "--cache-dir", "merged")
    check("install", "--remove", "p-one", "--cache-dir", "other")
    check("cache gc", "--cache-dir", "other")
    library = next(Path(".cache").glob("programs/*/module/lib.so"))
    library.unlink()
    check("cache verify", status=1)
    check("dispatch", "check", "scale", status=1)
    assert {
        verb: {kind.event for kind in kinds} - seen.get(verb, set())
        for verb, kinds in events_schema.lines().items()
        if verb in seen and verb != "build"
    } == {}
