"""`tilusbuild cache …`: inspect and maintain the cache. Works without a manifest, too.

`ls`, `stats`, `verify` and `gc` also take a foreign cache, if an optional room knows its system.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import cache_look, options
from tilusbuild.cli.arguments import (
    Common,
    SelectionArgs,
    Verb,
    flag,
    option,
    optional,
    positionals,
    repeated,
)
from tilusbuild.cli.options import CountsLine, emit, say, show
from tilusbuild.report.jsonl import GarbageLine, ProblemLine, declare_line
from tilusbuild.report.text import amount, counted
from tilusbuild.rooms import brought, load

if TYPE_CHECKING:
    from tilusbuild.cache.merging import MergeResult
    from tilusbuild.cache.tree import Tree


_NAMED = 5
"""Names in one message."""


CacheLine = declare_line("cache", path=str)
"""The cache."""


def _dir(arguments: Common) -> int:
    cache = options.cache(arguments.cache_dir)
    show(arguments, CacheLine(cache.root), cache.root)
    return 0


class CacheStatsArgs(Common, frozen=True, kw_only=True):
    """Another cache."""

    other: str | None = optional("DIR", help=options.other_cache_help())


CacheStatsLine = declare_line(
    "stats", path=str, programs=Mapping[str, int], sizes=Mapping[str, int], size=int
)
"""How many programs have which status, and the bytes below each directory."""


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
    repair: bool = flag("--repair", help="remove what is damaged; the next build makes it again")


def _verify(arguments: CacheVerifyArgs) -> int:
    from tilusbuild.cache.verify import repair_cache, verify_cache

    if arguments.other and (foreign := options.foreign_caches(arguments.other)):
        return foreign.verify(arguments.other, arguments)
    cache = options.chosen_cache(arguments.other, arguments)
    problems = verify_cache(cache)
    for problem in problems:
        show(arguments, ProblemLine(problem.what, of=problem.name, advice=problem.advice), problem)
    removed = repair_cache(cache, problems) if arguments.repair else []
    left = [problem for problem in problems if problem.entry not in removed]
    say_strangers(cache)
    _say_litter(cache, remove=arguments.repair)
    if arguments.json:
        emit(CountsLine({"problems": len(problems), "removed": len(removed)}))
    elif not problems:
        print("no problems found")
    else:
        entries = counted(len(removed), "entry", "entries")
        say(f"{counted(len(problems), 'problem')}, {entries} removed\n")
    return 1 if left else 0


def say_strangers(cache: Tree) -> None:
    """Say once what is in a cache, and is not tilusbuild's."""
    from tilusbuild.cache.verify import strangers

    if found := strangers(cache):
        named = ", ".join(found[:_NAMED]) + (", …" if found[_NAMED:] else "")
        say(f"note: left alone, as tilusbuild did not write it: {named}\n")


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
        "DIR", at_least_one=True, help="a cache, as of another machine"
    )


def _merge(arguments: CacheMergeArgs) -> int:
    from tilusbuild.cache.merging import merge_caches, open_sources
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find

    cache = options.cache(arguments.cache_dir)
    sources = open_sources(cache, arguments.sources)
    own = None
    try:
        find(os.getcwd())
    except InputError:
        pass
    else:
        with options.project(arguments) as project:
            own = (project.manifest.path, project.manifest.project.name)
    result = merge_caches(cache, sources, own)
    if arguments.json:
        _emit_merge(result)
    else:
        _print_merge(cache, result, quiet=arguments.quiet)
    return 1 if result.refused else 0


def _emit_merge(result: MergeResult) -> None:
    for each in result.refused:
        emit(ProblemLine(each.what, f"{each.source}/{each.name}", "refused"))
    for each in result.measurements:
        emit(ProblemLine(each.what, f"{each.source}/{each.name}", "not merged"))
    names = ("sources", "programs", "known", "includes", "scripts")
    counts = {name: getattr(result, name) for name in names}
    emit(CountsLine({**counts, "refused": len(result.refused)}))


