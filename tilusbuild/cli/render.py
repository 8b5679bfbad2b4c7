"""`tilusbuild render [SCRIPT…]`: the sources that a build would compile, and no compiler."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs, Verb, option
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.report.jsonl import declare_line
from tilusbuild.report.text import format_count

if TYPE_CHECKING:
    from tilusbuild.plan.planner import ProgramJob

_SUFFIXES = {"c": ".c", "c++": ".cpp", "cu": ".cu"}


class RenderArgs(SelectionArgs, frozen=True, kw_only=True):
    output: str | None = option(
        *("-o", "--output"), metavar="DIR", help="write one file per program below DIR"
    )


RenderedLine = declare_line("rendered", label=str, program=str, file=str | None, source=str | None)
"""The source of a program, in a file or as text."""


def run(arguments: RenderArgs) -> int:
    """Print or write the sources. Runs no compiler and writes nothing to the tree."""
    from tilusbuild.plan.planner import iterate_jobs

    programs = 0
    with options.open_project(arguments) as project:
        plan = project.make_plan(options.make_selection(arguments, project))
        for job in iterate_jobs(plan):
            if job.needs:
                continue  # a library, which is linked
            programs += 1
            _write_source(arguments, job)
    if arguments.json:
        emit_line(CountsLine({"programs": programs}))
    elif arguments.output is not None and not arguments.quiet:
        print(f"{format_count(programs, 'source')} in {arguments.output}")
    return 0


def _write_source(arguments: RenderArgs, job: ProgramJob) -> None:
    """Write a program's source to a file below the output directory, or print it; with --json
    print its line. Raises `InputError` for a directory that cannot be made."""
    from tilusbuild.errors import input_error

    recipe = job.render().recipe
    source = recipe.source.encode("utf-8", "surrogateescape")
    file = None
    if arguments.output is not None:
        file = os.path.join(arguments.output, _make_file_name(job, _SUFFIXES[recipe.part.language]))
        try:
            os.makedirs(os.path.dirname(file), exist_ok=True)
        except OSError as error:
            raise input_error(f"{error.filename}: {error.strerror}") from None
        options.write_file(file, source)
    if arguments.json:
        text = None if file else source.decode("utf-8", "replace")
        emit_line(RenderedLine(job.label, job.hash, file, text))
    elif file is None:
        # The buffer below the stream: a source may have bytes that are not UTF-8.
        sys.stdout.write(f"// {job.label}\n")
        sys.stdout.flush()
        sys.stdout.buffer.write(source if source.endswith(b"\n") else source + b"\n")
        sys.stdout.buffer.flush()


def _make_file_name(job: ProgramJob, suffix: str) -> str:
    """Return a program's name as a path: `ampere/gemm[dtype=f16]/12.cu`."""
    name, _, index = job.label.removesuffix(job.planned.target.name).strip().rpartition("/")
    # A constant may be any text.
    return os.path.join(job.planned.target.name, name.replace("/", "%2F"), index + suffix)


VERB = Verb(RenderArgs, run, (RenderedLine, CountsLine))
