"""The sizes that programs call, from a file of `tilusbuild.record`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from tilusbuild.errors import input_error
from tilusbuild.expr import Value
from tilusbuild.runtime.record import read_recorded_calls
from tilusbuild.runtime.script import Script


class SizeCalls(Struct, frozen=True):
    """The number of calls at some sizes."""

    sizes: Mapping[str, int]
    calls: int


class RecordedSizes(Struct, frozen=True):
    """The recorded calls of an instance."""

    by_sizes: tuple[SizeCalls, ...]
    """Most calls first."""
    other_calls: int
    """Calls at sizes that were too many to be counted apart."""

    def select_by_bucket(self, script: Script) -> list[Mapping[str, int]]:
        """Return for each bucket of the script the sizes with most calls, those with most first.
        Sizes without a dispatch key stay, for the check of sizes to report."""
        selected: dict[tuple[int, ...], Mapping[str, int]] = {}
        for row in self.by_sizes:
            is_complete = all(key in row.sizes for key in script.keys)
            selected.setdefault(script.find_bucket(row.sizes) if is_complete else (), row.sizes)
        return list(selected.values())

    @property
    def calls(self) -> int:
        """Return the number of all calls."""
        return self.other_calls + sum(row.calls for row in self.by_sizes)


def list_recorded_scripts(path: str) -> frozenset[str]:
    """Return the names of the scripts with calls in a file. Raises `InputError` for a file that
    cannot be read."""
    try:
        return frozenset(row.script for row in read_recorded_calls(path))
    except OSError as error:
        raise input_error(f"--sizes-from {path}: {error.strerror}") from None


def read_recorded_sizes(path: str, script: str, params: Mapping[str, Value]) -> RecordedSizes:
    """Return the calls of an instance in a file, for any target. Raises `InputError` for a file
    that cannot be read, and for one without calls of the script."""
    calls: Counter[tuple[tuple[str, int], ...] | None] = Counter()
    recorded_scripts = list_recorded_scripts(path)
    for row in read_recorded_calls(path):
        if row.script == script and row.params == dict(params):
            calls[None if row.sizes is None else tuple(row.sizes.items())] += row.calls
    if script not in recorded_scripts:
        known = ", ".join(sorted(recorded_scripts))
        raise input_error(
            f"--sizes-from {path}: it has no calls of {script}",
            hint=f"its calls are of {known}" if known else "TILUSBUILD_RECORD=FILE records them",
        )
    other_calls = calls.pop(None, 0)
    return RecordedSizes(
        tuple(SizeCalls(dict(sizes or ()), count) for sizes, count in calls.most_common()),
        other_calls,
    )
