"""The measurements of a script in a cache: rows in one file, and the tables that follow from them.

`state/tune/<script>/measured.jsonl` has a row (`plan/measured.py`) for each program, sizes and
device, of all instances. It is only appended to, by one write for each decided case: a line that is
cut short counts for nothing and harms no other. A later tuning of the same sizes on the same device
replaces the earlier one as a whole; a rejection holds until the program is rebuilt.

A row is of a program if it has its hash. Any other row with the schedule of a program is for
earlier code, and serves only where nothing else does. For a device and a bucket the first of these
decides: rows of this cache, rows of the repository, rows of this cache for earlier code. Where the
repository has fitted costs for a device, only their programs are chosen by its measurements. Costs
that packages brought serve where it has none, in buckets without measurements.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain, groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.describe import node_to_json
from tilusbuild.expr import Value, parse_expression
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.measured import MeasuredRow, format_values, read_committed_rows, select_numbers
from tilusbuild.runtime.naming import format_command
from tilusbuild.runtime.regular import append_bytes, try_read_bytes
from tilusbuild.runtime.script import FittedCost, Script, parse_fitted_cost
from tilusbuild.runtime.table_file import Refusal, explain_refusals, find_fastest, is_overruled
from tilusbuild.runtime.tables import DeviceTable, TableEntry, TableFile, read_dispatch_table

# Sizes in a message, which is one line.
_MAX_NAMED = 4


class CommittedRows(NamedTuple):
    """The rows of an instance in its repository, and the file that has them."""

    file: str = ""
    rows: Sequence[MeasuredRow] = ()


class Measurement(Struct, frozen=True):
    """The times of programs in one bucket on one device, and why others have none."""

    device: str
    arch: str
    key: tuple[int, ...]
    """The buckets of the dispatch keys."""
    sizes: tuple[int, ...]
    """The greatest sizes that were measured, which stand for the bucket."""
    seconds: Mapping[int, float]
    """The time of a call by program number."""
    refused: Mapping[int, str]
    """Why programs cannot be used in the bucket, by number."""
    earlier: frozenset[int]
    """The programs whose times are for earlier code."""


def find_committed_rows(
    manifest: Manifest, script: str, instance: PlannedInstance | None = None
) -> CommittedRows:
    """Return the rows of a script in the file that the manifest names: those of a planned instance,
    or all, which are read now. Raises `InputError`."""
    dispatch = manifest.scripts[script].dispatch
    rows = read_committed_rows(manifest, script) if instance is None else instance.spec.tuned
    return CommittedRows((dispatch and dispatch.measured) or "", rows)


def read_rows(cache: Tree, directory: str) -> list[MeasuredRow]:
    """Return the rows of a script, in the order of writing. `describe_damage` is about the other
    lines. `directory` is the script's name in `scripts`."""
    return [row for *_, row in _decode_lines(cache, directory) if isinstance(row, MeasuredRow)]


def describe_damage(cache: Tree, directory: str) -> str | None:
    """Return a message about the lines of a script's file that are not rows; None if all are."""
    errors = [error for error in _decode_lines(cache, directory) if isinstance(error[2], Exception)]
    if not errors:
        return None
    number, line, error = errors[0]
    more = f", and {len(errors) - 1} further lines," if len(errors) > 1 else ""
    return (
        f"{cache.locate_measurements(directory)}:{number}: not a measurement: {error}:"
        f" {line.decode(errors='backslashreplace')!r:.80}{more} count for nothing; correct or"
        " delete such lines, and `tilusbuild tune` measures their sizes again"
    )


def _decode_lines(
    cache: Tree, directory: str
) -> Iterator[tuple[int, bytes, MeasuredRow | Exception]]:
    """Yield the number of each line of a script's file that is not blank, the line, and its row or
    the error of a line that is not a row."""
    decoder = msgspec.json.Decoder(MeasuredRow)
    data = try_read_bytes(cache.locate_measurements(directory)) or b""
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, line, decoder.decode(line)
            # msgspec's errors are `ValueError`s, too.
            except (ValueError, RecursionError) as error:
                yield number, line, error


