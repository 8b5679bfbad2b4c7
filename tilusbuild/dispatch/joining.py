"""The directories of scripts of several caches, joined: what one side does not have, another one
has.

A directory is named by its text, so two of one name speak of the same programs; each says which of
them it has, and what was measured of them. The programs themselves are taken over before. Of two
that measured the same on the same kind of device, the one that comes first stays: the cache that is
joined into, then the others in the order in which they are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tilusbuild.cache import layout
from tilusbuild.cache.entries import lookup
from tilusbuild.cache.merging import RefusedEntry
from tilusbuild.cache.scripts import ScriptRecord, parse_script, publish_script, read_script
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch import latency, tables
from tilusbuild.dispatch.inherited import begins
from tilusbuild.dispatch.tables import columns_of, rows_of
from tilusbuild.runtime import script as scripts
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, seal, unseal
from tilusbuild.runtime.tables import Table, TableEntry, read_dispatch

_MISSING = "missing"


def join(cache: Tree, trees: Sequence[Tree]) -> tuple[list[Script], list[RefusedEntry]]:
    """Bring every script of the trees into the cache; return those, as they are now, and what was
    refused. Raises `CacheError` and `OSError`."""
    scripts: list[Script] = []
    refused: list[RefusedEntry] = []
    having: dict[tuple[str, str], list[Tree]] = {}
    for tree in trees:
        for directory, digest in _directories(tree):
            having.setdefault((directory, digest), []).append(tree)
    for (directory, digest), owners in sorted(having.items()):
        joined = _join(cache, directory, digest, owners, refused)
        scripts += [] if joined is None else [joined]
    return scripts, refused


def _directories(tree: Tree) -> Iterator[tuple[str, str]]:
    for path in latency.directories(tree.path(layout.SCRIPTS)):
        directory, digest = path.split("/")[-2:]
        if layout.is_script_directory(directory) and layout.is_hash(digest):
            yield directory, digest


def _join(
    cache: Tree, directory: str, digest: str, owners: Sequence[Tree], refused: list[RefusedEntry]
) -> Script | None:
    name = f"{layout.SCRIPTS}/{directory}/{digest}"
    described: list[dict[str, Any]] = []
    texts: list[str] = []
    sides: list[Tree] = []
    for tree in owners:
        try:
            value, text = _described(tree.script_path(directory, digest), digest)
        except (LoadError, CorruptFileError, FileNotFoundError) as error:
            refused.append(RefusedEntry(tree.root, name, str(error)))
            continue
        if described and _alike(value) != _alike(described[0]):
            what = f"differs from that of {sides[0].root}: another manifest made it"
            refused.append(RefusedEntry(tree.root, name, what))
            continue
        described.append(value)
        texts.append(text)
        sides.append(tree)
    if not sides:
        return None
    with suppress(LoadError, CorruptFileError, FileNotFoundError):
        value, _ = _described(cache.script_path(directory, digest), digest)
        if _alike(value) == _alike(described[0]):
            described.append(value)
    path = publish_script(cache, _record(cache, directory, texts[0], described))
    script = scripts.read_script(path)
    for tree in sides:
        try:
            _join_measured(script, tree.script_path(directory, digest))
        except LoadError as error:
            refused.append(RefusedEntry(tree.root, name, str(error)))
    return script


def _described(path: str, digest: str) -> tuple[dict[str, Any], str]:
    """script.json and script.txt. Raises `LoadError`, `CorruptFileError`, `FileNotFoundError`."""
    read_script(path, digest)
    scripts.read_script(path)
    value = unseal(read_bytes(os.path.join(path, layout.SCRIPT_JSON)))
    return value, read_bytes(os.path.join(path, layout.SCRIPT_TXT)).decode(
        "utf-8", "surrogateescape"
    )


def _alike(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all parts of a script must agree on: all but what each says of programs."""
    dispatch = dict(value["dispatch"])
    if dispatch["model"] is not None:
        dispatch["model"] = {**dispatch["model"], "columns": sorted(dispatch["model"]["columns"])}
    return {**value, "not_built": None, "dispatch": dispatch}


