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
from tilusbuild.cli.options import CountsLine, emit_line, print_message, show_result
from tilusbuild.report.jsonl import GarbageLine, ProblemLine, declare_line
from tilusbuild.report.text import format_bytes, format_count
from tilusbuild.rooms import find_contributions, import_value

if TYPE_CHECKING:
    from tilusbuild.cache.tree import Tree


# So many files are named in one message.
_MAX_NAMED_FILES = 5


CacheLine = declare_line("cache", path=str)
"""The cache."""


def _print_directory(arguments: Common) -> int:
    cache = options.find_cache(arguments.cache_dir)
    show_result(arguments, CacheLine(cache.root), cache.root)
    return 0


class CacheStatsArgs(Common, frozen=True, kw_only=True):
    other: str | None = optional("DIR", help=options.describe_other_cache())


CacheStatsLine = declare_line(
    "stats", path=str, programs=Mapping[str, int], sizes=Mapping[str, int], size=int
)
"""How many programs have which status, and the bytes below each directory."""


def _print_stats(arguments: CacheStatsArgs) -> int:
    """Print the number of programs with each status, and the size of each directory. Return the
    exit status."""
    from tilusbuild.cache.index import collect_stats
    from tilusbuild.table import format_table

    status = options.run_foreign_verb("stats", arguments.other, arguments)
    if status is not None:
        return status
    stats = collect_stats(options.find_named_cache(arguments.other, arguments))
    if arguments.json:
        emit_line(CacheStatsLine(stats.root, stats.statuses, stats.sizes, stats.size))
        return 0
    print(stats.root)
    print(format_table(("programs", "count"), list(stats.statuses.items())))
    rows = [(name, format_bytes(size)) for name, size in stats.sizes.items()]
    print(format_table(("directory", "size"), [*rows, ("all", format_bytes(stats.size))]), end="")
    return 0


class CacheVerifyArgs(Common, frozen=True, kw_only=True):
    other: str | None = optional("DIR", help=options.describe_other_cache())
    repair: bool = flag("--repair", help="remove what is damaged; the next build makes it again")


def _verify_cache(arguments: CacheVerifyArgs) -> int:
    """Print the problems of a cache; with --repair remove the damaged entries and what killed
    processes left. Foreign files are named on stderr. Return 1 if a problem remains."""
    from tilusbuild.cache.verify import repair_cache, verify_cache

    status = options.run_foreign_verb("verify", arguments.other, arguments)
    if status is not None:
        return status
    cache = options.find_named_cache(arguments.other, arguments)
    problems = verify_cache(cache)
    for problem in problems:
        show_result(
            arguments, ProblemLine(problem.message, of=problem.name, advice=problem.advice), problem
        )
    removed = repair_cache(cache, problems) if arguments.repair else []
    # Several problems may be of one entry, which is removed once.
    remaining = [problem for problem in problems if problem.entry not in removed]
    report_foreign_files(cache)
    _report_leftovers(cache, remove=arguments.repair)
    if arguments.json:
        emit_line(CountsLine({"problems": len(problems), "removed": len(removed)}))
    elif not problems:
        print("no problems found")
    else:
        entries = format_count(len(removed), "entry", "entries")
        print_message(f"{format_count(len(problems), 'problem')}, {entries} removed\n")
    return 1 if remaining else 0


def report_foreign_files(cache: Tree) -> None:
    """Print to stderr which files in a cache tilusbuild did not write."""
    from tilusbuild.cache.verify import list_unknown_names

    names = list_unknown_names(cache)
    if names:
        named = [*names[:_MAX_NAMED_FILES], *(["…"] if names[_MAX_NAMED_FILES:] else [])]
        print_message(f"note: left alone, as tilusbuild did not write it: {', '.join(named)}\n")


def _report_leftovers(cache: Tree, *, remove: bool) -> None:
    """Print to stderr the temporary directories that killed processes left in a cache; with
    `remove`, remove them."""
    from tilusbuild.cache.garbage import list_abandoned

    paths = list_abandoned(cache)
    removed_names = set(cache.sweep_staging(again=True)) if remove and paths else set()
    for name in paths:
        removed = os.path.basename(name) in removed_names
        fate = "removed" if removed else "the next build or gc removes it"
        print_message(f"{name}: a killed process left it: {fate}\n")


