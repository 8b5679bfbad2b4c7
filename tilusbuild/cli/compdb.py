"""`tilusbuild compdb [SCRIPT…]`: compile_commands.json, for clangd and other editors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, flag, option
from tilusbuild.cli.options import CountsLine, emit, say
from tilusbuild.report.jsonl import JsonLine, dumps
from tilusbuild.report.text import counted

if TYPE_CHECKING:
    from tilusbuild.builder.compdb import Database


class CompdbArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which programs, in which form, and where to."""

    all: bool = flag("--all", help="include every schedule, not only the default ones")
    clang: bool = flag("--clang", help="write clang's options, as clangd reads them")
    output: str | None = option(
        *("-o", "--output"), metavar="FILE", help="write to FILE instead of stdout"
    )


class CommandLine(JsonLine, frozen=True):
    """The command that compiles a program."""

    event: ClassVar[str] = "command"
    label: str
    program: str
    directory: str
    file: str
    arguments: tuple[str, ...]


def run(arguments: CompdbArgs) -> int:
    """Print or write the database. Writes nothing to the tree."""
    from tilusbuild.builder.compdb import database

    with options.project(arguments) as project:
        selection = options.selected(arguments, project)
        found = database(
            project, project.plan(selection), every=arguments.all, clang=arguments.clang
        )
    if arguments.output is not None:
        options.write_to(arguments.output, _text(found).encode())
    if arguments.json:
        for each in found.commands:
            emit(CommandLine(each.label, each.program, each.directory, each.file, each.arguments))
        emit(CountsLine({"commands": len(found.commands), "missing": found.missing}))
    elif arguments.output is None:
        sys.stdout.write(_text(found))
    if found.missing and not arguments.quiet:
        programs = counted(found.missing, "program")
        say(f"{programs} without a source yet: run `tilusbuild build` first\n")
    return 0


def _text(found: Database) -> str:
    return dumps([command.entry for command in found.commands], indent=2) + "\n"


VERB = Verb(CompdbArgs, run, (CommandLine, CountsLine))
