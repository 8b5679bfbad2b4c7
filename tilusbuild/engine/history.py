"""How long each program took and how much memory, the last time: for order, estimates and memory.

A schedule is known by its instance and its place there, not by its hash, so that an edit of the
template keeps its history; which program it was that took so long is noted, too. One never seen is
estimated from those of its instance, and else from all of them. What was learned in this run counts
at once.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tilusbuild.engine.interfaces import Job
from tilusbuild.state.envelope import StateFile

_SAVE_EVERY = 64
"""Records. A build that is killed loses no more than so many, or a quarter of all."""


class Estimate(Struct, frozen=True):
    """What a compile will probably need; None where there is nothing to go by."""

    seconds: float | None
    peak_rss: int | None


NOTHING = Estimate(None, None)


class _HistorySum(Struct):
    """Of the schedules of an instance, or of all."""

    count: int = 0
    seconds: float = 0.0
    peak_rss: int = 0

    def add_record(self, seconds: float, peak_rss: int) -> None:
        self.count += 1
        self.seconds += seconds
        self.peak_rss = max(self.peak_rss, peak_rss)

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.seconds / self.count, self.peak_rss or None)


class History:
    """`state_dir` is a directory of the cache, or None to remember nothing beyond this run."""

    def __init__(self, state_dir: str | None) -> None:
        self._file = StateFile(state_dir, "history")
        self._groups: dict[str, _HistorySum] | None = None
        self._all = _HistorySum()
        self._floors: dict[str, int] = {}
        """Bytes that a compile of an instance had taken when it was killed, in this run."""

    def estimate_job(self, job: Job) -> Estimate:
        """Return the seconds and the memory that a job will probably need."""
        remembered = self._estimate_from_records(job)
        floor = self._floors.get(_make_group_key(job), 0)
        return Estimate(remembered.seconds, max(remembered.peak_rss or 0, floor) or None)

    def find_measurement(self, job: Job) -> Estimate:
        """Return the seconds and the memory of this very program, not of another one in the same
        place; `NOTHING` if unknown."""
        value = self._file.get(_make_key(job))
        if (measurement := _parse_record(value)) is None or value[2] != _abbreviate_hash(job):
            return NOTHING
        return Estimate(measurement[0], measurement[1] or None)

    def _estimate_from_records(self, job: Job) -> Estimate:
        groups = self._sum_groups()
        if (measurement := _parse_record(self._file.get(_make_key(job)))) is not None:
            return Estimate(measurement[0], measurement[1] or None)
        if (group := groups.get(_make_group_key(job))) is not None:
            return group.estimate
        return self._all.estimate if self._all.count else NOTHING

    def record_compile(self, job: Job, seconds: float, peak_rss: int) -> None:
        """Remember a compile that came to an answer."""
        group = self._sum_groups().setdefault(_make_group_key(job), _HistorySum())
        for total in (group, self._all):
            total.add_record(seconds, peak_rss)
        self._file.put(_make_key(job), [round(seconds, 3), peak_rss, _abbreviate_hash(job)])
        if self._file.unsaved >= max(_SAVE_EVERY, self._all.count // 4):
            self.save()

    def record_kill(self, job: Job, peak_rss: int) -> None:
        """Note that a compile was killed when it had taken so many bytes: until the end of this run
        the others of its instance are taken to need as many, whatever they took before."""
        group = _make_group_key(job)
        self._floors[group] = max(self._floors.get(group, 0), peak_rss)

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        self._file.save()

    def _sum_groups(self) -> dict[str, _HistorySum]:
        if self._groups is None:
            self._groups = {}
            for key, value in self._file.items():
                if (measurement := _parse_record(value)) is not None:
                    self._groups.setdefault(key.rpartition("#")[0], _HistorySum()).add_record(
                        *measurement
                    )
                    self._all.add_record(*measurement)
        return self._groups


def _make_group_key(job: Job) -> str:
    return "/".join(job.instance)


def _make_key(job: Job) -> str:
    return f"{_make_group_key(job)}#{job.index}"


def _abbreviate_hash(job: Job) -> str:
    """Return a mark that differs between the programs that have been in one place."""
    return job.hash[:12]


def _parse_record(value: Any) -> tuple[float, int] | None:
    """Return a record of the file, when it has the shape of one."""
    if not isinstance(value, list) or len(value) != 3:
        return None
    seconds, peak_rss, _ = value
    if not isinstance(seconds, int | float) or not isinstance(peak_rss, int):
        return None
    # NaN, which Python reads in JSON, compares false with every bound.
    return (float(seconds), peak_rss) if 0 <= seconds < 1e7 and peak_rss >= 0 else None
