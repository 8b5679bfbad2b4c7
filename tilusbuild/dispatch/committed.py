"""Rows by schedule that a repository keeps (`plan/tuned.py`): as tables of an instance's programs,
and made of what was measured here.

They stand in the script's description, so they follow the file, and a build after an edit of it
keeps none of before. What was measured here stays in the directory's own file of tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.tree import Tree
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.tuned import TunedRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script, make_rounding
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.space import SpaceError
from tilusbuild.status import Status

_MAX_NAMED = 4
"""Rows that a message names."""


def make_committed_tables(
    instance: PlannedInstance, buckets: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return an instance's committed rows as tables of `dispatch_table.json`. Of several rows
    in a bucket, the one with the greatest sizes counts, as in tuning. Rows of schedules that
    are not planned are left out."""
    planned = {*(instance.schedules if instance.spec.tuned else ())}
    to_buckets = [make_rounding(bucket) for bucket in buckets.values()]
    entries_by_device: dict[tuple[str, str], dict[tuple[int, ...], list[Any]]] = {}
    fitting = (row for row in instance.spec.tuned if row.sizes.keys() == buckets.keys())
    # The greatest sizes last: they overwrite the others of their bucket.
    for row in sorted(fitting, key=lambda row: [row.sizes[name] for name in buckets]):
        if (number := _find_program(instance, row)) in planned:
            sizes = [row.sizes[name] for name in buckets]
            key = [to_bucket(size) for to_bucket, size in zip(to_buckets, sizes, strict=True)]
            entries = entries_by_device.setdefault((row.device, row.arch), {})
            entries[tuple(key)] = [key, number, "measured", row.seconds, sizes]
    return [
        {
            "fingerprint": {"arch": arch, "device": device, "script": instance.hash},
            "entries": [entries[key] for key in sorted(entries)],
        }
        for (device, arch), entries in sorted(entries_by_device.items())
    ]


def _find_program(instance: PlannedInstance, row: TunedRow) -> int | None:
    """Return the number of a row's schedule; None if the space does not have it."""
    if row.schedule.keys() != {*instance.parameters}:
        return None
    try:
        return instance.spec.space.complete_point(row.schedule).index
    except SpaceError:
        return None


def describe_unused_rows(
    cache: Tree, instance: PlannedInstance, file: str, keys: Sequence[str]
) -> str | None:
    """Return a message about the committed rows that serve nothing, or None, as far as that is
    known before a build."""
    rows, programs = instance.spec.tuned, instance.programs_by_number
    unused = [
        (row, why)
        for row in rows
        if (why := _explain_unused_row(cache, instance, programs, row, keys))
    ]
    if not unused:
        return None
    row_texts = [
        f"{' '.join(f'{n}={size}' for n, size in row.sizes.items())} ({why})"
        for row, why in unused[:_MAX_NAMED]
    ]
    more = f" and {len(unused) - _MAX_NAMED} more" if len(unused) > _MAX_NAMED else ""
    commands = (
        format_command("tune", instance.script),
        format_command("dispatch", "export", instance.script),
    )
    return (
        f"{instance.label}: {len(unused)} of {len(rows)} rows of {file} serve nothing:"
        f" {', '.join(row_texts)}{more}; tune these sizes again (`{commands[0]}`,"
        f" `{commands[1]}`), or delete the rows"
    )


def _explain_unused_row(
    cache: Tree,
    instance: PlannedInstance,
    programs: Mapping[int, str],
    row: TunedRow,
    keys: Sequence[str],
) -> str | None:
    """Return why a row serves nothing; None for one that does."""
    if {*row.sizes} != {*keys}:
        return f"the keys are {', '.join(keys)}"
    number = _find_program(instance, row)
    if number is None:
        return "the space has no such schedule"
    entry = lookup_entry(cache, programs[number]) if number in programs else None
    status = Status.BUILT if entry is None else entry.meta["status"]
    return None if status == Status.BUILT else f"its program is {status}"


def iterate_measured_rows(script: Script) -> Iterator[TunedRow]:
    """Yield the measurements in a script's tables as rows. Raises `LoadError`."""
    for table in read_dispatch_table(script).tables:
        device, arch = table.fingerprint["device"], table.fingerprint["arch"]
        for entry in table.entries:
            if "*" not in (device, arch) and entry.source == "measured" and entry.seconds:
                yield TunedRow(
                    script.target,
                    device,
                    arch,
                    dict(script.params),
                    dict(zip(script.keys, entry.sizes, strict=True)),
                    script.get_schedule(entry.program),
                    float(f"{entry.seconds:.4g}"),  # the rest is noise, and shows in a diff
                )


def merge_measured_rows(
    script: Script, rows: Sequence[TunedRow]
) -> tuple[list[TunedRow], list[tuple[TunedRow, TunedRow | None]]]:
    """Return a file's rows, with a script's measurements in place of rows of the same buckets;
    and the changed rows, each with the row that it replaces or None. Raises `LoadError`."""
    known = {_identify_bucket(script, row): row for row in rows}
    new = {_identify_bucket(script, row): row for row in iterate_measured_rows(script)}
    other_rows = [row for row in rows if _identify_bucket(script, row) not in new]
    changed = [(row, known.get(key)) for key, row in new.items() if row != known.get(key)]
    return [*other_rows, *new.values()], changed


def _identify_bucket(script: Script, row: TunedRow) -> tuple[object, ...]:
    """Return a key of the bucket of a row of this script; for another script's row its sort
    key."""
    if (
        not row.is_of_instance(script.target, script.params)
        or row.sizes.keys() != script.buckets.keys()
    ):
        return row.sort_key
    sizes = (to_bucket(row.sizes[name]) for name, to_bucket in script.buckets.items())
    return (row.device, row.arch, *sizes)
