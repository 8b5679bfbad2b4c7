"""With `--json` every line about a foreign cache is one that its verb declares."""

import json
from pathlib import Path

import pytest

from support.json_schema import valid
from tilusbuild.cli import events_schema
from tilusbuild.cli.main import main

SCHEMA = events_schema.schema()


@pytest.mark.parametrize("system", ["tilus", "triton"])
def test_the_lines_of_each_verb(system, make, tmp_path, monkeypatch, capsys) -> None:
    made = make(system)
    monkeypatch.chdir(tmp_path)
    seen: dict[str, list[str]] = {}

    def check(verb: str, *words: object) -> None:
        main([*verb.split(), *map(str, words), "--json"])
        out, err = capsys.readouterr()
        lines = [json.loads(line) for line in out.splitlines()]
        rule = SCHEMA["$defs"][verb.replace(" ", "-")]
        assert lines, err
        assert [line for line in lines if not valid(line, rule, SCHEMA)] == []
        seen.setdefault(verb, []).extend(line["event"] for line in lines)

    check("cache ls", made)
    check("cache stats", made)
    check("cache verify", made)
    check("cache package", made, "--format", "dir")
    (package,) = Path("dist").iterdir()
    check("verify", package)
    check("preflight", package, "--device", "sm_80", "--machine", "riscv64")
    check("install", package, "--into", tmp_path / "home")
    check("cache gc", made, "--max-size", "1B")
    assert "entry" in seen["cache ls"]
    assert seen["cache package"] == ["carrier", "package"]
    assert seen["install"] == ["installed"]
    assert {"preflight", "summary"} <= set(seen["preflight"])
