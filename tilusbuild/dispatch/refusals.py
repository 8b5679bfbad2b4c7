"""What a tuning found wrong or crashing, written where every choice meets it.

The file of tables says it (`runtime/refused.py`), of every script directory in the cache that lists
the program: a program may be in several, of several levels or after an edit of the space. Rows that
were measured go to the best of the other programs that were measured for them, or go; a row by hand
stays, and the runtime refuses it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from tilusbuild.cache import layout
from tilusbuild.dispatch import latency, tables
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.refused import Refusal, by_number
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.tables import Table, TableEntry, read_dispatch


def refuse(script: Script, refusals: Iterable[Refusal], lifted: Collection[str] = ()) -> bool:
    """Have programs of a script chosen nowhere, and those whose hashes are `lifted` again; returns
    whether that is news. Raises `LoadError` and `OSError`."""
    with tables.alone(script):
        found = read_dispatch(script)
        refused = {each.program: each for each in found.refused if each.program not in lifted}
        refused.update({each.program: each for each in refusals})
        if tuple(refused.values()) == found.refused:
            return False
        out = by_number(script.programs, refused.values()).keys()
        measured = latency.read(script) if out else []
        kept = [_without(table, out, measured) for table in found.tables]
        tables.write(script, kept, tuple(refused.values()))
        return True


def _without(table: Table, out: Collection[int], measured: Iterable[latency.Measured]) -> Table:
    """Return a table with rows for the programs that are not `out`, and those by hand."""
    times = {each.key: each for each in measured if dict(each.fingerprint) == table.fingerprint}
    entries = []
    for entry in table.entries:
        if entry.program not in out or entry.source == "table":
            entries.append(entry)
        elif best := _best_left(entry, out, times):
            entries.append(best)
    return table._replace(entries=tuple(entries))


def _best_left(
    entry: TableEntry, out: Collection[int], times: Mapping[tuple[int, ...], latency.Measured]
) -> TableEntry | None:
    known = times.get(entry.key)
    if known is None:
        return None
    return known.best(frozenset(known.seconds) - frozenset(out) - known.refused.keys())


def spread(script: Script) -> list[Script]:
    """Refuse what this script's file refuses in all others of its cache that list the same
    programs; returns those that it was news to. What cannot be read is left alone. Raises
    `OSError`."""
    refused = {each.program: each for each in read_dispatch(script).refused}
    told = []
    for path in _directories(os.path.join(script.root, layout.SCRIPTS)) if refused else ():
        if path == script.path:
            continue
        with suppress(LoadError):
            other = read_script(path)
            shared = [refused[digest] for digest in other.programs if digest in refused]
            if shared and refuse(other, shared):
                told.append(other)
    return told


def gathered(scripts: str) -> dict[str, Refusal]:
    """Return what any directory of a script refuses, by program. `scripts` is the directory that
    they are in. What cannot be read is passed over."""
    found: dict[str, Refusal] = {}
    for path in below(scripts):
        # Looked at as text first: most directories refuse nothing, and a description is long.
        if _refuses(path):
            with suppress(LoadError):
                found.update(
                    (each.program, each) for each in read_dispatch(read_script(path)).refused
                )
    return found


def adopt(script: Script, refused: Mapping[str, Refusal]) -> None:
    """Refuse what another directory of the script does: a new one lists programs that were tuned
    before. Raises `LoadError` and `OSError`."""
    shared = [refused[digest] for digest in script.programs if digest in refused]
    if shared:
        known = {each.program for each in read_dispatch(script).refused}
        refuse(script, [each for each in shared if each.program not in known])


def _refuses(path: str) -> bool:
    try:
        return b'"refused"' in read_bytes(os.path.join(path, layout.TABLE_JSON))
    except OSError:
        return False


def _directories(scripts: str) -> Iterator[str]:
    for directory in below(scripts):
        yield from below(directory)


def below(path: str) -> list[str]:
    """Return the paths in a directory, sorted; none where it cannot be read."""
    try:
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    except OSError:
        return []
