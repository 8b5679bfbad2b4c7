"""`tilusbuild cache gc` and `clear`: what of a cache is removed, and what is left and named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, flag, option, optional, repeated
from tilusbuild.cli.options import CountsLine, emit, say
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount, counted

if TYPE_CHECKING:
    from tilusbuild.cache.tree import Tree


class CacheGcArgs(Common, frozen=True, kw_only=True):
    """What may go."""

    other: str | None = optional("DIR", help=options.other_cache_help())
    broken: bool = flag("--broken", help="in a foreign cache: remove broken entries, too")
    older_than: str | None = option(
        "--older-than", metavar="AGE", help="remove only what is older, as in 30d or 12h"
    )
    max_size: str | None = option(
        "--max-size", metavar="SIZE", help="remove only until the cache has this size, as in 20GB"
    )
    forget: tuple[str, ...] = repeated(
        "--forget",
        metavar="MANIFEST",
        help="forget this project: what its last build made can be removed, too",
    )
    dry_run: bool = flag("-n", "--dry-run", help="print what would be removed")


class RemovedLine(JsonLine, frozen=True):
    """An entry that was removed; its age is in seconds."""

    event: ClassVar[str] = "removed"
    name: str
    size: int
    age: float


class LeftLine(JsonLine, frozen=True):
    """Something in the cache that tilusbuild did not write: it stays."""

    event: ClassVar[str] = "left"
    name: str
    what: str


def gc(arguments: CacheGcArgs) -> int:
    """Remove what no project's last build made; returns the exit status."""
    from tilusbuild.cache.garbage import collect_garbage
    from tilusbuild.cache.index import forget_projects
    from tilusbuild.errors import input_error
    from tilusbuild.manifest.table import parse_duration, parse_size

    if arguments.other and (foreign := options.foreign_caches(arguments.other)):
        return foreign.gc(arguments.other, arguments)
    if arguments.broken:
        raise input_error(
            "--broken is for foreign caches", hint="`tilusbuild cache verify --repair` is for ours"
        )
    cache = options.chosen_cache(arguments.other, arguments)
    older = parse_duration(arguments.older_than) if arguments.older_than else None
    size = parse_size(arguments.max_size) if arguments.max_size else None
    if arguments.forget:
        forgotten = _known(cache, arguments.forget)
        if not arguments.dry_run:
            forget_projects(cache, forgotten)
    result = collect_garbage(cache, older_than=older, max_size=size, dry_run=arguments.dry_run)
    freed = sum(item.size for item in result.removed)
    if arguments.json:
        for item in result.removed:
            emit(RemovedLine(item.name, item.size, item.age))
        _say_left(result.left, arguments)
        counts = {"removed": len(result.removed), "freed": freed, "kept": result.kept_size}
        emit(CountsLine(counts))
        return 0
    if arguments.verbose or arguments.dry_run:
        for item in result.removed:
            print(f"{amount(item.size):>10}  {item.name}")
    verb = "would remove" if arguments.dry_run else "removed"
    entries = counted(len(result.removed), "entry", "entries")
    print(f"{verb} {entries}, {amount(freed)}; {amount(result.kept_size)} kept")
    _say_left(result.left, arguments)
    return 0


def _known(cache: Tree, manifests: Sequence[str]) -> list[str]:
    """Return what the index calls these projects. Raises `InputError` for one that it has not."""
    from tilusbuild.cache.index import read_index
    from tilusbuild.errors import did_you_mean, input_error

    known = read_index(cache)
    found = []
    for word in manifests:
        names = (word, os.path.abspath(word), os.path.join(os.path.abspath(word), "tilus.toml"))
        name = next((name for name in names if name in known), None)
        if name is None:
            raise input_error(
                f"--forget {word}: no project of {cache.root}",
                hint=did_you_mean(os.path.abspath(word), known) or "the cache knows no project",
            )
        found.append(name)
    return found


def _say_left(left: Mapping[str, str], arguments: Common) -> None:
    for name, what in left.items():
        if arguments.json:
            emit(LeftLine(name, what))
        else:
            say(f"left alone: {name} {what}\n")


def clear(arguments: Common) -> int:
    """Remove everything that is ours; returns the exit status."""
    from tilusbuild.cache.garbage import clear_cache

    cache = options.cache(arguments.cache_dir)
    left = clear_cache(cache)
    _say_left(left, arguments)
    if not arguments.quiet and not arguments.json and not left:
        print(f"{cache.root} is empty")
    return 0
