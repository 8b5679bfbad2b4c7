"""`tilusbuild cache …`: inspect and maintain the cache. Works without a manifest, too.

`ls`, `stats`, `verify` and `gc` also take a foreign cache, if an optional room knows its system.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from tilusbuild.cli import cache_gc, cache_ls, cache_show, cache_transfer, options
from tilusbuild.cli.arguments import (
    Common,
    Verb,
    flag,
    optional,
    positionals,
)
from tilusbuild.cli.options import CountsLine, emit, say
from tilusbuild.report.jsonl import JsonLine, ProblemLine
from tilusbuild.report.text import amount, counted
from tilusbuild.rooms import brought, load

if TYPE_CHECKING:
    from tilusbuild.builder.merge import Merged
    from tilusbuild.cache.tree import Tree


class CacheLine(JsonLine, frozen=True):
    """The cache."""

    event: ClassVar[str] = "cache"
    path: str


def _dir(arguments: Common) -> int:
    cache = options.cache(arguments.cache_dir)
    if arguments.json:
        emit(CacheLine(cache.root))
    else:
        print(cache.root)
    return 0


class CacheStatsArgs(Common, frozen=True, kw_only=True):
    """Another cache."""

    other: str | None = optional("DIR", help=options.other_cache_help())


class CacheStatsLine(JsonLine, frozen=True):
    """How many programs have which status, and the bytes below each directory."""

    event: ClassVar[str] = "stats"
    path: str
    programs: Mapping[str, int]
    sizes: Mapping[str, int]
    size: int


def _stats(arguments: CacheStatsArgs) -> int:
    from tilusbuild.cache.index import cache_stats
    from tilusbuild.table import table

    if arguments.other and (foreign := options.foreign_caches(arguments.other)):
        return foreign.stats(arguments.other, arguments)
    stats = cache_stats(options.chosen_cache(arguments.other, arguments))
    if arguments.json:
        emit(CacheStatsLine(stats.root, stats.statuses, stats.sizes, stats.size))
        return 0
    print(stats.root)
    print(table(("programs", "count"), list(stats.statuses.items())))
    rows = [(name, amount(size)) for name, size in stats.sizes.items()]
    print(table(("directory", "size"), [*rows, ("all", amount(stats.size))]), end="")
    return 0


class CacheVerifyArgs(Common, frozen=True, kw_only=True):
    """What to check."""

    other: str | None = optional("DIR", help=options.other_cache_help())
    quick: bool = flag("--quick", help="check sizes and names only")
    repair: bool = flag("--repair", help="remove what is damaged; the next build makes it again")


def _verify(arguments: CacheVerifyArgs) -> int:
    from tilusbuild.cache.verify import repair_cache, verify_cache

    if arguments.other and (foreign := options.foreign_caches(arguments.other)):
        return foreign.verify(arguments.other, arguments)
    cache = options.chosen_cache(arguments.other, arguments)
    problems = verify_cache(cache, deep=not arguments.quick)
    for problem in problems:
        if arguments.json:
            emit(ProblemLine(problem.what, of=problem.name, advice=problem.advice))
        else:
            print(problem)
    removed = repair_cache(cache, problems) if arguments.repair else []
    left = [problem for problem in problems if problem.entry not in removed]
    _say_litter(cache, remove=arguments.repair)
    if arguments.json:
        emit(CountsLine({"problems": len(problems), "removed": len(removed)}))
    elif not problems:
        print("no problems found")
    else:
        entries = counted(len(removed), "entry", "entries")
        say(f"{counted(len(problems), 'problem')}, {entries} removed\n")
    return 1 if left else 0


def _say_litter(cache: Tree, *, remove: bool) -> None:
    from tilusbuild.cache.garbage import litter

    found = litter(cache)
    gone = set(cache.sweep(again=True)) if remove and found else set()
    for name in found:
        what = "removed" if os.path.basename(name) in gone else "the next build or gc removes it"
        say(f"{name}: a killed process left it: {what}\n")


class CacheMergeArgs(Common, frozen=True, kw_only=True):
    """Which caches."""

    sources: tuple[str, ...] = positionals(
        "DIR", at_least_one=True, help="a cache that a shard was built into"
    )


class RefusedLine(JsonLine, frozen=True):
    """Something that was not taken over; `name` is relative to the cache `source`."""

    event: ClassVar[str] = "refused"
    source: str
    name: str
    what: str


class IncompleteLine(JsonLine, frozen=True):
    """A script of which programs are in none of the caches."""

    event: ClassVar[str] = "incomplete"
    script: str
    missing: int


def _merge(arguments: CacheMergeArgs) -> int:
    from tilusbuild.builder.merge import merge
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find

    cache = options.cache(arguments.cache_dir)
    with ExitStack() as stack:
        try:
            find(os.getcwd())
        except InputError:
            project = None
        else:
            project = stack.enter_context(options.project(arguments))
        merged = merge(cache, arguments.sources, project)
    if arguments.json:
        _emit_merged(merged)
    else:
        _print_merged(cache, merged, quiet=arguments.quiet)
    return 1 if merged.refused else 0


def _emit_merged(merged: Merged) -> None:
    for each in merged.refused:
        emit(RefusedLine(each.source, each.name, each.what))
    for script, missing in merged.incomplete.items():
        emit(IncompleteLine(script, missing))
    names = ("sources", "programs", "known", "includes", "scripts")
    counts = {name: getattr(merged, name) for name in names}
    emit(CountsLine({**counts, "refused": len(merged.refused)}))


def _print_merged(cache: Tree, merged: Merged, *, quiet: bool) -> None:
    for refused in merged.refused:
        say(f"refused: {refused}\n")
    for label, count in merged.incomplete.items():
        missing = counted(count, "program")
        say(f"incomplete: {label}: {missing} missing in all of the caches\n")
    if not quiet:
        known = f" ({merged.known} were there before)" if merged.known else ""
        headers = counted(merged.includes, "header directory", "header directories")
        print(
            f"{os.path.relpath(cache.root)}: merged {counted(merged.programs, 'program')}{known},"
            f" {headers}, {counted(merged.scripts, 'script')}; {len(merged.refused)} refused"
        )


ACTIONS: Mapping[str, Verb[Any]] = {
    "dir": Verb(Common, _dir, (CacheLine,), "print the directory of the cache"),
    "ls": Verb(
        cache_ls.CacheLsArgs,
        cache_ls.run,
        (cache_ls.CachedScriptLine, cache_ls.CachedProgramLine),
        "list the scripts, or the programs of one",
    ),
    "show": Verb(
        cache_show.CacheShowArgs,
        cache_show.run,
        (cache_show.ShownProgramLine, cache_show.ShownPartLine),
        "show one program",
    ),
    "stats": Verb(CacheStatsArgs, _stats, (CacheStatsLine,), "show counts and sizes"),
    "verify": Verb(
        CacheVerifyArgs,
        _verify,
        (ProblemLine, CountsLine),
        "verify every file against its digest",
    ),
    "gc": Verb(
        cache_gc.CacheGcArgs,
        cache_gc.gc,
        (
            cache_gc.RemovedLine,
            cache_gc.LeftLine,
            CountsLine,
        ),
        "remove what no project's last build made",
    ),
    "clear": Verb(Common, cache_gc.clear, (cache_gc.LeftLine,), "remove everything"),
    "merge": Verb(
        CacheMergeArgs,
        _merge,
        (RefusedLine, IncompleteLine, CountsLine),
        "merge the caches of several machines into this one",
    ),
    "push": Verb(
        cache_transfer.TransferArgs,
        cache_transfer.push,
        (cache_transfer.TransferSummary,),
        "send the project's programs to the remote cache",
    ),
    "pull": Verb(
        cache_transfer.TransferArgs,
        cache_transfer.pull,
        (cache_transfer.TransferSummary,),
        "fetch the project's programs from the remote cache",
    ),
    **{name: load(verb) for name, verb in brought("cache action").items()},
}
