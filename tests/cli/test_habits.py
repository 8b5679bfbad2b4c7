"""What users of other tools type without thinking: help, versions, colours, progress, JSON."""

import io
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.command_line import run
from support.paths import ROOT
from support.scale import TEMPLATE, manifest
from tilusbuild.cli.parser import VERBS, list_verbs, load_actions, parse_command
from tilusbuild.report import terminal


def test_the_example_of_every_verb_parses() -> None:
    for verb, (_, _, example, *_) in list_verbs().items():
        assert parse_command(shlex.split(example)).verb == verb


def test_a_verb_is_a_file_and_an_entry(monkeypatch, capsys) -> None:
    text = (ROOT / "docs/extending.md").read_text()
    example = text.partition("```python\n")[2].partition("```")[0]
    module = ModuleType("tilusbuild.cli.hello")
    exec(example, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(VERBS, "hello", ("greet", "begin", "hello world"))
    assert parse_command(["hello", "world"]).run() == 0
    assert parse_command(["hello", "world", "--json"]).run() == 0
    greeting, line = capsys.readouterr().out.splitlines()
    assert greeting == "hello, world"
    assert json.loads(line) == {"event": "hello", "who": "world"}


@pytest.mark.parametrize("verb", list_verbs())
def test_help_of_a_verb_has_its_example_and_the_options_of_all(verb: str, tmp_path: Path) -> None:
    text = run(tmp_path, "help", verb).out
    assert text == run(tmp_path, verb, "--help").out
    assert f"example:\n  tilusbuild {verb}" in text
    helps = [text]
    helps += [run(tmp_path, verb, name, "--help").out for name in load_actions(verb) if name]
    for help_text in helps:
        assert "positional" not in help_text
        for option in ("-C DIR", "--cache-dir", "--color", "--progress", "--json", "-q", "-v"):
            assert f"\n  {option}" in help_text


def test_the_version_has_a_short_flag_and_help_lists_groups(tmp_path: Path) -> None:
    assert run(tmp_path, "-V").out == run(tmp_path, "--version").out
    listed = run(tmp_path, "help").out
    assert "exit status:" in listed
    for verb, (summary, title, *_) in list_verbs().items():
        assert re.search(rf"{title}:\n(?:  .*\n)*  {verb} +{re.escape(summary)}\n", listed)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "choice", "on_terminal", "in_file"),
    [
        ({"TERM": "xterm"}, "auto", True, False),
        ({"TERM": "dumb"}, "auto", False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "auto", False, False),
        ({"FORCE_COLOR": "1"}, "auto", True, True),
        ({"FORCE_COLOR": "0", "TERM": "xterm"}, "auto", True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", False, False),
        ({"NO_COLOR": "1"}, "always", True, True),
        ({"FORCE_COLOR": "1"}, "never", False, False),
    ],
)
def test_who_decides_on_colour(env, choice, on_terminal, in_file) -> None:
    assert terminal.wants_colour(Terminal(), env, choice) == on_terminal
    assert terminal.wants_colour(io.StringIO(), env, choice) == in_file
    # CI keeps what is written to its terminal.
    assert terminal.can_redraw(Terminal(), env) == (env.get("TERM") == "xterm")
    assert not terminal.can_redraw(Terminal(), {**env, "CI": "true"})


def test_errors_are_coloured_and_what_they_quote_is_not(tmp_path: Path) -> None:
    (tmp_path / "tilus.toml").write_text('edition = 1\n[project]\nname = "\\u001b[31mred" oops\n')
    plain = run(tmp_path, "plan", status=2).err
    shown = run(tmp_path, "plan", "--color", "always", status=2).err
    assert "\x1b[1;31merror:\x1b[0m" in shown
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain


def test_an_error_is_a_line_of_json_too(tmp_path: Path) -> None:
    (tmp_path / "tilus.toml").write_text(manifest().replace('kernel = "scale"', 'kernal = "scale"'))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/scale.cu.j2").write_text(TEMPLATE)
    ran = run(tmp_path, "plan", "--json", status=2)
    (line,) = map(json.loads, ran.out.splitlines())
    assert (line["event"], line["exit_status"]) == ("error", 2)
    assert line["message"] + "\n" == ran.err
    problem = line["problems"][0]
    assert problem["path"] == "tilus.toml"
    lines = (tmp_path / "tilus.toml").read_text().splitlines()
    assert lines[problem["line"] - 1] == problem["text"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("biuld",), 'unknown verb "biuld"'),
        (("build", "--levle", "0"), "unrecognized arguments: --levle"),
        (("plan", "--level", "7"), '--level cannot be "7"'),
        (("install",), "name one: PATH"),
    ],
)
def test_what_cannot_be_parsed_is_an_error_line_too(words, message, tmp_path) -> None:
    ran = run(tmp_path, "--json", *words, status=2)
    (error,) = ran.events
    assert error["event"] == "error"
    assert message in error["problems"][0]["message"]
    assert error["message"] == ran.err.rstrip("\n")
