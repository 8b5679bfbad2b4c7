"""`tilusbuild cache ls|stats|verify|gc DIR` for a foreign cache, and `cache export`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, Verb, option, positional
from tilusbuild.cli.options import CountsLine, emit_line, print_message, show_result
from tilusbuild.report.jsonl import GarbageLine, ProblemLine, declare_line
from tilusbuild.report.text import format_bytes, format_count

if TYPE_CHECKING:
    from tilusbuild.cli.cache import CacheGcArgs
    from tilusbuild.interop.caches.directory import ForeignCache
    from tilusbuild.interop.caches.gc import Removal


StatsLine = declare_line(
    "stats",
    path=str,
    system=str,
    version=str,
    size=int,
    counts=Mapping[str, int],
    duplicates=tuple[tuple[str, ...], ...],
)
"""A foreign cache in numbers, and the paths of the entries that have the same code."""


EntryLine = declare_line(
    "entry",
    system=str,
    path=str,
    kind=str,
    name=str,
    says=str,
    holds=tuple[str, ...],
    by=str,
    size=int,
    age=int,
    pickles=tuple[str, ...],
    problems=tuple[str, ...],
)
"""An entry of a foreign cache: which code it has, who compiled it, its age in seconds."""


LS_LINES, STATS_LINES = (EntryLine,), (StatsLine,)
VERIFY_LINES = (ProblemLine, GarbageLine, CountsLine)
GC_LINES = (GarbageLine, CountsLine)


def is_one(path: str) -> bool:
    """Return whether a directory is a foreign cache."""
    from tilusbuild.interop.caches import recognize_system

    return recognize_system(path) is not None


def ls(path: str, arguments: Common) -> int:
    """Print a table of the entries of a foreign cache, with `--json` a line for each. Return the
    exit status."""
    from tilusbuild.interop.caches import read_foreign_cache
    from tilusbuild.table import format_table

    cache, now = read_foreign_cache(path), time.time()
    if arguments.json:
        for entry in cache.entries:
            emit_line(
                EntryLine(
                    system=cache.system,
                    path=entry.path,
                    kind=entry.kind,
                    name=entry.name,
                    says=entry.declared_arch,
                    holds=tuple(entry.code_archs),
                    by=entry.compiled_by,
                    size=entry.size,
                    age=round(now - entry.modified),
                    pickles=tuple(entry.pickles),
                    problems=tuple(map(str, entry.problems)),
                )
            )
        return 0
    rows = [
        (
            entry.kind,
            entry.name,
            ", ".join(entry.code_archs) or entry.declared_arch,
            entry.compiled_by,
            format_bytes(entry.size),
            _format_age(now - entry.modified),
            "broken" if entry.problems else "",
            entry.path,
        )
        for entry in cache.entries
    ]
    print(f"{cache.root}: {format_title(cache)}")
    heads = ("kind", "name", "code", "compiled by", "size", "age", "", "path")
    print(format_table(heads, rows), end="")
    return 0


def _format_age(seconds: float) -> str:
    """Return an age in its largest unit, such as "3 d"."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    # The age is negative for a file of a machine whose clock is ahead.
    return f"{max(0, seconds):.0f} s"


def stats(path: str, arguments: Common) -> int:
    """Print counts and sizes of a foreign cache; with `--verbose` or `--json`, also the entries
    with the same code. Return the exit status."""
    from tilusbuild.interop.caches import read_foreign_cache
    from tilusbuild.table import format_table

    cache = read_foreign_cache(path)
    groups = cache.duplicates
    # The first of a group is the original; the others could go.
    duplicate_sizes = [entry.size for group in groups for entry in group[1:]]
    facts: list[tuple[str, int, str]] = [
        ("entries", len(cache.entries), format_bytes(cache.size)),
        ("broken", sum(bool(e.problems) for e in cache.entries), ""),
        (
            "the same code as another",
            len(duplicate_sizes),
            format_bytes(sum(duplicate_sizes)),
        ),
        ("left over", len(cache.stale), format_bytes(sum(file.size for file in cache.stale))),
        ("pickles, never opened", sum(len(e.pickles) for e in cache.entries), ""),
    ]
    if arguments.json:
        counts = {name: count for name, count, _ in facts}
        paths = tuple(tuple(entry.path for entry in group) for group in groups)
        emit_line(StatsLine(cache.root, cache.system, cache.version, cache.size, counts, paths))
        return 0
    print(f"{cache.root}: {format_title(cache)}")
    print(format_table(("", "count", "size"), facts), end="")
    if arguments.verbose:
        for group in groups:
            print("the same code: " + ", ".join(entry.path for entry in group))
    return 0