class CacheMergeArgs(Common, frozen=True, kw_only=True):
    sources: tuple[str, ...] = positionals(
        "DIR", at_least_one=True, help="a cache, as of another machine"
    )


def _merge_caches(arguments: CacheMergeArgs) -> int:
    """Copy the programs and scripts of other caches into this one, and print what was refused.
    Return 1 if anything was refused, else 0."""
    from tilusbuild.cache.merging import merge_caches, open_sources
    from tilusbuild.dispatch.refresh import refresh_merged_tables
    from tilusbuild.errors import InputError
    from tilusbuild.manifest import find_project_manifest

    cache = options.find_cache(arguments.cache_dir)
    sources = open_sources(cache, arguments.sources)
    own_project = None
    try:
        find_project_manifest(os.getcwd())
    except InputError:
        pass
    else:  # outside of the `try`: without a project is fine, but a broken manifest is an error
        with options.open_project(arguments) as project:
            own_project = (project.manifest.path, project.manifest.project.name)
    result = merge_caches(cache, sources, own_project)
    refresh_merged_tables(cache, result.script_paths)
    for kind, problems in (("refused", result.refused), ("not merged", result.measurements)):
        for problem in problems:
            if arguments.json:
                emit_line(ProblemLine(problem.message, f"{problem.source}/{problem.name}", kind))
            else:
                print_message(f"{kind}: {problem}\n")
    if arguments.json:
        names = ("sources", "programs", "known", "includes", "scripts")
        counts = {name: getattr(result, name) for name in names}
        emit_line(CountsLine({**counts, "refused": len(result.refused)}))
    elif not arguments.quiet:
        known = f" ({result.known} known before)" if result.known else ""
        headers = format_count(result.includes, "header directory", "header directories")
        print(
            f"{os.path.relpath(cache.root)}: merged"
            f" {format_count(result.programs, 'program')}{known},"
            f" {headers}, {format_count(result.scripts, 'script')}; {len(result.refused)} refused"
        )
    return 1 if result.refused else 0


class CacheGcArgs(Common, frozen=True, kw_only=True):
    other: str | None = optional("DIR", help=options.describe_other_cache())
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


def _collect_garbage(arguments: CacheGcArgs) -> int:
    """Remove entries that no project's last build made, and print how much. With --dry-run print
    only; with --forget also remove projects from the cache's index. Return the exit status."""
    from tilusbuild.cache.garbage import collect_garbage
    from tilusbuild.errors import input_error
    from tilusbuild.manifest.values import parse_duration, parse_size

    status = options.run_foreign_verb("gc", arguments.other, arguments)
    if status is not None:
        return status
    # A broken entry of our cache differs from its digests, which `verify` reads and gc does not.
    if arguments.broken:
        raise input_error(
            "--broken is for foreign caches", hint="`tilusbuild cache verify --repair` is for ours"
        )
    cache = options.find_named_cache(arguments.other, arguments)
    older_than = parse_duration(arguments.older_than) if arguments.older_than else None
    max_size = parse_size(arguments.max_size) if arguments.max_size else None
    result = collect_garbage(
        cache,
        older_than=older_than,
        max_size=max_size,
        forgotten=_find_projects(cache, arguments.forget) if arguments.forget else (),
        dry_run=arguments.dry_run,
    )
    freed = sum(entry.size for entry in result.removed)
    for manifest in result.gone:
        print_message(f"note: {manifest} is gone, and its last build is not kept\n")
    if max_size is not None and result.kept_size > max_size:
        print_message(
            f"note: {format_bytes(result.kept_size - max_size)} more than {arguments.max_size}:"
            f" projects and packages need {format_bytes(result.kept_size - result.loaded_size)},"
            f" and running processes have loaded {format_bytes(result.loaded_size)}\n"
        )
        if projects := ", ".join(result.needing):
            print_message(f"  --forget lets what a project needs go: {projects}\n")
    if arguments.json:
        for entry in result.removed:
            emit_line(GarbageLine(entry.name, "removed", entry.size, entry.age))
        counts = {"removed": len(result.removed), "freed": freed, "kept": result.kept_size}
        emit_line(CountsLine(counts))
        return 0
    if arguments.verbose or arguments.dry_run:
        for entry in result.removed:
            print(f"{format_bytes(entry.size):>10}  {entry.name}")
    verb = "would remove" if arguments.dry_run else "removed"
    entries = format_count(len(result.removed), "entry", "entries")
    print(f"{verb} {entries}, {format_bytes(freed)}; {format_bytes(result.kept_size)} kept")
    return 0


