"""Completion, asked of the shells themselves: each must offer what our parser has."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import run
from support.processes import run_to_end
from support.project import Project
from support.scale import TEMPLATE, manifest
from tilusbuild.cli.completions import SHELLS
from tilusbuild.cli.parser import list_verbs, make_full_parser

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
_ASK = {
    "bash": ["bash", "-c", _ASK_BASH],
    "fish": ["fish", "-N", "-c", _ASK_FISH],
}


def offered(directory: Path, shell: str, lines: list[str]) -> list[list[str]]:
    """What the shell offers after each line."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (directory / "completions").write_text(run(directory, "completions", shell).out)
    asked = "".join(f"{line}\n" for line in lines)
    # The shell finds the command that it asks for names.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answer = run_to_end(_ASK[shell], cwd=directory, input=asked, environment={"PATH": path})
    assert answer.stderr == ""
    return [line.split() for line in answer.stdout.splitlines()]


def parsers(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, set[str]]]:
    """The words that lead to each parser, and its long options."""
    yield (
        words,
        {
            option
            for action in parser._actions
            for option in action.option_strings
            if "--" in option
        },
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from parsers(child, f"{words} {name}")


@pytest.mark.parametrize("shell", _ASK)
def test_every_verb_and_option_is_offered(tmp_path: Path, shell: str) -> None:
    expected = {
        f"{words} --": options for words, options in parsers(make_full_parser(), "tilusbuild")
    }
    expected["tilusbuild "] = set(list_verbs())
    answers = offered(tmp_path, shell, list(expected))
    assert {
        line: missing
        for (line, words), answer in zip(expected.items(), answers, strict=True)
        if (missing := words - set(answer))
    } == {}


@pytest.mark.parametrize("shell", _ASK)
def test_the_values_of_an_option_are_offered(tmp_path: Path, shell: str) -> None:
    lines = ["tilusbuild build --level ", "tilusbuild completions "]
    levels, shells = offered(tmp_path, shell, lines)
    assert set(levels) >= {"0", "1", "2"}
    assert set(shells) >= {*SHELLS}


@pytest.mark.parametrize("shell", _ASK)
def test_the_names_of_scripts_targets_and_packages_are_offered(tmp_path: Path, shell: str) -> None:
    project = Project(tmp_path).write_all(
        {"tilus.toml": manifest() + "[package.few]\n", "kernels/scale.cu.j2": TEMPLATE}
    )
    lines = [
        "tilusbuild build ",
        "tilusbuild run sc",
        "tilusbuild plan scale s",
        "tilusbuild tune -t c",
        "tilusbuild package f",
    ]
    scripts, *names = offered(tmp_path, shell, lines)
    assert "scale" in scripts
    assert names == [["scale"], ["scale"], ["cpu"], ["few"]]
    project.write("tilus.toml", "no manifest [")
    assert offered(tmp_path, shell, ["tilusbuild run sc"]) in ([], [[]])


def test_names_are_printed_one_a_line(tmp_path: Path) -> None:
    Project(tmp_path).write_all({"tilus.toml": manifest(), "kernels/scale.cu.j2": TEMPLATE})
    assert run(tmp_path, "completions", "scripts").out == "scale\n"
    assert run(tmp_path, "completions", "targets").out == "cpu\ngpu\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_takes_its_script(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    script = run(tmp_path, "completions", shell).out
    run_to_end([shell, "-n"], input=script)