def append_rows(cache: Tree, directory: str, rows: Iterable[MeasuredRow]) -> None:
    """Append rows to the file of a script, by one write. Raises `CacheError`."""
    path = cache.locate_measurements(directory)
    with wrap_oserror(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        append_bytes(path, "".join(f"{row.line}\n" for row in rows).encode())


def make_row(script: Script, number: int, device: str, arch: str, **values: Any) -> MeasuredRow:
    """Return a row about a script's program, by its number. `values` are the other fields."""
    return MeasuredRow(
        target=script.target,
        device=device,
        arch=arch,
        params=dict(script.params),
        schedule=script.get_schedule(number),
        **values,
    )


def make_tuning_time(rows: Sequence[MeasuredRow]) -> str:
    """Return the time of a tuning whose rows come after `rows`: now, or the latest of theirs if the
    clock was set back since."""
    # Rows of one time are one tuning: two packages may be installed within a second.
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"
    return max([now, *(row.time for row in rows)])


def are_recorded(script: Script, rows: Iterable[MeasuredRow], case: Sequence[MeasuredRow]) -> bool:
    """Return whether the rows of a case are those of its latest tuning in `rows`."""
    same_sizes = (row for row in rows if case and row.sizes == case[0].sizes)
    for latest in _select_latest(script, same_sizes):
        if latest[0].case_key == case[0].case_key:
            return [replace(row, time="") for row in latest] == [
                replace(row, time="") for row in case
            ]
    return not case


def fold_refusals(rows: Iterable[MeasuredRow]) -> dict[str, Refusal]:
    """Return the refusals of programs that computed wrong or crashed at some sizes, by hash. A
    later time of the program by another judge lifts one (`is_overruled`)."""
    refusals: dict[str, Refusal] = {}
    for row in rows:
        refusal = refusals.get(row.program)
        if row.rejected:
            refusals[row.program] = Refusal(row.program, row.status, row.sizes, row.why, row.judge)
        elif row.seconds is not None and refusal and is_overruled(refusal, row.judge, row.sizes):
            del refusals[row.program]
    return refusals


def derive_tables(
    script: Script,
    rows: Iterable[MeasuredRow],
    measurements: Iterable[Measurement],
    refusals: Mapping[str, Refusal],
    committed: CommittedRows,
) -> TableFile:
    """Return the dispatch tables and the refusals that follow from a cache's measurements of a
    script and from the rows of its repository. `refusals` are those of `fold_refusals` for `rows`,
    `measurements` those of `group_measurements`."""
    committed_costs = _list_fitted_costs(script, committed.rows)
    fitted = {**_list_fitted_costs(script, rows), **committed_costs}
    tables: dict[tuple[str, str], dict[tuple[int, ...], TableEntry]] = {key: {} for key in fitted}
    local_entries = [*_choose_entries(script, measurements, committed_costs)]
    committed_measurements = group_measurements(script, committed.rows, refusals)
    committed_entries = [
        (device, entry._replace(origin=committed.file, is_earlier=False))
        for device, entry in _choose_entries(script, committed_measurements, committed_costs)
    ]
    # A later entry replaces an earlier one of the same bucket: see the order at the top.
    ordered_entries = [
        *((device, entry) for device, entry in local_entries if entry.is_earlier),
        *committed_entries,
        *((device, entry) for device, entry in local_entries if not entry.is_earlier),
    ]
    for device, entry in ordered_entries:
        tables.setdefault(device, {})[entry.key] = entry
    hashes = {*script.programs.values()}
    return TableFile(
        tuple(
            DeviceTable(
                {"arch": arch, "device": device, "script": script.hash},
                tuple(entries[key] for key in sorted(entries)),
                tuple(fitted.get((device, arch), ())),
            )
            for (device, arch), entries in sorted(tables.items())
        ),
        tuple(refusal for refusal in refusals.values() if refusal.program in hashes),
    )


def _list_fitted_costs(
    script: Script, rows: Iterable[MeasuredRow]
) -> dict[tuple[str, str], list[FittedCost]]:
    """Return the fitted costs of a script among rows, by device and architecture: those that came
    last. Left out are costs of programs that are not built, or over other keys."""
    fitted: dict[tuple[str, str], list[FittedCost]] = {}
    latest_rows = [*chain.from_iterable(_select_latest(script, (r for r in rows if r.cost)))]
    numbering = _Numbering(script) if latest_rows else None
    for row in latest_rows:
        program = numbering and numbering.find_number(row)
        cost = parse_expression(row.cost)
        if program is not None and cost.names <= {*script.keys}:
            value = {"source": row.cost, "cost": node_to_json(cost.tree), "program": program}
            fitted_cost = parse_fitted_cost(value, script.keys, script.programs)
            fitted.setdefault((row.device, row.arch), []).append(fitted_cost)
    return fitted


def list_fitted_rows(script: Script, tables: Iterable[DeviceTable]) -> Iterator[MeasuredRow]:
    """Yield a row for each fitted cost of a script's tables."""
    for table in tables:
        device, arch = table.fingerprint["device"], table.fingerprint["arch"]
        for cost in table.fitted:
            yield make_row(script, cost.program, device, arch, cost=cost.source)


def list_table_rows(script: Script, tables: Iterable[DeviceTable]) -> Iterator[MeasuredRow]:
    """Yield a row for each entry of a script's tables."""
    for table in tables:
        device, arch = table.fingerprint["device"], table.fingerprint["arch"]
        for entry in table.entries:
            yield make_row(
                script,
                entry.program,
                device,
                arch,
                sizes=dict(zip(script.keys, entry.sizes, strict=True)),
                seconds=entry.seconds,
                program=script.programs[entry.program],
            )


def read_committed_rows_of_table(script: Script, rows: Sequence[MeasuredRow]) -> CommittedRows:
    """Return the rows of a script's tables that came from a repository's measurements, and the file
    that they came from, "" if there are none. `rows` are those of the cache. Raises `LoadError`."""
    file, tables = "", []
    for table in read_dispatch_table(script).tables:
        entries = tuple(entry for entry in table.entries if entry.origin is not None)
        tables.append(table._replace(entries=entries))
        file = next((entry.origin for entry in entries if entry.origin), file)
    adopted_rows = [replace(row, time="") for row in rows if row.cost]
    fitted_rows = (row for row in list_fitted_rows(script, tables) if row not in adopted_rows)
    return CommittedRows(file, [*fitted_rows, *list_table_rows(script, tables)])


def adopt_tables(cache: Tree, script: Script) -> None:
    """Append the measurements and the fitted costs that a script's directory brought from a
    package, so that a build keeps them. Raises `CacheError` and `LoadError`."""
    directory = os.path.basename(os.path.dirname(script.path))
    rows = read_rows(cache, directory)
    table_file = read_dispatch_table(script)
    arrivals = [*list_table_rows(script, table_file.tables)]
    numbers = {digest: number for number, digest in script.programs.items()}
    arrivals += [
        make_row(
            script,
            numbers[refusal.program],
            device="",  # a program is refused on all devices
            arch="",
            sizes=select_numbers(refusal.sizes),
            program=refusal.program,
            status=refusal.status,
            why=refusal.why,
            rejected=True,
            judge=refusal.judge,
        )
        for refusal in table_file.refused
        if refusal.program in numbers
    ]
    # Without a time they are older than any tuning here.
    new_rows = [row for row in arrivals if row not in rows]
    fitted_rows = list_fitted_rows(script, table_file.tables)
    for _, costs in groupby(fitted_rows, key=lambda row: row.case_key):
        # With a time they replace the costs of an earlier package.
        if not are_recorded(script, rows, case := [*costs]):
            new_rows += [replace(row, time=make_tuning_time(rows)) for row in case]
    if new_rows:
        append_rows(cache, directory, new_rows)


def describe_stale_sizes(script: Script, rows: Sequence[MeasuredRow]) -> str | None:
    """Return a message about the measured sizes that a script serves with programs that were
    measured for earlier code, or no longer serves; None if there are none."""
    measurements = group_measurements(script, rows, fold_refusals(rows))
    served: dict[object, TableEntry] = {
        (*device, entry.key): entry for device, entry in _choose_entries(script, measurements, {})
    }
    lost = [
        _format_sizes(script, m.sizes)
        for m in measurements
        if (m.device, m.arch, m.key) not in served
    ]
    earlier_count = sum(entry.is_earlier for entry in served.values())
    if not lost and not earlier_count:
        return None
    parts = []
    if earlier_count:
        count = f"{earlier_count} of {len(measurements)} measured sizes"
        parts.append(f"{count} are served by what was measured for earlier code")
    if lost:
        surplus = len(lost) - _MAX_NAMED
        more = f" and {surplus} more" if surplus > 0 else ""
        parts.append(f"the programs of {'; '.join(lost[:_MAX_NAMED])}{more} are gone")
    hint = f"`{format_command('tune', script.name)}` measures the manifest's sizes again"
    return f"{script.label}: {', and '.join(parts)}; {hint}"


def _choose_entries(
    script: Script,
    measurements: Iterable[Measurement],
    fitted: Mapping[tuple[str, str], Sequence[FittedCost]],
) -> Iterator[tuple[tuple[str, str], TableEntry]]:
    """Yield a device and architecture with the table entry of each of its buckets that a program
    serves by these measurements: of a device with fitted costs, a program of theirs."""
    for measurement in measurements:
        costs = fitted.get((measurement.device, measurement.arch))
        if costs:
            numbers = {cost.program for cost in costs}
            times = {i: time for i, time in measurement.seconds.items() if i in numbers}
            measurement = replace(measurement, seconds=times)
        best = find_fastest(measurement.seconds)
        if best is not None:
            yield (
                (measurement.device, measurement.arch),
                TableEntry(
                    measurement.key,
                    best,
                    measurement.seconds[best],
                    measurement.sizes,
                    is_earlier=best in measurement.earlier,
                    others=_list_others(script, measurement, best),
                ),
            )


def _list_others(script: Script, measurement: Measurement, best: int) -> tuple[int, ...]:
    """Return the next best programs of a bucket, for calls that the best one does not serve: of
    programs that serve the same calls the first."""
    columns = () if script.serves is None else script.serves.columns.values()
    # Equal values of what the rules read mean equal answers of all rules.
    firsts: dict[tuple[Value | None, ...], int] = {}
    for program in [best, *sorted(measurement.seconds, key=measurement.seconds.__getitem__)]:
        firsts.setdefault(tuple(column[program] for column in columns), program)
    _, *others = firsts.values()
    return tuple(others)


def group_measurements(
    script: Script, rows: Sequence[MeasuredRow], refusals: Mapping[str, Refusal]
) -> list[Measurement]:
    """Return the measurements of an instance, by device, architecture and bucket. `refusals` are
    those of `fold_refusals`, whose programs have no time anywhere."""
    buckets = _group_cases(script, rows)
    if not buckets:
        return []  # most scripts were not tuned, and the numbering looks at each program
    numbering = _Numbering(script)
    return [
        _make_measurement(numbering, device_and_key, cases, refusals)
        for device_and_key, cases in buckets.items()
    ]


def measure_cases(
    script: Script, rows: Sequence[MeasuredRow], refusals: Mapping[str, Refusal]
) -> list[tuple[Measurement, Mapping[str, Value]]]:
    """Return the measurements of an instance as `group_measurements`, but of each case alone, with
    the sizes of its calls."""
    numbering = _Numbering(script)
    return [
        (_make_measurement(numbering, device_and_key, [case], refusals), case[1][0].sizes)
        for device_and_key, cases in _group_cases(script, rows).items()
        for case in cases
    ]


def _group_cases(
    script: Script, rows: Sequence[MeasuredRow]
) -> dict[tuple[str, str, tuple[int, ...]], list[tuple[tuple[int, ...], _Case]]]:
    """Return the cases of an instance with the sizes of their keys, sorted by device, architecture
    and bucket."""
    buckets: dict[tuple[str, str, tuple[int, ...]], list[tuple[tuple[int, ...], _Case]]] = {}
    for case in _select_latest(script, rows):
        row = case[0]
        sizes = _find_key_sizes(script, row)
        if sizes is not None:
            key = script.find_bucket(row.sizes)
            buckets.setdefault((row.device, row.arch, key), []).append((sizes, case))
    return dict(sorted(buckets.items(), key=lambda item: item[0]))


_Case = list[MeasuredRow]
"""The rows of one tuning of some sizes on a device."""


def _select_latest(script: Script, rows: Iterable[MeasuredRow]) -> list[_Case]:
    """Return the rows of an instance by case. Only the latest tuning of a case is returned, the
    case that was tuned last at the end."""
    cases: dict[tuple[str, str, str], dict[str, MeasuredRow]] = {}
    params = format_values(script.params)
    for row in rows:
        if row.target != script.target or format_values(row.params) != params:
            continue
        case = cases.get(row.case_key, {})
        latest = next((known.time for known in case.values()), "")  # all of a case have one
        # An older row came from another cache, after rows that were measured later.
        if row.time < latest:
            continue
        if row.time > latest or not case:
            # Removed first, so that the case moves to the end.
            cases.pop(row.case_key, None)
            case = cases[row.case_key] = {}
        # Two tunings may have one time: of a schedule the later row counts.
        case[format_values(row.schedule)] = row
    return [[*case.values()] for case in cases.values()]


def _find_key_sizes(script: Script, row: MeasuredRow) -> tuple[int, ...] | None:
    """Return the sizes of the dispatch keys in a row; None if the row is without one of them, as
    after an edit of the keys, or is a cost."""
    if row.cost:
        return None
    sizes = [row.sizes.get(key) for key in script.keys]
    # A bool is an int, and no size.
    return tuple(s for s in sizes if type(s) is int) if all(type(s) is int for s in sizes) else None


class _Numbering:
    """The numbers of an instance's programs, by hash and by schedule."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._by_hash: dict[str, int] = {}
        for number, digest in script.programs.items():
            self._by_hash.setdefault(digest, number)  # of equal programs the first number counts
        self._by_schedule = {
            format_values(script.get_schedule(number)): number for number in script.programs
        }

    def find_number(self, row: MeasuredRow) -> int | None:
        """Return the number of the built program that a row is about; None without one."""
        number = self._by_hash.get(row.program)
        if number is None:
            number = self._by_schedule.get(format_values(row.schedule))
        return None if number in self.script.not_built else number

    def is_of_program(self, row: MeasuredRow) -> bool:
        """Return whether a row is about a program's very code."""
        return row.program in self._by_hash


def _make_measurement(
    numbering: _Numbering,
    device_and_key: tuple[str, str, tuple[int, ...]],
    cases: Sequence[tuple[tuple[int, ...], _Case]],
    refusals: Mapping[str, Refusal],
) -> Measurement:
    """Return the measurement of a bucket. Of its cases, the one with the greatest sizes has the
    times. The others only exclude programs."""
    device, arch, key = device_and_key
    # Reversed after a stable sort: of equal sizes the case that was tuned last comes first.
    ordered_cases = sorted(cases, key=lambda case: case[0])[::-1]
    sizes, deciding = ordered_cases[0]
    script = numbering.script
    refused: dict[int, str] = {}
    for case_sizes, case in ordered_cases:
        for row in case:
            number = numbering.find_number(row)
            # A failure of earlier code excludes nothing: an edit may have mended it.
            if row.seconds is None and number is not None and numbering.is_of_program(row):
                prefix = "" if case is deciding else f"at {_format_sizes(script, case_sizes)}: "
                why = f"{row.status}: {row.why}" if row.why else row.status
                refused.setdefault(number, prefix + why)
    refused = {**explain_refusals(script.programs, refusals.values()), **refused}
    seconds: dict[int, float] = {}
    earlier: set[int] = set()
    for _, case in ordered_cases:
        for row in case:
            number = numbering.find_number(row)
            if row.seconds is None or number is None or number in refused:
                continue
            # Of a program that does not serve the greatest sizes, the next greatest count.
            is_served = script.explain_refusal(number, deciding[0].sizes) is None
            if case is deciding or not (is_served or number in seconds):
                seconds[number] = row.seconds
                if not numbering.is_of_program(row):
                    earlier.add(number)
    return Measurement(device, arch, key, sizes, seconds, refused, frozenset(earlier))


def _format_sizes(script: Script, sizes: Sequence[int]) -> str:
    pairs = zip(script.keys, sizes, strict=True)
    return ", ".join(f"{name}={size}" for name, size in pairs)
