"""`tilusbuild completions SHELL`: a script that makes a shell complete our command lines.

The script has all verbs and options in it, so that completing starts nothing; only the names of
scripts are asked of `tilusbuild completions scripts`, in the current directory of the shell. The
manifest there may be a stranger's: only what can name a script is printed, and no shell expands it
(bash's `compgen -W` and zsh's `(words)` do, so that neither is used for it).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import ClassVar

from tilusbuild.cli.arguments import Common, Verb, positional
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine

SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = "scripts"
_ASK = f"tilusbuild completions {_SCRIPTS} 2>/dev/null"
_COMPLETE_SCRIPTS = {
    "bash": "_tilusbuild_scripts",
    "zsh": "_tilusbuild_scripts",
    "fish": f"({_ASK})",
    "preamble": {
        "bash": f"""
_tilusbuild_scripts() {{
  local name
  while IFS= read -r name; do
    [[ $name != "$1"* ]] || printf '%s\\n' "$name"
  done < <({_ASK})
}}""",
        "zsh": f"""
_tilusbuild_scripts() {{
  local -a names=("${{(@f)$({_ASK})}}")
  compadd "$@" -a names
}}""",
    },
}
_NAMES = ("SCRIPT", "PROGRAM")  # a script stands for its default program
_FILES = ("FILE", "PATH", "PEM", "LOG", "A", "B")
"""Names that `--help` has for files, packages and caches among them."""
_DIRECTORIES = ("DIR",)


class CompletionsArgs(Common, frozen=True, kw_only=True):
    """For which shell."""

    shell: str = positional(
        "SHELL",
        choices=(*SHELLS, _SCRIPTS),
        help='bash, zsh or fish; "scripts" prints the names of the project\'s scripts instead',
    )


class CompletionsLine(JsonLine, frozen=True):
    """What was asked for."""

    event: ClassVar[str] = "completions"
    shell: str
    text: str


def run(arguments: CompletionsArgs) -> int:
    """Print the script to stdout."""
    text = _names() if arguments.shell == _SCRIPTS else _script(arguments.shell)
    if arguments.json:
        emit(CompletionsLine(arguments.shell, text))
    else:
        sys.stdout.write(text)
    return 0


def _names() -> str:
    """Return the scripts of the project around the current directory, a line each.

    The manifest need not be right: who mends a script wants to name it. Where there is none, or it
    is not TOML, nothing is printed: a shell that completes has no place for a message.
    """
    import os

    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find
    from tilusbuild.manifest.document import read_document
    from tilusbuild.manifest.names import TABLE_NAME

    try:
        scripts = read_document(find(os.getcwd())).data.get("script")
    except InputError:
        return ""
    names = scripts if isinstance(scripts, dict) else ()
    return "".join(f"{name}\n" for name in names if TABLE_NAME.fullmatch(name))


def _script(shell: str) -> str:
    import shtab

    from tilusbuild.cli.parser import whole_parser

    parser = whole_parser()
    for action in _actions(parser):
        if action.metavar in _NAMES:
            action.complete = _COMPLETE_SCRIPTS  # type: ignore[attr-defined]
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip("\n") + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of the verbs below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _actions(child)


VERB = Verb(CompletionsArgs, run, (CompletionsLine,))
