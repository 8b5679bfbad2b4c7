"""`tilusbuild compdb [SCRIPT…]`: compile_commands.json, for clangd and other editors."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.build.compdb import Database


def configure(parser: argparse.ArgumentParser) -> None:
    """Which programs, in whose words, and where to."""
    options.selection(parser)
    parser.add_argument(
        "--all", action="store_true", help="every schedule instead of each default alone"
    )
    parser.add_argument(
        "--clang", action="store_true", help="commands in clang's words, as clangd reads them"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write FILE instead of stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print or write the database; of the tree nothing is written."""
    from tilusbuild.build.compdb import database

    with options.project(arguments) as project:
        selection = options.selected(arguments, project)
        found = database(
            project, project.plan(selection), every=arguments.all, clang=arguments.clang
        )
    if arguments.output is not None:
        _write(arguments.output, _text(found))
    if arguments.json:
        _print_events(found)
    elif arguments.output is None:
        sys.stdout.write(_text(found))
    if found.missing and not arguments.quiet:
        from tilusbuild.report.text import counted

        programs = counted(found.missing, "program")
        sys.stderr.write(f"{programs} without a source yet: `tilusbuild build` writes it\n")
    return 0


def _text(found: Database) -> str:
    return json.dumps([command.entry for command in found.commands], indent=2) + "\n"


def _write(path: str, text: str) -> None:
    from tilusbuild.errors import input_error
    from tilusbuild.state.files import write_atomic

    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None


def _print_events(found: Database) -> None:
    for each in found.commands:
        line = {"event": "command", "label": each.label, "program": each.program, **each.entry}
        print(json.dumps(line))
    summary = {"event": "summary", "commands": len(found.commands), "missing": found.missing}
    print(json.dumps(summary))
