"""`tilusbuild cache push` and `cache pull`: programs to the remote cache, and from it."""

from __future__ import annotations

from typing import ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import SelectionArgs
from tilusbuild.cli.options import emit, say
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount, counted


class TransferArgs(SelectionArgs, frozen=True, kw_only=True):
    """Which programs."""


class TransferSummary(JsonLine, frozen=True):
    """What went to the remote cache, or came from it; `left` did not."""

    event: ClassVar[str] = "summary"
    address: str
    programs: int
    bytes: int
    left: int
    warnings: tuple[str, ...]


def push(arguments: TransferArgs) -> int:
    """Send what is here; 1 when not all of it went."""
    return _run(arguments, push=True)


def pull(arguments: TransferArgs) -> int:
    """Fetch what is not here; 1 when the remote is in trouble. What it has not is to be built."""
    return _run(arguments, push=False)


def _run(arguments: TransferArgs, *, push: bool) -> int:
    from tilusbuild.builder.transfer import transfer

    warnings: list[str] = []
    with options.project(arguments) as project:
        plan = project.plan(options.selected(arguments, project))
        found = transfer(project, plan, warnings.append, push=push)
    went = (found.sent, found.sent_bytes) if push else (found.hits, found.fetched_bytes)
    left = found.unsent if push else found.misses + found.refused
    if arguments.json:
        emit(TransferSummary(found.address, *went, left, tuple(warnings)))
    else:
        for warning in warnings:
            say(f"warning: {warning}\n")
        if not arguments.quiet:
            verb = "sent" if push else "fetched"
            rest = f", {left} not {verb}" if left else ""
            print(
                f"{found.address}: {verb} {counted(went[0], 'program')} ({amount(went[1])}){rest}"
            )
    return 1 if warnings or (push and left) else 0