def verify(path: str, arguments: Common) -> int:
    """Print the problems and the stale files of a foreign cache. Return 1 if there is a problem."""
    from tilusbuild.interop.caches import read_foreign_cache

    cache = read_foreign_cache(path)
    for problem in cache.broken:
        show_result(arguments, ProblemLine(problem.message, of=problem.path), problem)
    for file in cache.stale:
        show_result(
            arguments,
            GarbageLine(file.path, "litter", file.size, why=file.reason),
            f"{file.path}: {file.reason}, {format_bytes(file.size)}",
        )
    if arguments.json:
        emit_line(CountsLine({"entries": len(cache.entries), "problems": len(cache.broken)}))
    elif not cache.broken:
        entries = format_count(len(cache.entries), "entry", "entries")
        print(f"{entries} of {format_title(cache)}, no problems found")
    else:
        problems = format_count(len(cache.broken), "problem")
        print_message(f"{problems}; `gc --broken` removes the broken entries\n")
    return 1 if cache.broken else 0


def gc(path: str, arguments: CacheGcArgs) -> int:
    """Remove entries from a foreign cache and print them; with `--dry-run`, only print them. Return
    1 if an entry was kept because it is in use."""
    from tilusbuild.interop.caches import read_foreign_cache
    from tilusbuild.interop.caches.gc import choose_removals, remove_unless_in_use
    from tilusbuild.manifest.values import parse_duration, parse_size

    cache = read_foreign_cache(path)
    removals = choose_removals(
        cache,
        now=time.time(),
        older_than=parse_duration(arguments.older_than) if arguments.older_than else None,
        max_size=parse_size(arguments.max_size) if arguments.max_size else None,
        broken=arguments.broken,
    )
    removed = in_use = freed = 0
    dry_run = arguments.dry_run
    # An iterator, so that each removal is reported as soon as it is made, also if the next one
    # fails.
    outcomes: Iterator[tuple[Removal, bool]]
    if dry_run:
        outcomes = ((removal, True) for removal in removals)
    else:
        outcomes = remove_unless_in_use(cache, removals)
    for removal, is_removed in outcomes:
        if is_removed:
            removed += 1
            freed += removal.size
        else:
            in_use += 1
        if arguments.json:
            fate = "removed" if is_removed else "in use"
            emit_line(GarbageLine(removal.path, fate, removal.size, why=removal.why))
        elif arguments.verbose or dry_run or not is_removed:
            why = removal.why if is_removed else "in use, kept"
            print(f"{format_bytes(removal.size):>10}  {removal.path}: {why}")
    if arguments.json:
        emit_line(CountsLine({"removed": removed, "freed": freed, "left": in_use}))
    else:
        entries = format_count(len(cache.entries), "entry", "entries")
        verb = "would remove" if dry_run else "removed"
        print(f"{verb} {removed} of {entries}, {format_bytes(freed)}")
    return 1 if in_use else 0


def format_title(cache: ForeignCache) -> str:
    """Return the name of a cache's system, with the version if the cache has one."""
    return f"{cache.system} {cache.version}".strip()


class CacheExportArgs(Common, frozen=True, kw_only=True):
    """The directory to export to, and the system whose layout it has."""

    into: str = positional("DIR", help="a new directory, or an earlier export")
    layout: str = option(
        "--layout",
        required=True,
        choices=("tilus", "hidet"),
        help="the system to write a cache for",
    )


ExportedLine = declare_line("exported", path=str, layout=str, files=int, linked=int, copied=int)
"""The files of an export, and its links among them; `copied` are the bytes of the others."""


def _run_export(arguments: CacheExportArgs) -> int:
    """Export the cache's scripts into a directory in another system's layout, and print the counts.
    Return the exit status."""
    from tilusbuild.interop.export import export_scripts
    from tilusbuild.interop.export.layouts import list_exported_scripts

    cache = options.find_cache(arguments.cache_dir)
    scripts = list_exported_scripts(cache)
    with cache.hold_use_if_exists():
        files, linked, copied = export_scripts(arguments.layout, scripts, arguments.into)
    if arguments.json:
        into = os.path.abspath(arguments.into)
        emit_line(ExportedLine(into, arguments.layout, files, linked, copied))
    elif not arguments.quiet:
        print(
            f"{arguments.into}: {format_count(len(scripts), 'script')},"
            f" {format_count(files, 'file')},"
            f" {linked} of them links; {format_bytes(copied)} more on disk"
        )
    return 0


EXPORT = Verb(
    CacheExportArgs,
    _run_export,
    (ExportedLine,),
    "write the cache in the layout of another system",
)