def _find_projects(cache: Tree, manifests: Sequence[str]) -> list[str]:
    """Return the keys of these manifests in the cache's index. Raises `InputError` for others."""
    from tilusbuild.cache.index import read_index
    from tilusbuild.errors import did_you_mean, input_error

    index = read_index(cache)
    keys = []
    for word in manifests:
        path = os.path.abspath(word)
        # The word may be a key of the index, the path of a manifest, or the directory of one.
        candidates = (word, path, os.path.join(path, "tilus.toml"))
        known_keys = [key for key in candidates if key in index]
        if not known_keys:
            raise input_error(
                f"--forget {word}: no project of {cache.root}",
                hint=did_you_mean(path, index) or "the cache knows no project",
            )
        keys.append(known_keys[0])
    return keys


def _clear_cache(arguments: Common) -> int:
    """Remove every entry and the state of the cache. Return 0."""
    from tilusbuild.cache.garbage import clear_cache

    cache = options.find_cache(arguments.cache_dir)
    clear_cache(cache)
    if arguments.json:
        emit_line(CacheLine(cache.root))
    elif not arguments.quiet:
        print(f"{cache.root} is empty")
    return 0


def _transfer_programs(arguments: SelectionArgs, *, push: bool) -> int:
    """Send programs to the remote cache, or fetch them. Return 1 when the remote is in trouble, or
    a program was not sent."""
    from tilusbuild.builder.transfer import transfer_programs

    warnings: list[str] = []
    with options.open_project(arguments) as project:
        plan = project.make_plan(options.make_selection(arguments, project))
        result = transfer_programs(project, plan, warnings.append, push=push)
    if push:
        count, byte_count, remaining = result.sent, result.sent_bytes, result.unsent
    else:
        count, byte_count = result.hits, result.fetched_bytes
        remaining = result.misses + result.refused
    if arguments.json:
        for warning in warnings:
            emit_line(ProblemLine(warning, result.address))
        emit_line(CountsLine({"programs": count, "bytes": byte_count, "left": remaining}))
    else:
        for warning in warnings:
            print_message(f"warning: {warning}\n")
        if not arguments.quiet:
            verb = "sent" if push else "fetched"
            rest = f", {remaining} not {verb}" if remaining else ""
            programs = f"{format_count(count, 'program')} ({format_bytes(byte_count)})"
            print(f"{result.address}: {verb} {programs}{rest}")
    # The next build compiles what was not fetched.
    return 1 if warnings or (push and remaining) else 0


ACTIONS: Mapping[str, Verb[Any]] = {
    "dir": Verb(Common, _print_directory, (CacheLine,), "print the directory of the cache"),
    "ls": Verb(
        cache_look.CacheLsArgs,
        cache_look.list_cache,
        (cache_look.CachedScriptLine, cache_look.CachedProgramLine),
        "list the scripts, or the programs of one",
    ),
    "show": Verb(
        cache_look.CacheShowArgs,
        cache_look.show_programs,
        (cache_look.ShownProgramLine, cache_look.ShownPartLine),
        "show one program",
    ),
    "stats": Verb(CacheStatsArgs, _print_stats, (CacheStatsLine,), "show counts and sizes"),
    "verify": Verb(
        CacheVerifyArgs,
        _verify_cache,
        (ProblemLine, CountsLine),
        "verify every file against its digest",
    ),
    "gc": Verb(
        CacheGcArgs,
        _collect_garbage,
        (GarbageLine, CountsLine),
        "remove what no project's last build made",
    ),
    "clear": Verb(Common, _clear_cache, (CacheLine,), "remove everything"),
    "merge": Verb(
        CacheMergeArgs,
        _merge_caches,
        (ProblemLine, CountsLine),
        "copy the programs of other caches into this one",
    ),
    "push": Verb(
        SelectionArgs,
        partial(_transfer_programs, push=True),
        (ProblemLine, CountsLine),
        "send the project's programs to the remote cache",
    ),
    "pull": Verb(
        SelectionArgs,
        partial(_transfer_programs, push=False),
        (ProblemLine, CountsLine),
        "fetch the project's programs from the remote cache",
    ),
    **{name: import_value(verb) for name, verb in find_contributions("cache action").items()},
}
