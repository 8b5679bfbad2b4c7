"""`tilusbuild build`: plan, compile what is out of date, publish."""

from __future__ import annotations

import argparse

from tilusbuild.cli import options


def configure(parser: argparse.ArgumentParser) -> None:
    """Which part of the project, and how."""
    options.selection(parser)
    options.compiling(parser)
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="say what would be compiled, and do nothing"
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail when any schedule does not build"
    )
    parser.add_argument(
        "--dump-ir",
        action="store_true",
        help="keep PTX, SASS and the preprocessed source of each program that is compiled",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build; the exit status is the summary's."""
    from tilusbuild.project.build import build
    from tilusbuild.project.remember import Asked

    with options.project(arguments) as project:
        result = build(
            project,
            options.selected(arguments, project),
            options.engine_options(arguments, project),
            options.reporter(arguments),
            dump_ir=project.settings.dump_ir.value,
            asked=Asked(arguments.record, arguments.started),
        )
    return result.summary.exit_status
