"""The command line: which verb, its arguments, and what the process's exit status is.

Only this package prints. Results go to stdout, progress and messages to stderr. A verb's module is
imported when that verb is used, and imports what it needs when it runs. Exit status: 0 done, 1
something did not build or verify, 2 the command line or the manifest is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from tilusbuild.errors import TilusbuildError, did_you_mean

VERBS = {
    "init": "make a project that builds and runs, to start from",
    "build": "plan, compile, publish",
    "plan": "show what would be built",
    "explain": "say why something is out of date",
    "run": "call a kernel on generated inputs, check it, time it",
    "cache": "look at and look after the cache tree",
    "schema": "print the JSON schema of tilus.toml",
    "doctor": "show what was found on this machine, and what is missing",
}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in our own words and a suggestion for a mistyped option."""

    def error(self, message: str) -> NoReturn:
        hint = None
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            options = [option for action in self._actions for option in action.option_strings]
            hint = did_you_mean(word.split("=")[0], options) if word.startswith("-") else None
        sys.stderr.write(f"error: {message}\n")
        if hint:
            sys.stderr.write(f"  {hint}\n")
        sys.stderr.write(f"  `{self.prog} --help` lists what there is\n")
        sys.exit(2)


def _common(defaults: bool) -> _Parser:
    """The options that every verb takes, before or after its name."""
    none = None if defaults else argparse.SUPPRESS
    parser = _Parser(add_help=False)
    group = parser.add_argument_group("every verb")
    group.add_argument(
        "-C", dest="directory", metavar="DIR", default=none, help="run as if started in DIR"
    )
    group.add_argument("--cache-dir", metavar="DIR", default=none, help="the cache tree's folder")
    group.add_argument(
        "--json",
        action="store_true",
        default=False if defaults else argparse.SUPPRESS,
        help="print one JSON object a line",
    )
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        default=False if defaults else argparse.SUPPRESS,
        help="print errors only",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=False if defaults else argparse.SUPPRESS,
        help="print more",
    )
    return parser


def _parser(verb: str | None) -> argparse.ArgumentParser:
    from tilusbuild import __version__

    parser = _Parser(
        prog="tilusbuild",
        description="The build system for projects of tuned CUDA kernels.",
        parents=[_common(defaults=True)],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tilusbuild {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    common = _common(defaults=False)
    for name, summary in VERBS.items():
        described = name == verb
        child = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + "." if described else None,
            parents=[common] if described else [],
            allow_abbrev=False,
        )
        if described:
            importlib.import_module(f"tilusbuild.cli.{name}").configure(child)
    return parser


def _verb(arguments: Sequence[str]) -> str | None:
    """The first word that is no option and no option's value."""
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("-C", "--cache-dir"):
            skip = True
        elif not word.startswith("-"):
            return word
    return None


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    verb = _verb(words)
    if verb is not None and verb not in VERBS:
        hint = did_you_mean(verb, VERBS)
        sys.stderr.write(f'error: unknown verb "{verb}"\n' + (f"  {hint}\n" if hint else ""))
        sys.exit(2)
    parser = _parser(verb)
    arguments = parser.parse_args(words)
    if arguments.verb is None:
        parser.print_help(sys.stderr)
        sys.exit(2)
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        arguments = _arguments(sys.argv[1:] if words is None else words)
        if arguments.directory is not None:
            _enter(arguments.directory)
        status: int = importlib.import_module(f"tilusbuild.cli.{arguments.verb}").run(arguments)
        sys.stdout.flush()
        return status
    except TilusbuildError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_status
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader has gone; a second failure at interpreter exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _enter(directory: str) -> None:
    from tilusbuild.errors import input_error

    try:
        os.chdir(directory)
    except OSError as error:
        raise input_error(f"-C {directory}: {error.strerror}") from None
