"""The time and the memory of each schedule's last compile, for the order of compiles and estimates.

The key of a record is the instance and the schedule's index, not the program's hash, so that an
edit of the template keeps the history. A record also has the first digits of the hash. A schedule
without a record is estimated from its instance, else from all. Records of this run count at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from tilusbuild.engine.interfaces import Job
from tilusbuild.state.envelope import StateFile

# Records between two saves. A build that is killed loses at most so many, or a quarter of all.
_SAVE_EVERY = 64
# Four months. A longer time in the file is damage.
_MAX_SECONDS = 1e7


class Estimate(Struct, frozen=True):
    """The seconds and the bytes that a compile will probably take; None is unknown."""

    seconds: float | None
    peak_rss: int | None


NOTHING = Estimate(None, None)


class _RecordSum(Struct):
    """The records of an instance's schedules, or of all instances."""

    count: int = 0
    seconds: float = 0.0
    peak_rss: int = 0

    def add_record(self, seconds: float, peak_rss: int) -> None:
        self.count += 1
        self.seconds += seconds
        self.peak_rss = max(self.peak_rss, peak_rss)

    @property
    def mean(self) -> float | None:
        """The mean seconds; None without a record."""
        return self.seconds / self.count if self.count else None


class History:
    """The times and the memory of earlier compiles, in a file of the directory `state_dir`; with
    None, of this process only."""

    def __init__(self, state_dir: str | None) -> None:
        self._file = StateFile(state_dir, "history")
        self._sums_by_instance: dict[str, _RecordSum] | None = None
        self._total_sum = _RecordSum()
        self._killed_peaks: dict[str, int] = {}
        """Bytes that a compile of an instance had taken when it was killed, in this run."""

    def estimate_job(self, job: Job) -> Estimate:
        """Return the last record of the job's schedule; without one, the mean seconds and the
        largest peak of its instance, else of all records; else `NOTHING`. The peak is at least that
        of a compile of the instance that was killed in this run."""
        instance = _make_instance_key(job)
        record = _parse_record(self._file.get_value(_make_schedule_key(job)))
        if record is None:
            record_sum = self._sum_by_instance().get(instance, self._total_sum)
            seconds, peak_rss = record_sum.mean, record_sum.peak_rss
        else:
            seconds, peak_rss = record.seconds, record.peak_rss
        least_peak = self._killed_peaks.get(instance, 0)
        return Estimate(seconds, max(peak_rss, least_peak) or None)

    def find_measurement(self, job: Job) -> Estimate:
        """Return the seconds and bytes of this program's last compile. Return `NOTHING` if the
        record of its schedule is missing, or is of a program with another hash."""
        record = _parse_record(self._file.get_value(_make_schedule_key(job)))
        if record is None or record.short_hash != _abbreviate_hash(job):
            return NOTHING
        return Estimate(record.seconds, record.peak_rss or None)

    def record_compile(self, job: Job, seconds: float, peak_rss: int) -> None:
        """Record a compile that ended with an answer. Save the file now and then."""
        instance_sum = self._sum_by_instance().setdefault(_make_instance_key(job), _RecordSum())
        for record_sum in (instance_sum, self._total_sum):
            record_sum.add_record(seconds, peak_rss)
        self._file.put_value(
            _make_schedule_key(job), [round(seconds, 3), peak_rss, _abbreviate_hash(job)]
        )
        # A save writes the whole file, so a large file is saved more rarely.
        if self._file.unsaved >= max(_SAVE_EVERY, self._total_sum.count // 4):
            self.save()

    def record_kill(self, job: Job, peak_rss: int) -> None:
        """Record that a compile was killed when it had taken so many bytes: in this run, the
        estimates of its instance are at least as large."""
        instance = _make_instance_key(job)
        self._killed_peaks[instance] = max(self._killed_peaks.get(instance, 0), peak_rss)

    def save(self) -> None:
        """Write the records of this run to the file; do nothing when the file cannot be written."""
        self._file.save_records()

    def _sum_by_instance(self) -> dict[str, _RecordSum]:
        """Return the sums by instance. The first call reads the file and fills `_total_sum`."""
        if self._sums_by_instance is None:
            self._sums_by_instance = {}
            for key, value in self._file.items():
                # A key is "SCRIPT/CONSTANTS/TARGET#INDEX": the instance, and the schedule in it.
                instance, _, _ = key.rpartition("#")
                record = _parse_record(value)
                if record is not None:
                    instance_sum = self._sums_by_instance.setdefault(instance, _RecordSum())
                    for record_sum in (instance_sum, self._total_sum):
                        record_sum.add_record(record.seconds, record.peak_rss)
        return self._sums_by_instance


def _make_instance_key(job: Job) -> str:
    return "/".join(job.instance)


def _make_schedule_key(job: Job) -> str:
    return f"{_make_instance_key(job)}#{job.index}"


def _abbreviate_hash(job: Job) -> str:
    """Return the digits of a program's hash that a record has."""
    return job.hash[:12]


class _Record(NamedTuple):
    seconds: float
    peak_rss: int
    short_hash: object


def _parse_record(value: Any) -> _Record | None:
    """Return a value of the file, `[SECONDS, BYTES, HASH]`, as a record; None for any other."""
    if not isinstance(value, list) or len(value) != 3:
        return None
    seconds, peak_rss, short_hash = value
    if not isinstance(seconds, int | float) or not isinstance(peak_rss, int):
        return None
    # A file may hold NaN. It compares false with both bounds, so it is refused here, too.
    if 0 <= seconds < _MAX_SECONDS and peak_rss >= 0:
        return _Record(float(seconds), peak_rss, short_hash)
    return None