def _print_merge(cache: Tree, result: MergeResult, *, quiet: bool) -> None:
    for each in result.refused:
        say(f"refused: {each}\n")
    for each in result.measurements:
        say(f"not merged: {each}\n")
    if not quiet:
        known = f" ({result.known} known before)" if result.known else ""
        headers = counted(result.includes, "header directory", "header directories")
        print(
            f"{os.path.relpath(cache.root)}: merged {counted(result.programs, 'program')}{known},"
            f" {headers}, {counted(result.scripts, 'script')}; {len(result.refused)} refused"
        )


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
        help="forget this project, so that the results of its last build can be removed, too",
    )
    dry_run: bool = flag("-n", "--dry-run", help="print what would be removed")


def _gc(arguments: CacheGcArgs) -> int:
    """Remove what no project's last build made."""
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
            emit(GarbageLine(item.name, "removed", item.size, item.age))
        counts = {"removed": len(result.removed), "freed": freed, "kept": result.kept_size}
        emit(CountsLine(counts))
        return 0
    if arguments.verbose or arguments.dry_run:
        for item in result.removed:
            print(f"{amount(item.size):>10}  {item.name}")
    verb = "would remove" if arguments.dry_run else "removed"
    entries = counted(len(result.removed), "entry", "entries")
    print(f"{verb} {entries}, {amount(freed)}; {amount(result.kept_size)} kept")
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


def _clear(arguments: Common) -> int:
    """Remove everything that is ours."""
    from tilusbuild.cache.garbage import clear_cache

    cache = options.cache(arguments.cache_dir)
    clear_cache(cache)
    if arguments.json:
        emit(CacheLine(cache.root))
    elif not arguments.quiet:
        print(f"{cache.root} is empty")
    return 0


def _transfer(arguments: SelectionArgs, *, push: bool) -> int:
    """Send what is here, or fetch what is not; 1 when not all of it went, or the remote is in
    trouble. What that has not is to be built."""
    from tilusbuild.builder.transfer import transfer

    warnings: list[str] = []
    with options.project(arguments) as project:
        plan = project.plan(options.selected(arguments, project))
        found = transfer(project, plan, warnings.append, push=push)
    went = (found.sent, found.sent_bytes) if push else (found.hits, found.fetched_bytes)
    left = found.unsent if push else found.misses + found.refused
    if arguments.json:
        for warning in warnings:
            emit(ProblemLine(warning, found.address))
        emit(CountsLine({"programs": went[0], "bytes": went[1], "left": left}))
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


ACTIONS: Mapping[str, Verb[Any]] = {
    "dir": Verb(Common, _dir, (CacheLine,), "print the directory of the cache"),
    "ls": Verb(
        cache_look.CacheLsArgs,
        cache_look.ls,
        (cache_look.CachedScriptLine, cache_look.CachedProgramLine),
        "list the scripts, or the programs of one",
    ),
    "show": Verb(
        cache_look.CacheShowArgs,
        cache_look.show,
        (cache_look.ShownProgramLine, cache_look.ShownPartLine),
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
        CacheGcArgs,
        _gc,
        (GarbageLine, CountsLine),
        "remove what no project's last build made",
    ),
    "clear": Verb(Common, _clear, (CacheLine,), "remove everything"),
    "merge": Verb(
        CacheMergeArgs,
        _merge,
        (ProblemLine, CountsLine),
        "copy the programs of other caches into this one",
    ),
    "push": Verb(
        SelectionArgs,
        partial(_transfer, push=True),
        (ProblemLine, CountsLine),
        "send the project's programs to the remote cache",
    ),
    "pull": Verb(
        SelectionArgs,
        partial(_transfer, push=False),
        (ProblemLine, CountsLine),
        "fetch the project's programs from the remote cache",
    ),
    **{name: load(verb) for name, verb in brought("cache action").items()},
}
