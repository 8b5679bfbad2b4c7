"""`tilusbuild cache ls [SCRIPT|DIR]`: list scripts, the programs of one, or a foreign cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, positionals
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount
from tilusbuild.runtime.regular import read_text
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.cache.index import ScriptListing
    from tilusbuild.cache.tree import Tree


class CacheLsArgs(Common, frozen=True, kw_only=True):
    """A script, or another cache."""

    words: tuple[str, ...] = positionals(
        "SCRIPT|DIR",
        help="list the programs of this script, instance or program, or"
        f" {options.other_cache_help()}",
    )


class CachedScriptLine(JsonLine, frozen=True):
    """A script that was published, and the projects and packages that keep it."""

    event: ClassVar[str] = "script"
    script: str
    hash: str
    target: str | None
    statuses: Mapping[str, int]
    size: int
    roots: tuple[str, ...]
    label: str
    """Its name: what other verbs take."""


class CachedProgramLine(JsonLine, frozen=True):
    """A program of the named script."""

    event: ClassVar[str] = "program"
    script: str
    target: str | None
    index: int
    hash: str
    status: Status
    label: str
    """Its name: what other verbs take."""


def run(arguments: CacheLsArgs) -> int:
    """List the scripts of a cache, or the programs of one script."""
    word = " ".join(arguments.words)
    # The name of a script is not a path: a directory with the name of a script comes first.
    if os.path.isdir(word) or _is_path(word):
        if foreign := options.foreign_caches(word):
            return foreign.ls(word, arguments)
        return _ls_scripts(options.chosen_cache(word, arguments), arguments)
    cache = options.cache(arguments.cache_dir)
    return _ls_programs(cache, arguments, word) if word else _ls_scripts(cache, arguments)


def _is_path(word: str) -> bool:
    from tilusbuild.runtime.naming import NameSyntaxError, parse_name

    try:
        parse_name(word)
    except NameSyntaxError:
        return "/" in word
    return False


def _ls_scripts(cache: Tree, arguments: Common) -> int:
    from tilusbuild.cache.index import script_listings
    from tilusbuild.runtime.naming import instance_name
    from tilusbuild.table import table

    listed, roots = script_listings(cache), _roots(cache)
    if arguments.json:
        for script in listed:
            key = (script.directory, script.hash)
            target, of = script.head.get("target"), tuple(roots.get(key, ()))
            emit(
                CachedScriptLine(*key, target, dict(script.statuses), script.size, of, script.label)
            )
        return 0
    rows = [
        (
            instance_name(s.script, s.params),
            s.target,
            s.head.get("arch", ""),
            len(s.programs),
            s.statuses[Status.BUILT],
            s.statuses[Status.FAILED] + s.statuses[Status.PRUNED],
            amount(s.size),
            s.hash[:12],
            # Two projects can have the same name; each counts once here.
            ", ".join(dict.fromkeys(roots.get((s.directory, s.hash), []))),
        )
        for s in listed
    ]
    titles = ("script", "target", "arch", "programs", "built", "refused", "size", "hash", "root")
    print(table(titles, rows), end="")
    return 0


def _roots(cache: Tree) -> dict[tuple[str, str], list[str]]:
    """Return the projects and packages that keep each script from being collected."""
    from tilusbuild.cache.index import read_index
    from tilusbuild.runtime.sealed import CorruptFileError

    try:
        projects = read_index(cache)
    except CorruptFileError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for key, project in projects.items():
        name = f"package {project.name}" if key.startswith("package:") else project.name
        for pair in project.scripts:
            found.setdefault(pair, []).append(name)
    return found


def _ls_programs(cache: Tree, arguments: Common, word: str) -> int:
    from tilusbuild.cache import index as cache_index
    from tilusbuild.cache.entries import lookup

    number = cache_index.parsed_name(word).program
    for script in cache_index.instances_named(cache, word):
        if not arguments.json:
            _print_programs(cache, script, number)
            continue
        for index, program in enumerate(script.programs):
            if number in (None, index):
                entry = lookup(cache, program)
                status = entry.status if entry else Status.MISSING
                emit(
                    CachedProgramLine(
                        script.directory,
                        script.target or None,
                        index,
                        program,
                        status,
                        script.label_of(index),
                    )
                )
    return 0


def _print_programs(cache: Tree, script: ScriptListing, number: int | None) -> None:
    """Print the table of an instance's schedules, or the row of one program."""
    path = cache.script_path(script.directory, script.hash)
    print(f"{script.label}: {os.path.relpath(path)}")
    try:
        lines = read_text(os.path.join(path, "schedule.txt")).splitlines()
    except OSError as error:
        print(f"  schedule.txt: {error.strerror}")
        return
    rows = lines[2:] if number is None else lines[2 + number : 3 + number]
    print("\n".join([*lines[:2], *rows, ""]))
