"""`tilusbuild cache ls|stats|verify|gc DIR` for a cache of Tilus, TileLang, Hidet or Triton."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from tilusbuild.cli import options
from tilusbuild.report.text import amount

if TYPE_CHECKING:
    from tilusbuild.interop.caches.model import ForeignCache


def is_foreign(path: str | None) -> bool:
    """Whether a word of the command line is the folder of another system's cache."""
    from tilusbuild.interop.caches.systems import system_of

    return path is not None and os.path.isdir(path) and system_of(path) is not None


def run(arguments: argparse.Namespace) -> int:
    """Do the action; 1 when `verify` found something, or `gc` had to leave something."""
    from tilusbuild.interop.caches.systems import read

    cache = read(arguments.folder)
    actions = {"ls": _ls, "stats": _stats, "verify": _verify, "gc": _gc}
    return actions[arguments.action](cache, arguments)


def _ls(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.table import table

    now = time.time()
    if arguments.json:
        for entry in cache.entries:
            options.emit(
                "entry",
                system=cache.system,
                path=entry.path,
                kind=entry.kind,
                name=entry.name,
                says=entry.says,
                holds=list(entry.holds),
                by=entry.by,
                size=entry.size,
                age=round(now - entry.modified),
                pickles=list(entry.pickles),
                problems=[str(problem) for problem in entry.problems],
            )
        return 0
    rows = [
        (
            entry.kind,
            entry.name,
            ", ".join(entry.holds) or entry.says,
            entry.by,
            amount(entry.size),
            _age(now - entry.modified),
            "broken" if entry.problems else "",
            entry.path,
        )
        for entry in cache.entries
    ]
    print(f"{cache.root}: {_title(cache)}")
    heads = ("kind", "name", "code", "compiled by", "size", "age", "", "path")
    print(table(heads, rows), end="")
    return 0


def _stats(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.table import table

    doubles = cache.duplicates
    spare = sum(entry.size for group in doubles for entry in group[1:])
    facts: list[tuple[str, int, str]] = [
        ("entries", len(cache.entries), amount(cache.size)),
        ("broken", sum(bool(e.problems) for e in cache.entries), ""),
        ("the same code as another", sum(len(group) - 1 for group in doubles), amount(spare)),
        ("left over", len(cache.stale), amount(sum(piece.size for piece in cache.stale))),
        ("pickles, never opened", sum(len(e.pickles) for e in cache.entries), ""),
    ]
    if arguments.json:
        counts = {name: count for name, count, _ in facts}
        options.emit(
            "stats",
            path=cache.root,
            system=cache.system,
            version=cache.version,
            size=cache.size,
            counts=counts,
            duplicates=[[entry.path for entry in group] for group in doubles],
        )
        return 0
    print(f"{cache.root}: {_title(cache)}")
    print(table(("", "count", "size"), facts), end="")
    for group in doubles if arguments.verbose else ():
        print("the same code: " + ", ".join(entry.path for entry in group))
    return 0


def _verify(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    for problem in cache.broken:
        if arguments.json:
            options.emit("problem", name=problem.path, what=problem.what)
        else:
            print(problem)
    for piece in cache.stale:
        if arguments.json:
            options.emit("litter", name=piece.path, what=piece.what, size=piece.size)
        else:
            print(f"{piece.path}: {piece.what}, {amount(piece.size)}")
    if arguments.json:
        options.emit("summary", entries=len(cache.entries), problems=len(cache.broken))
    elif not cache.broken:
        print(f"{len(cache.entries)} entries of {_title(cache)}, no problems found")
    else:
        sys.stderr.write(f"{len(cache.broken)} problems; `gc --broken` removes the entries\n")
    return 1 if cache.broken else 0


def _gc(cache: ForeignCache, arguments: argparse.Namespace) -> int:
    from tilusbuild.interop.caches.gc import decide, remove
    from tilusbuild.manifest.table import parse_duration, parse_size

    removals = decide(
        cache,
        now=time.time(),
        older_than=parse_duration(arguments.older_than) if arguments.older_than else None,
        max_size=parse_size(arguments.max_size) if arguments.max_size else None,
        broken=arguments.broken,
    )
    gone = (
        [(each, True) for each in removals] if arguments.dry_run else list(remove(cache, removals))
    )
    freed = sum(each.size for each, went in gone if went)
    left = [each for each, went in gone if not went]
    for each, went in gone:
        if arguments.json:
            options.emit(
                "removed" if went else "in use", name=each.path, why=each.why, size=each.size
            )
        elif arguments.verbose or arguments.dry_run or not went:
            print(f"{amount(each.size):>10}  {each.path}: {each.why if went else 'in use, stays'}")
    if arguments.json:
        options.emit("summary", removed=len(gone) - len(left), freed=freed, left=len(left))
    else:
        verb = "would remove" if arguments.dry_run else "removed"
        print(f"{verb} {len(gone) - len(left)} of {len(cache.entries)} entries, {amount(freed)}")
    return 1 if left else 0


def _title(cache: ForeignCache) -> str:
    return f"{cache.system} {cache.version}".strip()


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
