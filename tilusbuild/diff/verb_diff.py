"""`tilusbuild diff A B`: which scripts, schedules, tables and texts of two packages or caches
differ.

Scripts are matched by name, target and constants, programs by their schedule. Why a
program has another hash is read from the two texts that the hash covers, as `explain` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from msgspec import Struct

from tilusbuild.cache import layout
from tilusbuild.cache.entries import get_product, lookup_entry
from tilusbuild.cache.index import list_programs, list_scripts, read_index
from tilusbuild.cache.tree import Tree
from tilusbuild.cli import options
from tilusbuild.cli.arguments import LimitArgs, Verb, flag, positional
from tilusbuild.cli.options import CountsLine, emit_line
from tilusbuild.diff.explain import list_differences
from tilusbuild.errors import TilusbuildError
from tilusbuild.manifest.table import format_toml
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.report.text import format_count
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_text
from tilusbuild.runtime.script import Script, read_script
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.package.extract import Limits
    from tilusbuild.package.listing import FileList

_SHOWN = 3


class DiffArgs(LimitArgs, frozen=True, kw_only=True):
    a: str = positional("A", help="a package or a cache")
    b: str = positional("B", help="a package or a cache")
    exit_code: bool = flag("--exit-code", help="exit with status 1 when they differ")


class ChangeLine(JsonLine, frozen=True):
    """One difference of two packages or caches. `what` is "package", "script", "program"
    or "table"; `kind` "added", "removed" or "changed". `label` says of what; `reasons` say how."""

    event: ClassVar[str] = "change"
    what: str
    kind: str
    label: str
    reasons: tuple[str, ...] = ()


def run(arguments: DiffArgs) -> int:
    """Print the changes from A to B. Return 1 if there are any and --exit-code asks for it."""
    limits = options.parse_limits(arguments)
    with open_side(arguments.a, limits) as a, open_side(arguments.b, limits) as b:
        changes = list(list_changes(a, b))
    if arguments.json:
        for change in changes:
            emit_line(change)
        emit_line(CountsLine({"changes": len(changes)}))
    else:
        for change, labels in group_changes(changes):
            shown = labels if arguments.verbose else labels[:_SHOWN]
            more = f" and {len(labels) - len(shown)} more" if len(labels) > len(shown) else ""
            print(f"{change.what} {change.kind}: {'; '.join(shown)}{more}")
            for reason in change.reasons:
                print(f"  {reason}")
        if not changes:
            print("nothing changed")
    return 1 if changes and arguments.exit_code else 0


ScriptKey: TypeAlias = tuple[str, str, str]
"""A script's name, target and constants."""


class PackageSide(Struct, frozen=True):
    """A package or cache to compare. `libraries` has the sha256 of each program's library, by
    program hash."""

    root: str
    facts: Mapping[str, str]
    """Name, version and requirements of the package; empty for a cache."""
    scripts: Mapping[ScriptKey, Script]
    libraries: Mapping[str, str]


@contextmanager
def open_side(path: str, limits: Limits) -> Iterator[PackageSide]:
    """Read a package or a cache for a comparison. A package stays unpacked during the block.

    Raises `PackageError`s, and `TilusbuildError` for scripts that cannot be read."""
    from tilusbuild.package.read import is_cache, select_texts, unpack_package

    if is_cache(path):
        yield _read_cache(Tree(path))
        return
    with unpack_package(path, select_texts, limits) as (listing, directory):
        paths = [os.path.join(directory, script.root) for script in listing.scripts]
        libraries = {
            program: listing.files[f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}"].sha256
            for program in listing.programs
        }
        scripts = _read_scripts(paths, directory)
        yield PackageSide(directory, _list_facts(listing), scripts, libraries)


def _read_cache(cache: Tree) -> PackageSide:
    """Read a cache as one side of a comparison: the scripts of its last builds, and all built
    programs. Raises `TilusbuildError`."""
    indexed_scripts = {pair for project in read_index(cache).values() for pair in project.scripts}
    all_scripts = [(script.directory, script.hash) for script in list_scripts(cache)]
    # A cache keeps the scripts of earlier builds until `gc`: those in the index are current.
    current_scripts = [pair for pair in all_scripts if pair in indexed_scripts]
    # A cache that was copied may have no index: then all count.
    current_scripts = current_scripts or all_scripts
    libraries = {}
    for program in list_programs(cache):
        entry = lookup_entry(cache, program)
        if entry is not None and entry.status == Status.BUILT:
            libraries[program] = get_product(entry.meta).sha256 or ""
    paths = [cache.script_path(*pair) for pair in current_scripts]
    return PackageSide(cache.root, {}, _read_scripts(paths, cache.root), libraries)


def _read_scripts(paths: Sequence[str], root: str) -> dict[ScriptKey, Script]:
    """Return the scripts at `paths`. Raises `TilusbuildError` with paths below `root`."""
    try:
        scripts = [read_script(path) for path in paths]
    except LoadError as error:
        # A package is unpacked in a private directory, which is gone when the message is read.
        raise TilusbuildError(str(error).replace(f"{root}/", "")) from None
    return {(s.name, s.target, _format_values(s.params)): s for s in scripts}


