"""`tilusbuild check PACKAGE`: a package's tests, on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import LimitArgs, Verb, flag, option, positional, positionals
from tilusbuild.cli.options import CountsLine, emit
from tilusbuild.report.jsonl import JsonLine, Scalar


class CheckArgs(LimitArgs, frozen=True, kw_only=True):
    """What is checked, where, and for how long."""

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
    junit: str | None = option("--junit", metavar="FILE", help="write the results as JUnit XML")


class ServedLine(JsonLine, frozen=True):
    """The instance of a script that serves the device."""

    event: ClassVar[str] = "served"
    script: str
    target: str | None
    arch: str
    device: str
    programs: int
    cases: int
    why: tuple[str, ...]


class CheckedLine(JsonLine, frozen=True):
    """A program that was called with the tensors of a case."""

    event: ClassVar[str] = "checked"
    script: str
    target: str
    program: int
    hash: str
    sizes: Mapping[str, Scalar]
    status: str
    why: str
    compared: bool
    """Whether the case has expected outputs."""
    error: float
    """The largest absolute error."""
    seconds: float | None
    chosen: bool
    """Whether a call with these sizes chooses it."""
    again: str
    """The command that shows a failure again."""


def run(arguments: CheckArgs) -> int:
    """Check, and print a table; 1 when a program is wrong or nothing serves a script."""
    from tilusbuild import check
    from tilusbuild.package import names
    from tilusbuild.package.read import unpacked

    rows: list[check.Row] = []

    def take(row: check.Row) -> None:
        rows.append(row)
        if arguments.json:
            print(check.json_line(row), flush=True)

    with ExitStack() as stack:
        root = arguments.path
        if not os.path.isfile(os.path.join(root, names.LIST)):
            limits = options.limits(arguments)
            everything = unpacked(root, lambda listing: set(listing.files), limits)
            root = stack.enter_context(everything)[1]
        wanted = check.CheckRequest(
            root,
            arguments.path,
            arguments.names,
            check.parse_sizes(arguments.size),
            arguments.chosen,
            arguments.device,
            arguments.time_limit,
        )
        good, bad = check.check(wanted, take)
    if arguments.junit is not None:
        options.write_to(arguments.junit, check.junit(rows))
    if arguments.json:
        emit(CountsLine({"right": good, "wrong": bad}))
    else:
        print(check.report(rows), end="")
    return 1 if bad else 0


VERB = Verb(CheckArgs, run, (ServedLine, CheckedLine, CountsLine))
