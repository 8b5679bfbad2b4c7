"""`tilusbuild check PACKAGE`: a package's tests, on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from tilusbuild.check import checking, results
from tilusbuild.cli import options
from tilusbuild.cli.arguments import LimitArgs, Verb, flag, option, positional, positionals
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.tune.bench.session import Budget


class CheckArgs(LimitArgs, frozen=True, kw_only=True):
    path: str = positional("PACKAGE", help="a package with tests, in any format")
    names: tuple[str, ...] = positionals(
        "SCRIPT", help="a script, an instance as 'SCRIPT[NAME=VALUE]', or a program as SCRIPT/I"
    )
    chosen: bool = flag("--chosen", help="check only the program that a call would choose")
    device: str | None = option(
        "--device", metavar="N", help="a GPU's number, or cpu (default: GPU 0, else the cpu)"
    )
    size: str | None = option(
        "--size", metavar="NAME=N[,NAME=N…]", help="check only the cases with these sizes"
    )
    time_limit: float = option(
        "--time-limit", type=float, default=30.0, metavar="S", help="seconds for a call (30)"
    )
    measure: str | None = option(
        "--measure",
        metavar="LOG",
        help="compare the programs as `tune` does, and append the samples to LOG,"
        " for `tilusbuild tune --import`",
    )
    budget: str | None = option(
        "--budget",
        metavar="90s|500",
        help="with --measure: stop a script after this time, or so many checks and samples",
    )
    junit: str | None = option("--junit", metavar="FILE", help="write the results as JUnit XML")


def run(arguments: CheckArgs) -> int:
    """Check a package, print the results, and write the JUnit file. Return 1 when a program is
    wrong or a script has no instance for the device, else 0."""
    from tilusbuild.package import names
    from tilusbuild.package.read import unpack_package

    with ExitStack() as stack:
        root = arguments.path
        # A directory is checked in place.
        if not os.path.isfile(os.path.join(root, names.LIST)):
            limits = options.parse_limits(arguments)
            package = unpack_package(root, lambda listing: set(listing.files), limits)
            root = stack.enter_context(package)[1]
        request = checking.CheckRequest(
            root=root,
            shown=arguments.path,
            names=arguments.names,
            sizes=None if arguments.size is None else checking.parse_sizes(arguments.size),
            chosen=arguments.chosen,
            device=arguments.device,
            limit=arguments.time_limit,
            log=arguments.measure,
            budget=Budget.parse_budget(arguments.budget) if arguments.budget else Budget(),
        )
        rows = checking.write_results(request, sys.stdout, as_json=arguments.json)
    if arguments.junit is not None:
        options.write_file(arguments.junit, results.format_junit(rows))
    right, wrong = results.count_results(rows)
    if arguments.json:
        emit_line(CountsLine({"right": right, "wrong": wrong}))
    return 1 if wrong else 0


VERB = Verb(CheckArgs, run, (results.ServedLine, results.CheckedLine, CountsLine))
