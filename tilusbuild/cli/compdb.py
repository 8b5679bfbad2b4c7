"""`tilusbuild compdb [SCRIPT…]`: compile_commands.json, for clangd and other editors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tilusbuild.builder.compdb import CommandLine, database
from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag, option
from tilusbuild.cli.options import CountsLine, emit, say
from tilusbuild.report.jsonl import dumps
from tilusbuild.report.text import counted


class CompdbArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which programs, in which form, and where to."""

    all: bool = flag("--all", help="include every schedule, not only the default ones")
    clang: bool = flag("--clang", help="write clang's options, as clangd reads them")
    output: str | None = option(
        *("-o", "--output"), metavar="FILE", help="write to FILE instead of stdout"
    )


def run(arguments: CompdbArgs) -> int:
    """Print or write the database. Writes nothing to the tree."""
    with options.project(arguments) as project:
        selection = options.selected(arguments, project)
        commands, missing = database(
            project, project.plan(selection), every=arguments.all, clang=arguments.clang
        )
    if arguments.output is not None:
        options.write_to(arguments.output, _text(commands).encode())
    if arguments.json:
        for each in commands:
            emit(each)
        emit(CountsLine({"commands": len(commands), "missing": missing}))
    elif arguments.output is None:
        sys.stdout.write(_text(commands))
    if missing and not arguments.quiet:
        programs = counted(missing, "program")
        say(f"{programs} without a source yet: run `tilusbuild build` first\n")
    return 0


def _text(commands: Sequence[CommandLine]) -> str:
    entries = (
        {"directory": each.directory, "file": each.file, "arguments": list(each.arguments)}
        for each in commands
    )
    return dumps(list(entries), indent=2) + "\n"


VERB = Verb(CompdbArgs, run, (CommandLine, CountsLine))
