"""`tilusbuild completions SHELL`: a script that makes a shell complete our command lines.

The script has all verbs and options in it, so that completing them starts nothing. For the names
of scripts, targets and packages it runs this verb, which reads the manifest as `plan` does, and
runs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, positional
from tilusbuild.cli.options import emit_line
from tilusbuild.manifest.library import SOURCES
from tilusbuild.report.jsonl import declare_line

SHELLS = ("bash", "zsh", "fish")
NAMES = ("scripts", "targets", "packages")
# Names that `--help` has for files, packages and caches among them.
_FILE_METAVARS = ("FILE", "PATH", "PEM", "LOG", "A", "B")
_DIRECTORY_METAVARS = ("DIR",)
_SCRIPT_METAVARS = ("SCRIPT", "PROGRAM", "SCRIPT|DIR")


class CompletionsArgs(Common, frozen=True, kw_only=True):
    shell: str = positional(
        "SHELL",
        choices=(*SHELLS, *NAMES),
        help=f"bash, zsh or fish; with {', '.join(NAMES)}: their names in this project",
    )


CompletionsLine = declare_line("completions", shell=str, text=str)
"""What was asked for."""


def run(arguments: CompletionsArgs) -> int:
    """Print the script, or names, to stdout. Raises `InputError` for names without a project."""
    if arguments.shell in NAMES:
        with options.open_project(arguments, remembered=True) as project:
            manifest = project.manifest
            names = getattr(manifest, arguments.shell)
            names = dict.fromkeys(name.removesuffix(SOURCES) for name in names)
            text = "".join(f"{name}\n" for name in names)
    else:
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
        elif action.metavar in _SCRIPT_METAVARS:
            action.complete = _complete_names("scripts")  # type: ignore[attr-defined]
        elif "--target" in action.option_strings:
            action.complete = _complete_names("targets")  # type: ignore[attr-defined]
        elif action.metavar == "PACKAGE":
            action.complete = _complete_names("packages")  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip("\n") + "\n"


def _complete_names(kind: str) -> Mapping[str, str | Mapping[str, str]]:
    """Return how each shell completes names of a kind, as shtab takes it: the shell's function, and
    its definition as the preamble."""
    command, function = f"tilusbuild completions {kind} 2>/dev/null", f"_tilusbuild_{kind}"
    definitions = {
        "bash": f'{function}() {{ compgen -W "$({command})" -- "$1"; }}',
        "zsh": f'{function}() {{ compadd -- ${{(f)"$({command})"}}; }}',
    }
    return {**dict.fromkeys(SHELLS, function), "fish": f"({command})", "preamble": definitions}


VERB = Verb(CompletionsArgs, run, (CompletionsLine,))
