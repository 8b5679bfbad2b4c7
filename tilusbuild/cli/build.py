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
    parser.add_argument(
        "--shard", metavar="I/N", help="build the I-th of N parts; `cache merge` joins their caches"
    )
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="what programs took in an earlier build, for --shard to split by: the same for all",
    )


def run(arguments: argparse.Namespace) -> int:
    """Build; the exit status is the summary's."""
    from tilusbuild.errors import input_error
    from tilusbuild.plan.shards import parse_shard
    from tilusbuild.project.build import build
    from tilusbuild.project.remember import Asked

    shard = None if arguments.shard is None else parse_shard(arguments.shard)
    if arguments.history is not None and shard is None:
        raise input_error(
            "--history is what --shard splits by", hint="add --shard I/N, or leave it out"
        )
    with options.project(arguments) as project:
        result = build(
            project,
            options.selected(arguments, project),
            options.engine_options(arguments, project),
            options.reporter(arguments),
            dump_ir=arguments.dump_ir,
            asked=Asked(arguments.record, arguments.started),
            shard=shard,
            times=arguments.history,
        )
    return result.summary.exit_status