def _record(
    cache: Tree, directory: str, text: str, described: Sequence[dict[str, Any]]
) -> ScriptRecord:
    """Return what the directory is to say, by the programs that are there now."""
    first = described[0]
    programs = parse_script(text).numbered
    metas = [entry.meta if (entry := lookup(cache, p)) else None for p in programs.values()]
    not_built = {
        str(number): meta["status"] if meta else _MISSING
        for number, meta in zip(programs, metas, strict=True)
        if meta is None or meta["status"] != "built"
    }
    dispatch = dict(first["dispatch"])
    if dispatch["model"] is not None:
        columns = {
            name: [_value(described, name, *each) for each in enumerate(programs)]
            for name in dispatch["model"]["columns"]
        }
        dispatch["model"] = {**dispatch["model"], "columns": columns}
    parameters: list[str] = first["parameters"]
    schedules = (
        {name: first["schedules"][name][index] for name in parameters}
        for index in range(len(programs))
    )
    sealed = seal({**first, "not_built": not_built, "dispatch": dispatch})
    return ScriptRecord(
        directory,
        text,
        columns_of(parameters),
        rows_of(parameters, schedules, programs, metas),
        sealed,
        partial(begins, cache.script_path(directory, first["hash"]), sealed),
    )


def _value(described: Sequence[Mapping[str, Any]], name: str, index: int, number: int) -> Any:
    """Return what a model reads of a program, from who has it."""
    values = [
        (value["not_built"].get(str(number)), value["dispatch"]["model"]["columns"][name][index])
        for value in described
    ]
    return next((value for status, value in values if status != _MISSING), values[0][1])


def _join_measured(script: Script, path: str) -> None:
    """Bring in tables and latencies from the directory `path`. Raises `LoadError`, `OSError`."""
    other = script._replace(path=path)
    found = read_dispatch(other)
    measured = latency.read(other)
    if found.tables:
        with tables.alone(script):
            existing = read_dispatch(script)
            both = _tables_joined(existing.tables, found.tables)
            if both != list(existing.tables):
                tables.write(script, both, existing.refused)
    known = {(_print(each.fingerprint), each.key): each for each in latency.read(script)}
    for new in measured:
        old = known.get((_print(new.fingerprint), new.key))
        both_measured = new if old is None else _measured_joined(old, new)
        if both_measured != old:
            latency.write(script, both_measured)
    # Last, so that rows find who else was measured. A refusal of any side holds for all.
    known_refused = {each.program for each in read_dispatch(script).refused}
    adopted = {each.program: each for each in found.refused if each.program not in known_refused}
    latency.refuse(script, adopted.values())
    tables.keep_current(script)


def _print(fingerprint: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(fingerprint.items()))


def _tables_joined(tables: Sequence[Table], others: Sequence[Table]) -> list[Table]:
    joined = {_print(table.fingerprint): table for table in tables}
    for table in others:
        known = joined.get(_print(table.fingerprint))
        if known is None:
            joined[_print(table.fingerprint)] = table
            continue
        rows: dict[tuple[int, ...], TableEntry] = {entry.key: entry for entry in known.entries}
        new = [entry for entry in table.entries if entry.key not in rows]
        if new:
            entries = tuple(sorted([*known.entries, *new], key=lambda entry: entry.key))
            joined[_print(table.fingerprint)] = known._replace(entries=entries)
    return list(joined.values())


def _measured_joined(old: latency.Measured, new: latency.Measured) -> latency.Measured:
    seconds = {**new.seconds, **old.seconds}
    refused = {**new.refused, **old.refused}
    return latency.Measured(
        old.fingerprint,
        old.key,
        seconds,
        {program: why for program, why in refused.items() if program not in seconds},
    )
