"""Completion, asked of the shells themselves: each must offer what our parser has."""

import argparse
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import run
from support.processes import run_to_end
from support.scale import manifest, script
from tilusbuild.cli.completions import SHELLS
from tilusbuild.cli.parser import verbs, whole_parser

_ASK_BASH = """
set -f
. ./completions
complete=$(complete -p tilusbuild | sed 's/.* -F \\([^ ]*\\).*/\\1/')
while IFS= read -r line; do
    read -ra COMP_WORDS <<< "$line"
    [ "${line% }" = "$line" ] || COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    $complete
    echo "${COMPREPLY[*]}"
done
"""
_ASK_FISH = """
source ./completions
while read -l line
    complete -C "$line" | string split -f1 \\t | string join ' '
end
exit 0
"""
# zsh completes in its line editor alone: one in a terminal of its own shows each line, completed.
_ASK_ZSH = """
zmodload zsh/zpty
cp completions _tilusbuild
zpty shell zsh -f -i
zpty -w shell 'PS1=; stty -echo; fpath+=($PWD); autoload -U compinit; compinit -u -D'
zpty -w shell 'show() { print -r -- "<$BUFFER>"; BUFFER= }; zle -N show; bindkey "^X" show'
while IFS= read -r line; do
    zpty -w -n shell "$line"$'\\t\\C-x'
    zpty -r -m shell answer '*<tilusbuild*>*'
    answer=${answer##*<}
    print -r -- "${answer%%>*}"
done
"""
_ASK = {
    "bash": ["bash", "-c", _ASK_BASH],
    "fish": ["fish", "-N", "-c", _ASK_FISH],
    "zsh": ["zsh", "-f", "-c", _ASK_ZSH],
}
_LISTING = ("bash", "fish")
"""Shells that say all that they would offer; zsh completes what can be one thing alone."""
_FRAGMENTS = [
    *("$(touch canary)", "`touch canary`", "${x:=$(touch canary)}", "<(touch canary)", "~", "*"),
    *("$(", "`", '"', "'", "\\", "\n", "\t", ";touch canary;", "&touch canary", "|", "\x1b]0;"),
    *("(touch canary)", "{a,b}", "=ls", "!!", "#", " ", "-rf", "saxpy", "s", "é"),
]


_OURS = {"tilus.toml", "tilusbuild", "completions", "_tilusbuild"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a project, and with the one `tilusbuild` that the shells are to run."""
    (tmp_path / "tilus.toml").write_text(manifest(script("saxpy"), script("soft_max")))
    (tmp_path / "tilusbuild").write_text(f'#!/bin/sh\nexec {sys.executable} -m tilusbuild "$@"\n')
    (tmp_path / "tilusbuild").chmod(0o755)
    return tmp_path


def offered(directory: Path, shell: str, lines: list[str]) -> list[list[str]]:
    """What the shell offers after each line."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (directory / "completions").write_text(run(directory, "completions", shell).out)
    answer = run_to_end(
        _ASK[shell],
        cwd=directory,
        environment={"PATH": f"{directory}:{os.environ['PATH']}"},
        input="".join(f"{line}\n" for line in lines),
    )
    assert answer.stderr == ""
    return [line.split() for line in answer.stdout.splitlines()]


def parsers(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, set[str]]]:
    """The words that lead to each parser, and its long options."""
    yield (
        words,
        {each for action in parser._actions for each in action.option_strings if "--" in each},
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from parsers(child, f"{words} {name}")


@pytest.mark.parametrize("shell", _LISTING)
def test_every_verb_and_option_is_offered(directory: Path, shell: str) -> None:
    expected = {f"{words} --": options for words, options in parsers(whole_parser(), "tilusbuild")}
    expected["tilusbuild "] = set(verbs())
    answers = offered(directory, shell, list(expected))
    assert {
        line: missing
        for (line, words), answer in zip(expected.items(), answers, strict=True)
        if (missing := words - set(answer))
    } == {}


@pytest.mark.parametrize("shell", _LISTING)
def test_the_projects_scripts_and_an_options_values_are_offered(directory, shell) -> None:
    named = ["tilusbuild build s", "tilusbuild run s", "tilusbuild cache show s"]
    lines = [*named, "tilusbuild build --level ", "tilusbuild completions "]
    *scripts, levels, shells = offered(directory, shell, lines)
    assert all(set(each) >= {"saxpy", "soft_max"} for each in scripts)
    assert set(levels) >= {"0", "1", "2"}
    assert set(shells) >= {*SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_no_shell_runs_what_a_strangers_manifest_names(directory: Path, shell: str) -> None:
    choose = random.Random(1)
    for _ in range(int(os.environ.get("TILUSBUILD_TEST_MANIFESTS", "2"))):
        names = {"".join(choose.choices(_FRAGMENTS, k=choose.randint(1, 3))) for _ in range(40)}
        tables = [f"[script.{json.dumps(name, ensure_ascii=False)}]" for name in sorted(names)]
        (directory / "tilus.toml").write_text("\n".join([*tables, "[script.soft_max]"]))
        soft_max, *_ = offered(directory, shell, ["tilusbuild build so", "tilusbuild run $(t"])
        assert soft_max[-1] == "soft_max"
        assert {name.name for name in directory.iterdir()} <= _OURS


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_takes_its_script(directory: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    script = run(directory, "completions", shell).out
    run_to_end([shell, "-n"], input=script)


def test_where_there_is_no_project_no_script_is_offered(tmp_path: Path) -> None:
    assert run(tmp_path, "completions", "scripts").out == ""
    (tmp_path / "tilus.toml").write_text("edition = oops")
    assert run(tmp_path, "completions", "scripts").out == ""