def _list_facts(listing: FileList) -> dict[str, str]:
    """Return the facts of a package that are compared, as text, by name."""
    needs = listing.needs
    facts = {
        "name": listing.name,
        "version": listing.version,
        "project": listing.project,
        "tilusbuild": listing.tool,
        "machine": needs.machine,
        "isa": needs.isa or "any",
        "glibc": needs.glibc or "none",
        "libraries": ", ".join(needs.libraries) or "none",
    }
    for name, target in listing.targets.items():
        archs = "+".join((*target.archs, "ptx") if target.ptx else target.archs)
        facts[f"target {name}"] = f"{archs}, CUDA {target.toolkit}" if target.toolkit else archs
    return facts


# Comparing.


def list_changes(a: PackageSide, b: PackageSide) -> Iterator[ChangeLine]:
    """Yield everything that differs: the packages' facts first, then script by script."""
    # A cache has no facts: compared with one, every fact of a package would be removed or added.
    fact_names = dict.fromkeys([*a.facts, *b.facts]) if a.facts and b.facts else {}
    for name in fact_names:
        before, after = a.facts.get(name), b.facts.get(name)
        if before != after:
            why = f"{before or 'none'} → {after or 'none'}"
            yield ChangeLine("package", "changed", name, (why,))
    for key in sorted({*a.scripts, *b.scripts}):
        old, new = a.scripts.get(key), b.scripts.get(key)
        if old is None or new is None:
            script = new or old
            assert script is not None  # noqa: S101 - the key is of one of them
            size = format_count(len(script.programs), "program")
            yield ChangeLine("script", _classify(old, new), script.label, (size,))
            continue
        yield from _diff_programs(a, b, old, new)
        yield from _diff_tables(old, new)


def _classify(before: object, after: object) -> str:
    return "added" if before is None else "removed" if after is None else "changed"


def _diff_programs(
    a: PackageSide, b: PackageSide, old: Script, new: Script
) -> Iterator[ChangeLine]:
    """Yield the changes between the programs of two scripts with the same `ScriptKey`: programs
    with equal schedules are compared. Raises `TilusbuildError`."""
    # Matched by schedule, because a value that is added to a space changes all numbers after it.
    before, after = _map_schedules(a, old), _map_schedules(b, new)
    for schedule in dict.fromkeys([*after, *before]):
        label = f"{new.label} ({schedule})" if schedule else new.label
        program_a, program_b = before.get(schedule), after.get(schedule)
        if program_a is None or program_b is None:
            yield ChangeLine("program", _classify(program_a, program_b), label)
        elif program_a != program_b:
            reasons = _list_reasons(a, b, program_a, program_b)
            yield ChangeLine("program", "changed", label, reasons)
        elif a.libraries[program_a] != b.libraries[program_b]:
            why = "the same inputs gave other bytes"
            yield ChangeLine("program", "changed", label, (why,))


def _map_schedules(side: PackageSide, script: Script) -> dict[str, str]:
    """Return the hashes of the script's programs with a library, by their schedule as text."""
    return {
        _format_values(script.get_schedule(number)): program
        for number, program in script.programs.items()
        if program in side.libraries
    }


def _list_reasons(
    a: PackageSide, b: PackageSide, program_a: str, program_b: str
) -> tuple[str, ...]:
    """Return the differences between the texts of two programs. Raises `TilusbuildError`."""
    return list_differences(_read_texts(a, program_a), _read_texts(b, program_b))


def _read_texts(side: PackageSide, program: str) -> list[str]:
    """Return the texts of a program. Raises `TilusbuildError`."""
    texts = []
    for name in layout.TEXTS:
        path = os.path.join(side.root, layout.PROGRAMS, program, name)
        try:
            texts.append(read_text(path, "surrogateescape"))
        except OSError as error:
            raise TilusbuildError(f"{path} cannot be read: {error.strerror}") from None
    return texts


def _diff_tables(old: Script, new: Script) -> Iterator[ChangeLine]:
    """Yield the changes between the rows of the dispatch tables of two scripts with the same
    `ScriptKey`. Raises `TilusbuildError`."""
    before, after = _list_rows(old), _list_rows(new)
    for name in dict.fromkeys([*after, *before]):
        old_choice, new_choice = before.get(name), after.get(name)
        if old_choice != new_choice:
            reasons = (f"{old_choice} → {new_choice}",) if old_choice and new_choice else ()
            kind = _classify(old_choice, new_choice)
            yield ChangeLine("table", kind, f"{new.label} {name}", reasons)


def _list_rows(script: Script) -> dict[str, str]:
    """Return "SCHEDULE (SOURCE)" for each table row, by "on DEVICE at SIZES". Raises
    `TilusbuildError`."""
    try:
        tables = read_dispatch_table(script).tables
    except LoadError as error:
        raise TilusbuildError(str(error)) from None
    rows = {}
    for table in tables:
        for row in table.entries:
            sizes = _format_values(dict(zip(script.keys, row.key, strict=True)))
            chosen = _format_values(script.get_schedule(row.program)) or "its program"
            rows[f"on {table.fingerprint['device']} at {sizes}"] = f"{chosen} (measured)"
    return rows


def _format_values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {format_toml(value)}" for name, value in values.items())


def group_changes(changes: Sequence[ChangeLine]) -> Iterator[tuple[ChangeLine, list[str]]]:
    """Group the changes of one kind with the same reasons. Yield, for each group, its first change
    and the labels of all."""
    groups: dict[tuple[object, ...], tuple[ChangeLine, list[str]]] = {}
    for change in changes:
        key = (change.what, change.kind, change.reasons)
        _, labels = groups.setdefault(key, (change, []))
        labels.append(change.label)
    yield from groups.values()


VERB = Verb(DiffArgs, run, (ChangeLine, CountsLine))
