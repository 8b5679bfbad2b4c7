"""`tilusbuild build`: plan, compile what is out of date, publish."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.engine.events import Reporter


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
        help="keep what each step made: the template, the preprocessed source, PTX, SASS",
    )
    parser.add_argument(
        "--shard", metavar="I/N", help="build the I-th of N parts; `cache merge` joins their caches"
    )
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="what programs took in an earlier build, for --shard to split by: the same for all",
    )
    parser.add_argument("--junit", metavar="FILE", help="also write a JUnit file, for CI to show")


def run(arguments: argparse.Namespace) -> int:
    """Build; the exit status is the summary's."""
    from tilusbuild.build.build import build
    from tilusbuild.build.noop_record import Invocation
    from tilusbuild.errors import input_error
    from tilusbuild.plan.shards import parse_shard
    from tilusbuild.report.choose import Results

    shard = None if arguments.shard is None else parse_shard(arguments.shard)
    if arguments.history is not None and shard is None:
        raise input_error(
            "--history is what --shard splits by", hint="add --shard I/N, or leave it out"
        )
    display = options.reporter(arguments)
    with options.project(arguments) as project:
        result = build(
            project,
            options.selected(arguments, project),
            options.engine_options(arguments, project),
            _with_files(display, arguments, project.manifest.root),
            dump_ir=project.settings.dump_ir.value,
            invocation=Invocation(arguments.record, arguments.started),
            shard=shard,
            times=arguments.history,
        )
    if isinstance(display, Results):
        display.check()
    return result.summary.exit_status


def _with_files(display: Reporter, arguments: argparse.Namespace, root: str) -> Reporter:
    """The display, and what other programs are to read."""
    from tilusbuild.errors import input_error
    from tilusbuild.report.choose import with_files

    junit = arguments.junit
    if junit is not None and not os.path.isdir(os.path.dirname(os.path.abspath(junit))):
        raise input_error(f"--junit {junit}: there is no folder {os.path.dirname(junit)}")
    return with_files(display, stderr=sys.stderr, env=os.environ, root=root, junit=junit)
