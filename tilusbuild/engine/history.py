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


class _Sum(Struct):
    """Of the schedules of an instance, or of all."""

    count: int = 0
    seconds: float = 0.0
    peak_rss: int = 0

    def add(self, seconds: float, peak_rss: int) -> None:
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
        self._groups: dict[str, _Sum] | None = None
        self._all = _Sum()
        self._floors: dict[str, int] = {}
        """Bytes that a compile of an instance had taken when it was killed, in this run."""

    def estimate(self, job: Job) -> Estimate:
        """Return the seconds and the memory that a job will probably need."""
        found = self._remembered(job)
        floor = self._floors.get(_group(job), 0)
        return Estimate(found.seconds, max(found.peak_rss or 0, floor) or None)

    def measured(self, job: Job) -> Estimate:
        """Return the seconds and the memory of this very program, not of another one in the same
        place; `NOTHING` if unknown."""
        value = self._file.get(_key(job))
        if (known := _valid(value)) is None or value[2] != _mark(job):
            return NOTHING
        return Estimate(known[0], known[1] or None)

    def _remembered(self, job: Job) -> Estimate:
        groups = self._summed()
        if (known := _valid(self._file.get(_key(job)))) is not None:
            return Estimate(known[0], known[1] or None)
        if (group := groups.get(_group(job))) is not None:
            return group.estimate
        return self._all.estimate if self._all.count else NOTHING

    def record(self, job: Job, seconds: float, peak_rss: int) -> None:
        """Remember a compile that came to an answer."""
        group = self._summed().setdefault(_group(job), _Sum())
        for total in (group, self._all):
            total.add(seconds, peak_rss)
        self._file.put(_key(job), [round(seconds, 3), peak_rss, _mark(job)])
        if self._file.unsaved >= max(_SAVE_EVERY, self._all.count // 4):
            self.save()

    def killed_at(self, job: Job, peak_rss: int) -> None:
        """Note that a compile was killed when it had taken so many bytes: until the end of this run
        the others of its instance are taken to need as many, whatever they took before."""
        group = _group(job)
        self._floors[group] = max(self._floors.get(group, 0), peak_rss)

    def save(self) -> None:
        """Write what is new; do nothing where that is not possible."""
        self._file.save()

    def _summed(self) -> dict[str, _Sum]:
        if self._groups is None:
            self._groups = {}
            for key, value in self._file.items():
                if (known := _valid(value)) is not None:
                    self._groups.setdefault(key.rpartition("#")[0], _Sum()).add(*known)
                    self._all.add(*known)
        return self._groups


def _group(job: Job) -> str:
    return "/".join(job.instance)


def _key(job: Job) -> str:
    return f"{_group(job)}#{job.index}"


def _mark(job: Job) -> str:
    """Return a mark that differs between the programs that have been in one place."""
    return job.hash[:12]


def _valid(value: Any) -> tuple[float, int] | None:
    """Return a record of the file, when it has the shape of one."""
    if not isinstance(value, list) or len(value) != 3:
        return None
    seconds, peak_rss, _ = value
    if not isinstance(seconds, int | float) or not isinstance(peak_rss, int):
        return None
    # NaN, which Python reads in JSON, compares false with every bound.
    return (float(seconds), peak_rss) if 0 <= seconds < 1e7 and peak_rss >= 0 else None
