"""Every line that a verb prints with `--json` is one that it declares."""

import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

import tilusbuild.cli
from support import events_schema
from support.json_schema import valid
from support.project import head
from tilusbuild.cli.boundary import ErrorLine, InternalErrorLine
from tilusbuild.cli.main import main
from tilusbuild.report.jsonl import JsonLine, format_json_line

MODULES = [module.name for module in pkgutil.iter_modules(tilusbuild.cli.__path__)]
SCHEMA = events_schema.schema()
MANIFEST = (
    head()
    + """\
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { a = "f32", x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
default = { unroll = 1 }
[script.scale.space]
unroll = { range = [1, 3] }
[script.scale.restrict]
small = "unroll != 3"
[script.scale.tune]
sizes = [{ n = 8 }]
[script.scale.dispatch]
keys = ["n"]
measured = "tuned.jsonl"
table = [{ when = "n < 4", use = { unroll = 1 } }]
[package.one]
"""
)
ELSEWHERE = {
    ("cache ls", "entry"),
    ("cache merge", "problem"),
    ("cache verify", "garbage"),
    ("preflight", "problem"),
}
"""Lines of other tests: they need a foreign cache, a device, both compilers or a broken project."""
VERBS_ELSEWHERE = {"cache package", "cache pull", "cache push", "import", "watch"}
"""The verbs that other tests run: they need another system or a server, or never end."""
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
    directory = tmp_path / "größe"
    directory.mkdir()
    monkeypatch.chdir(directory)
    (directory / "tilus.toml").write_text(MANIFEST, encoding="utf-8")
    (directory / "scale.cu.j2").write_text(TEMPLATE)

    def run(verb: str, *words: object, status: int | None = 0) -> list[dict[str, Any]]:
        arguments = [*verb.split(), *map(str, words), "--json"]
        ended = main(arguments)
        out, err = capsys.readouterr()
        assert status in (None, ended), err
        assert out.isascii()
        lines = [json.loads(line) for line in out.splitlines()]
        rule = SCHEMA["$defs"][verb.replace(" ", "-")]
        assert lines, err
        assert [line for line in lines if not valid(line, rule, SCHEMA)] == []
        return lines

    return run


def test_the_lines_of_a_projects_verbs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {}

    def check(verb: str, *words: object, status: int | None = 0) -> None:
        seen.setdefault(verb, set()).update(
            line["event"] for line in run(verb, *words, status=status)
        )

    check("plan")
    check("plan", "--space")
    check("explain")
    check("build")
    check("compdb")
    check("run", "scale")
    monkeypatch.setenv("TILUSBUILD_JOBZ", "1")
    check("doctor", status=None)
    check("tune", "scale", "--target", "cpu", "--budget", "20", "--repeat", "2", "--unchecked")
    check("report")
    check("cache dir")
    check("cache ls")
    check("cache ls", "scale")
    check("cache show", "scale/0")
    check("cache show", "scale/0", "--source")
    check("schema")
    check("completions", "bash")
    check("render")
    check("init", "new")
    check("cache stats")
    check("cache export", "view", "--layout", "tilus")
    check("dispatch", "show", "scale")
    check("dispatch", "coverage", "scale")
    check("dispatch", "fit", "scale")
    check("package", "--format", "dir", "--with-tests")
    (package,) = Path("dist").iterdir()
    check("preflight", package, "--device", "cpu")
    check("preflight", package, "--device", "sm_80", status=1)
    check("verify", package)
    check("check", package)
    check("verify", ".cache", "--rebuild", "50%")
    check("install", package, "--cache-dir", "other")
    check("build", "--level", "0", "--cache-dir", "small")
    check("diff", package, "small")
    check("cache merge", ".cache", "--cache-dir", "merged")
    check("install", "--remove", "p-one", "--cache-dir", "other")
    check("cache gc", "--cache-dir", "other")
    check("cache clear", "--cache-dir", "other")
    for library in Path(".cache").glob("programs/*/module/lib.so"):
        library.unlink()
    check("cache verify", status=1)
    check("verify", ".cache", status=1)
    check("dispatch", "check", "scale", status=1)
    unseen = {
        (verb, kind.event)
        for verb in seen
        for kind in events_schema.lines()[verb]
        if kind.event not in seen[verb]
    }
    assert {pair for pair in unseen if pair[0] != "build"} == ELSEWHERE
    assert events_schema.lines().keys() - seen.keys() == VERBS_ELSEWHERE


def test_every_line_that_is_declared_belongs_to_a_verb() -> None:
    modules = [importlib.import_module(f"tilusbuild.cli.{name}") for name in MODULES]
    declared = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, JsonLine) and value is not JsonLine
    }
    listed = {kind for kinds in events_schema.lines().values() for kind in kinds}
    assert declared - {ErrorLine, InternalErrorLine} <= listed


class _Odd(JsonLine, frozen=True):
    event: ClassVar[str] = "odd"
    inlined: ClassVar[str] = "more"
    name: str
    more: Mapping[str, object]
    none: None = None


def test_a_line_is_ascii_with_its_keys_in_order_and_a_mapping_inlined() -> None:
    odd = _Odd("gr\u00f6\udcff", MappingProxyType({"a": (1, 2), "b": {"c": True}}))
    text = format_json_line(odd)
    assert text == (
        r'{"event": "odd", "name": "gr\u00f6\udcff", "a": [1, 2], "b": {"c": true}, "none": null}'
    )


def test_a_number_that_json_does_not_have_is_null() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    odd = format_json_line(_Odd("nan", {"a": (math.nan, -math.inf, 0.5)}))
    assert json.loads(odd, parse_constant=refuse)["a"] == [None, None, 0.5]
