"""Turns a repository's rows by schedule (`plan/tuned.py`) into tables of programs, and back.

Committed rows are in the script's description, so a build after an edit of their file replaces all
of them. The measurements of this machine stay in the directory's own table file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.tree import Tree
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.tuned import TunedRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script, make_rounding
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.space.model import SpaceError
from tilusbuild.status import Status

# Rows in a message, which is one line.
_MAX_NAMED = 4


def make_committed_tables(
    instance: PlannedInstance, buckets: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return an instance's committed rows as tables of `dispatch_table.json`. Of several rows
    in a bucket, the one with the greatest sizes counts, as in tuning. Rows of schedules that
    are not planned are left out."""
    if not instance.spec.tuned:
        return []
    planned_numbers = set(instance.schedules)
    roundings = [make_rounding(bucket) for bucket in buckets.values()]
    entries_by_device: dict[tuple[str, str], dict[tuple[int, ...], list[Any]]] = {}
    rows_with_sizes = [
        ([row.sizes[name] for name in buckets], row)
        for row in instance.spec.tuned
        if row.sizes.keys() == buckets.keys()
    ]
    # The greatest sizes last: they overwrite the others of their bucket.
    for sizes, row in sorted(rows_with_sizes, key=lambda pair: pair[0]):
        number = _find_program(instance, row)
        if number in planned_numbers:
            key = [to_bucket(size) for to_bucket, size in zip(roundings, sizes, strict=True)]
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
    """Return a message about the committed rows in `file` that no call can use, as far as that is
    known before a build; None when all can be used."""
    programs = instance.programs_by_number
    unused = []
    for row in instance.spec.tuned:
        why = _explain_unused_row(cache, instance, programs, row, keys)
        if why is not None:
            sizes = " ".join(f"{name}={size}" for name, size in row.sizes.items())
            unused.append(f"{sizes} ({why})")
    if not unused:
        return None
    surplus = len(unused) - _MAX_NAMED
    more = f" and {surplus} more" if surplus > 0 else ""
    tune = format_command("tune", instance.script)
    export = format_command("dispatch", "export", instance.script)
    return (
        f"{instance.label}: {len(unused)} of {len(instance.spec.tuned)} rows of {file} serve"
        f" nothing: {', '.join(unused[:_MAX_NAMED])}{more}; tune these sizes again (`{tune}`,"
        f" `{export}`), or delete the rows"
    )


def _explain_unused_row(
    cache: Tree,
    instance: PlannedInstance,
    programs: Mapping[int, str],
    row: TunedRow,
    keys: Sequence[str],
) -> str | None:
    """Return the reason why no call can use a row; None for a row that calls can use."""
    if {*row.sizes} != {*keys}:
        return f"the keys are {', '.join(keys)}"
    number = _find_program(instance, row)
    if number is None:
        return "the space has no such schedule"
    # At a lower level the schedule is not planned, and its program's hash is not known: a build at
    # the right level has the program.
    entry = lookup_entry(cache, programs[number]) if number in programs else None
    if entry is None or entry.status == Status.BUILT:
        return None
    return f"its program is {entry.status}"


def iterate_measured_rows(script: Script) -> Iterator[TunedRow]:
    """Yield the measurements in a script's tables as rows. Raises `LoadError`."""
    for table in read_dispatch_table(script).tables:
        device, arch = table.fingerprint["device"], table.fingerprint["arch"]
        for entry in table.entries:
            # A table for any device is a person's, and a row by hand is not a measurement.
            if "*" not in (device, arch) and entry.source == "measured" and entry.seconds:
                yield TunedRow(
                    target=script.target,
                    device=device,
                    arch=arch,
                    params=dict(script.params),
                    sizes=dict(zip(script.keys, entry.sizes, strict=True)),
                    schedule=script.get_schedule(entry.program),
                    # More digits are noise, and would show in every diff.
                    seconds=float(f"{entry.seconds:.4g}"),
                )


class ChangedRow(NamedTuple):
    """A new row of a repository's file, and the row that it replaces, or None."""

    row: TunedRow
    replaced: TunedRow | None


def merge_measured_rows(
    script: Script, rows: Sequence[TunedRow]
) -> tuple[list[TunedRow], list[ChangedRow]]:
    """Return `rows` with a script's measurements in place of the rows of the same buckets, and the
    measurements that differ from these rows. Raises `LoadError`."""
    earlier_rows = {_identify_bucket(script, row): row for row in rows}
    measured_rows = {_identify_bucket(script, row): row for row in iterate_measured_rows(script)}
    kept_rows = [row for row in rows if _identify_bucket(script, row) not in measured_rows]
    changed_rows = [
        ChangedRow(row, replaced=earlier_rows.get(bucket))
        for bucket, row in measured_rows.items()
        if row != earlier_rows.get(bucket)
    ]
    return [*kept_rows, *measured_rows.values()], changed_rows


def _identify_bucket(script: Script, row: TunedRow) -> tuple[object, ...]:
    """Return a key that is equal for rows of one device and bucket of this script. The key of
    another script's row is its sort key, which no other row has."""
    if (
        not row.is_of_instance(script.target, script.params)
        or row.sizes.keys() != script.buckets.keys()
    ):
        return row.sort_key
    sizes = (to_bucket(row.sizes[name]) for name, to_bucket in script.buckets.items())
    return (row.device, row.arch, *sizes)
