"""The rows that a repository keeps (`plan/measured.py`): which of them serve nothing, and the rows
of a cache that `dispatch export` adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.measurements import list_table_rows
from tilusbuild.expr import parse_expression
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.tables import read_dispatch_table
from tilusbuild.space.model import SpaceError
from tilusbuild.status import Status

# Rows in a message, which is one line.
_MAX_NAMED = 4


def _find_program(instance: PlannedInstance, row: MeasuredRow) -> int | None:
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
            unused.append(f"{row.cost or sizes} ({why})")
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
    row: MeasuredRow,
    keys: Sequence[str],
) -> str | None:
    """Return the reason why no call can use a row; None for a row that calls can use."""
    if not ({*keys} >= parse_expression(row.cost).names if row.cost else {*keys} <= {*row.sizes}):
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


class ChangedRow(NamedTuple):
    """A new row of a repository's file, and the row that it replaces, or None."""

    row: MeasuredRow
    replaced: MeasuredRow | None


def merge_measured_rows(
    script: Script, rows: Sequence[MeasuredRow]
) -> tuple[list[MeasuredRow], list[ChangedRow]]:
    """Return `rows` with the rows of a script's table that were measured in its cache in place of
    those of the same buckets, and the measurements that differ from these. Raises `LoadError`."""
    earlier_rows = {_identify_bucket(script, row): row for row in rows}
    table_file = read_dispatch_table(script)
    local_tables = [
        table._replace(entries=tuple(e for e in table.entries if not e.origin_text))
        for table in table_file.tables
    ]
    # More digits are noise, and would show in every diff.
    rounded_rows = (
        replace(row, seconds=float(f"{row.seconds:.4g}"))
        for row in list_table_rows(script, local_tables)
    )
    measured_rows = {_identify_bucket(script, row): row for row in rounded_rows}
    kept_rows = [row for row in rows if _identify_bucket(script, row) not in measured_rows]
    changed_rows = [
        ChangedRow(row, replaced=earlier_rows.get(bucket))
        for bucket, row in measured_rows.items()
        if row != earlier_rows.get(bucket)
    ]
    return [*kept_rows, *measured_rows.values()], changed_rows


def _identify_bucket(script: Script, row: MeasuredRow) -> tuple[object, ...]:
    """Return a key that is equal for rows of one device and bucket of this script. The key of
    another script's row is its sort key, which no other row has."""
    if (
        not row.is_of_instance(script.target, script.params)
        or not script.buckets.keys() <= row.sizes.keys()
    ):
        return row.sort_key
    return (row.device, row.arch, *script.find_bucket(row.sizes))
