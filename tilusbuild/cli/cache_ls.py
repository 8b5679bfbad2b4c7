"""`tilusbuild cache ls [SCRIPT|DIR]`: list scripts, the programs of one, or a foreign cache."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilusbuild.cli import foreign_caches, options
from tilusbuild.cli.arguments import Common, optional
from tilusbuild.cli.options import emit
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import amount
from tilusbuild.runtime.regular import read_text
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.cache.cache import Cache
    from tilusbuild.cache.index import ScriptListing


@dataclass(frozen=True, kw_only=True)
class CacheLsArgs(Common):
    """A script, or another cache."""

    word: str | None = optional(
        "SCRIPT|DIR",
        help=f"list the programs of this script, or {foreign_caches.DIRECTORY_HELP}",
    )


@dataclass(frozen=True, slots=True)
class CachedScriptLine(JsonLine):
    """A script that was published, and the projects and packages that keep it."""

    event: ClassVar[str] = "script"
    script: str
    hash: str
    target: str | None
    statuses: Mapping[str, int]
    size: int
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CachedProgramLine(JsonLine):
    """A program of the named script."""

    event: ClassVar[str] = "program"
    script: str
    target: str | None
    index: int
    hash: str
    status: Status


@dataclass(frozen=True, slots=True)
class EntryLine(JsonLine):
    """An entry of a foreign cache: which code it has, who compiled it, its age in seconds."""

    event: ClassVar[str] = "entry"
    system: str
    path: str
    kind: str
    name: str
    says: str
    holds: tuple[str, ...]
    by: str
    size: int
    age: int
    pickles: tuple[str, ...]
    problems: tuple[str, ...]


def run(arguments: CacheLsArgs) -> int:
    """List the scripts of a cache, or the programs of one script."""
    from tilusbuild.errors import did_you_mean, input_error

    word = arguments.word
    # The name of a script is not a path: a directory with the name of a script comes first.
    if word is not None and ("/" in word or os.path.isdir(word)):
        if foreign_caches.is_foreign(word):
            return _foreign(word, arguments)
        return _ls_scripts(options.cache(word), arguments)
    cache = options.cache(arguments.cache_dir)
    if word is None:
        return _ls_scripts(cache, arguments)
    listed = cache.scripts()
    chosen = [script for script in listed if script.directory == word]
    if not chosen:
        hint = did_you_mean(word, {script.directory for script in listed})
        raise input_error(f'no script "{word}" in {cache.root}', hint=hint)
    return _ls_programs(cache, arguments, chosen)


def _ls_scripts(cache: Cache, arguments: Common) -> int:
    from tilusbuild.table import table

    listed, roots = cache.scripts(), _roots(cache)
    if arguments.json:
        for script in listed:
            key = (script.directory, script.hash)
            target, of = script.head.get("target"), tuple(roots.get(key, ()))
            emit(CachedScriptLine(*key, target, dict(script.statuses), script.size, of))
        return 0
    rows = [
        (
            s.directory,
            s.head.get("target", ""),
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


def _roots(cache: Cache) -> dict[tuple[str, str], list[str]]:
    """Return the projects and packages that keep each script from being collected."""
    from tilusbuild.runtime.sealed import CorruptFileError

    try:
        projects = cache.projects()
    except CorruptFileError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for key, project in projects.items():
        name = f"package {project.name}" if key.startswith("package:") else project.name
        for pair in project.scripts:
            found.setdefault(pair, []).append(name)
    return found


def _ls_programs(cache: Cache, arguments: Common, listed: Sequence[ScriptListing]) -> int:
    for script in listed:
        target = script.head.get("target")
        path = cache.tree.script_path(script.directory, script.hash)
        if arguments.json:
            for index, program in enumerate(script.programs):
                entry = cache.lookup(program)
                status = entry.status if entry else Status.MISSING
                emit(CachedProgramLine(script.directory, target, index, program, status))
            continue
        print(f"{script.directory} {target or ''}: {os.path.relpath(path)}")
        try:
            print(read_text(os.path.join(path, "schedule.txt")))
        except OSError as error:
            print(f"  schedule.txt: {error.strerror}")
    return 0


def _foreign(path: str, arguments: Common) -> int:
    """List the entries of a foreign cache."""
    from tilusbuild.interop.caches import read
    from tilusbuild.table import table

    cache, now = read(path), time.time()
    if arguments.json:
        for entry in cache.entries:
            emit(
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
            amount(entry.size),
            _age(now - entry.modified),
            "broken" if entry.problems else "",
            entry.path,
        )
        for entry in cache.entries
    ]
    print(f"{cache.root}: {foreign_caches.title(cache)}")
    heads = ("kind", "name", "code", "compiled by", "size", "age", "", "path")
    print(table(heads, rows), end="")
    return 0


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
