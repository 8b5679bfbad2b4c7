"""The parser of the command line: the verbs, the options that all of them take, and good errors.

A verb's module is imported when that verb is used, and imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from tilusbuild.cli import options
from tilusbuild.errors import did_you_mean

VERBS = {
    "init": "make a project that builds and runs, to start from",
    "build": "plan, compile, publish",
    "plan": "show what would be built",
    "watch": "build again on every change",
    "explain": "say why something is out of date",
    "run": "call a kernel on generated inputs, check it, time it",
    "tune": "measure a script's programs on the device, and write its dispatch table",
    "dispatch": "show, check and thin out the tables that choose programs by sizes",
    "package": "carry a cache away: as a folder, an archive, wheels, or an OCI image layout",
    "verify": "check a package or a cache against its digests, and by compiling it again",
    "preflight": "say what a package would do on a machine that is not here",
    "install": "bring a package into the cache",
    "diff": "say what changed between two packages or caches",
    "cache": "look at and look after the cache tree",
    "graph": "print the build graph, for Graphviz",
    "report": "show what builds cost: seconds, memory, registers, spills, sizes",
    "compdb": "write compile_commands.json, for clangd and other editors",
    "schema": "print the JSON schema of tilus.toml",
    "doctor": "show what was found on this machine, and what is missing",
}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in our own words and a suggestion for a mistyped option."""

    def error(self, message: str) -> NoReturn:
        hint = None
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            known = _options(self)
            hint = did_you_mean(word.split("=")[0], known) if word.startswith("-") else None
        sys.stderr.write(f"error: {message}\n")
        if hint:
            sys.stderr.write(f"  {hint}\n")
        sys.stderr.write(f"  `{self.prog} --help` lists what there is\n")
        sys.exit(2)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser and of the verbs below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _options(child)


def _parser(verb: str | None) -> argparse.ArgumentParser:
    from tilusbuild import __version__

    parser = _Parser(
        prog="tilusbuild",
        description="The build system for projects of tuned CUDA kernels.",
        allow_abbrev=False,
    )
    options.common(parser, defaults=True)
    parser.add_argument("--version", action="version", version=f"tilusbuild {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    for name, summary in VERBS.items():
        described = name == verb
        child = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + "." if described else None,
            allow_abbrev=False,
        )
        if described:
            options.common(child, defaults=False)
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


def parse(words: Sequence[str]) -> argparse.Namespace:
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
