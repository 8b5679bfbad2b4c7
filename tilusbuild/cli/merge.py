"""`tilusbuild cache merge DIR…`: join the caches of several machines into the project's."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilusbuild.build.merge import Merged
    from tilusbuild.cache.cache import Cache


def configure(parser: argparse.ArgumentParser) -> None:
    """Which caches."""
    parser.add_argument("sources", metavar="DIR", nargs="+", help="a cache that a shard built into")


def run(cache: Cache, arguments: argparse.Namespace) -> int:
    """Merge; 1 when something was refused."""
    from tilusbuild.build.merge import merge
    from tilusbuild.build.project import Project
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find

    with ExitStack() as open_:
        try:
            find(os.getcwd())
        except InputError:
            project = None
        else:
            given = {"cache-dir": arguments.cache_dir}
            project = open_.enter_context(Project.open(os.getcwd(), given, os.environ))
        merged = merge(cache, arguments.sources, project)
    if arguments.json:
        _print_json(merged)
    else:
        _print(cache, merged, arguments.quiet)
    return 1 if merged.refused else 0


def _print(cache: Cache, merged: Merged, quiet: bool) -> None:
    for refused in merged.refused:
        sys.stderr.write(f"refused: {refused}\n")
    for label, count in merged.incomplete.items():
        sys.stderr.write(
            f"incomplete: {label}: {count} of its programs are in none of the caches\n"
        )
    if not quiet:
        there = f", {merged.known} were there" if merged.known else ""
        print(
            f"{os.path.relpath(cache.root)}: {merged.programs} programs came in{there};"
            f" {merged.includes} header folders, {merged.scripts} scripts;"
            f" {len(merged.refused)} refused"
        )


def _print_json(merged: Merged) -> None:
    def emit(event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}, ensure_ascii=False))

    for refused in merged.refused:
        emit("refused", source=refused.source, name=refused.name, what=refused.what)
    for label, count in merged.incomplete.items():
        emit("incomplete", script=label, missing=count)
    emit(
        "summary",
        sources=merged.sources,
        programs=merged.programs,
        known=merged.known,
        includes=merged.includes,
        scripts=merged.scripts,
        refused=len(merged.refused),
    )
