"""What views are made from: the scripts that the last build of each project made, or those named.

Everything is read through the checks of the runtime and of the cache: a damaged file is an error
that names it, not a hole in the view.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from tilusbuild.cache.cache import Cache
from tilusbuild.cache.garbage import mentioned
from tilusbuild.errors import TilusbuildError, did_you_mean, input_error
from tilusbuild.interop.export.model import Program, Source
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import read_script
from tilusbuild.runtime.tables import read_tables

LATENCY = "latency"


class Unreadable(TilusbuildError):  # noqa: N818 - named for what is the case
    """A script of the cache cannot be shown."""


def sources(cache: Cache, wanted: Collection[str] = ()) -> list[Source]:
    """The scripts of `index.json`, those named or all. Raises `InputError`, `Unreadable`."""
    roots = {pair for project in cache.projects().values() for pair in project.scripts}
    known = {folder for folder, _ in roots}
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or "`tilusbuild build` makes them"
            raise input_error(f'no script "{name}" in {cache.root}', hint=hint)
    chosen = sorted(pair for pair in roots if not wanted or pair[0] in wanted)
    return [_source(cache, folder, digest) for folder, digest in chosen]


def _source(cache: Cache, folder: str, digest: str) -> Source:
    path = cache.tree.script_path(folder, digest)
    try:
        script = read_script(path)
        tables = read_tables(script)
    except LoadError as error:
        raise Unreadable(str(error)) from None
    programs = tuple(_program(cache, index, each) for index, each in enumerate(script.programs))
    return Source(script, folder, tables, programs, tuple(_latency(path)))


def _program(cache: Cache, index: int, digest: str) -> Program:
    entry, folder = cache.lookup(digest), cache.program_path(digest)
    if entry is None:
        return Program(index, digest, folder, "missing", {}, ())
    headers = [cache.tree.include_path(each) for each in mentioned(folder)]
    return Program(index, digest, folder, entry.status, entry.meta, tuple(headers))


def _latency(path: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(os.path.join(path, LATENCY)))
    except OSError:
        return
    for name in names:
        if os.path.isfile(os.path.join(path, LATENCY, name, "report.txt")):
            yield name
