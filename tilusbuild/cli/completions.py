"""`tilusbuild completions SHELL`: a script that makes a shell complete our command lines.

The script has all verbs and options in it, so that completing starts nothing and reads no manifest,
which may be a stranger's.
"""

from __future__ import annotations

import sys

from tilusbuild.cli.arguments import Common, Verb, positional
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import declare_line

SHELLS = ("bash", "zsh", "fish")
# Names that `--help` has for files, packages and caches among them.
_FILE_METAVARS = ("FILE", "PATH", "PEM", "LOG", "A", "B")
_DIRECTORY_METAVARS = ("DIR",)


class CompletionsArgs(Common, frozen=True, kw_only=True):
    shell: str = positional("SHELL", choices=SHELLS, help="bash, zsh or fish")


CompletionsLine = declare_line("completions", shell=str, text=str)
"""What was asked for."""


def run(arguments: CompletionsArgs) -> int:
    """Print the script to stdout."""
    text = _generate_script(arguments.shell)
    if arguments.json:
        emit_line(CompletionsLine(arguments.shell, text))
    else:
        sys.stdout.write(text)
    return 0


def _generate_script(shell: str) -> str:
    """Return the completion script of a shell, made from the parser of all verbs."""
    # Not at the top: `--help` and the schema of `--json` import all verbs.
    import shtab

    from tilusbuild.cli.parser import make_full_parser, walk_actions

    parser = make_full_parser()
    for action in walk_actions(parser):
        if action.metavar in _FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORY_METAVARS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip("\n") + "\n"


VERB = Verb(CompletionsArgs, run, (CompletionsLine,))
