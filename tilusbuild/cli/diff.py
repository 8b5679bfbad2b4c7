"""`tilusbuild diff A B`: what changed between two packages, or caches."""

from __future__ import annotations

from tilusbuild.cli import options
from tilusbuild.cli.arguments import LimitArgs, Verb, flag, positional
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.report.jsonl import ChangeLine

_SHOWN = 3


class DiffArgs(LimitArgs, frozen=True, kw_only=True):
    a: str = positional("A", help="a package or a cache")
    b: str = positional("B", help="a package or a cache")
    exit_code: bool = flag("--exit-code", help="exit with status 1 when they differ")


def run(arguments: DiffArgs) -> int:
    """Print the changes from A to B. Return 1 if there are any and --exit-code asks for it."""
    from tilusbuild.package.diff import group_changes, list_changes, open_side

    limits = options.parse_limits(arguments)
    with open_side(arguments.a, limits) as a, open_side(arguments.b, limits) as b:
        changes = list(list_changes(a, b))
    if arguments.json:
        for change in changes:
            emit_line(change)
        emit_line(CountsLine({"changes": len(changes)}))
    else:
        for change, labels in group_changes(changes):
            shown = labels if arguments.verbose else labels[:_SHOWN]
            more = f" and {len(labels) - len(shown)} more" if len(labels) > len(shown) else ""
            print(f"{change.what} {change.kind}: {'; '.join(shown)}{more}")
            for reason in change.reasons:
                print(f"  {reason}")
        if not changes:
            print("nothing changed")
    return 1 if changes and arguments.exit_code else 0


VERB = Verb(DiffArgs, run, (ChangeLine, CountsLine))
