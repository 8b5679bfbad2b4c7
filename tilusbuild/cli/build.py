"""`tilusbuild build`: plan, compile what is out of date, publish."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import STRICT, CompilingArgs, Verb, flag, option

if TYPE_CHECKING:
    from tilusbuild.report.ci import JUnitReporter


class BuildArgs(CompilingArgs, frozen=True, kw_only=True):
    dry_run: bool = flag("-n", "--dry-run", help="print what would be compiled, and do nothing")
    strict: bool = STRICT
    dump_ir: bool = flag(
        "--dump-ir",
        help="keep the output of each step: the template, the preprocessed source, PTX, SASS",
        setting="dump-ir",
    )
    shard: str | None = option(
        "--shard", metavar="I/N", help="build part I of N; a remote cache joins the parts"
    )
    junit: str | None = option("--junit", metavar="FILE", help="write a JUnit file, too, for CI")
    record: bytes = b""
    """The key of the no-op record of this command."""
    started: int = 0
    """When the command started, by `time.monotonic_ns`."""


def run(arguments: BuildArgs) -> int:
    """Build the selection, and report on the options' displays. Return the exit status of the
    build's summary. Raises `InputError`, also for a report that cannot be written."""
    from tilusbuild.builder.build import build_project
    from tilusbuild.builder.noop_record import Invocation
    from tilusbuild.builder.shards import parse_shard
    from tilusbuild.engine.running import BuildConfig
    from tilusbuild.errors import input_error
    from tilusbuild.report.choose import ResultReporter, add_file_reporters

    # First: a mistake in an option need not wait for the manifest.
    shard = None if arguments.shard is None else parse_shard(arguments.shard)
    display, junit = options.choose_reporter(arguments), _open_junit(arguments.junit)
    opened = options.open_project(arguments, remembered=True)
    with opened as project:
        result = build_project(
            project,
            options.make_selection(arguments, project),
            BuildConfig(
                jobs=project.settings.jobs.value,
                keep_going=arguments.keep_going,
                strict=arguments.strict,
                dry_run=arguments.dry_run,
                verbose=arguments.verbose,
            ),
            add_file_reporters(
                display, stderr=sys.stderr, env=os.environ, root=project.manifest.root, junit=junit
            ),
            dump_ir=project.settings.dump_ir.value,
            invocation=Invocation(arguments.record, arguments.started),
            shard=shard,
        )
    if isinstance(display, ResultReporter):
        display.raise_if_lost()
    if junit is not None and junit.lost is not None:
        raise input_error(f"--junit {arguments.junit}: {junit.lost.strerror}")
    return result.summary.exit_status


def _open_junit(path: str | None) -> JUnitReporter | None:
    """Return the reporter for a JUnit file; None without a path. Raises `InputError`."""
    if path is None:
        return None
    from tilusbuild.errors import input_error
    from tilusbuild.report.ci import JUnitReporter

    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise input_error(f"--junit {path}: no directory {os.path.dirname(path)}")
    return JUnitReporter(path)


VERB = Verb(BuildArgs, run)
