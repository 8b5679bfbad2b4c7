"""`tilusbuild diff A B`: what changed between two packages, or caches."""

from __future__ import annotations

import argparse
import json

from tilusbuild.cli import options

_SHOWN = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Two paths."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="a package, or a cache tree")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with status 1 when they differ"
    )
    options.package_limits(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what changed from A to B."""
    from tilusbuild.cache.sealed import CorruptFileError
    from tilusbuild.errors import TilusbuildError
    from tilusbuild.package.diff import changes, grouped, side

    limits = options.limits(arguments)
    try:
        with side(arguments.a, limits) as a, side(arguments.b, limits) as b:
            found = list(changes(a, b))
    except CorruptFileError as error:
        raise TilusbuildError(str(error)) from None
    if arguments.json:
        for change in found:
            print(json.dumps({"event": "change", **change.as_json()}, ensure_ascii=False))
        print(json.dumps({"event": "summary", "changes": len(found)}))
    else:
        for change, labels in grouped(found):
            shown = labels if arguments.verbose else labels[:_SHOWN]
            more = f" and {len(labels) - len(shown)} more" if len(labels) > len(shown) else ""
            print(f"{change.what} {change.kind}: {'; '.join(shown)}{more}")
            for reason in change.reasons:
                print(f"  {reason}")
        if not found:
            print("nothing changed")
    return 1 if found and arguments.exit_code else 0
