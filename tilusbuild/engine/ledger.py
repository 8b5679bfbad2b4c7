"""A build's books: every program's status, every script's tally, every failure, and the sums.

Each program is in exactly one column, and all the columns together are all the programs. A program
that several jobs share counts once there, and once for each of them in their scripts' verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilusbuild.engine.base import Compiled, Job
from tilusbuild.engine.events import Summary
from tilusbuild.engine.store import Store
from tilusbuild.engine.verdict import Failure, Tally, grouped, headline
from tilusbuild.errors import TilusbuildError
from tilusbuild.status import RECORDED, Status

COLUMNS = ("compiled", "cached", "failed", "pruned", "crashed", "skipped")
_EXCERPT = 16 << 10
"""Characters kept of the log of a program that is not recorded."""


class Ledger:
    """The books of one build."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.statuses: dict[str, Status] = {}
        self.counts = dict.fromkeys(COLUMNS, 0)
        self.attempts = 0
        self.unbuilt = 0
        """Programs that this run tried and did not get; pruned ones are not meant to be had."""
        self._tallies: dict[tuple[str, ...], Tally] = {}
        self._failures: list[Failure] = []

    def settle(self, jobs: Iterable[Job[Any]], compiled: Compiled, *, cached: bool) -> None:
        """A program has its answer; `jobs` are all that share it."""
        first, *twins = jobs
        status = compiled.status
        self.statuses[first.hash] = status
        self.counts[_column(status, cached)] += 1
        self.again(first, status)
        for twin in twins:
            self.again(twin, status)
        if status not in (Status.BUILT, Status.PRUNED, Status.SKIPPED):
            self._failures.append(self._failure(first, compiled))
            self.unbuilt += not cached

    def again(self, job: Job[Any], status: Status) -> None:
        """A job has the answer of a program that was counted before."""
        tally = self._tallies.get(job.instance)
        if tally is None:
            tally = self._tallies[job.instance] = Tally(job.script, job.instance)
        tally.add(status, job.is_default)

    def summary(
        self,
        seconds: float,
        *,
        strict: bool = False,
        part: bool = False,
        stopped: bool = False,
        error: str | None = None,
        signal: int | None = None,
    ) -> Summary:
        """The sums. A build that stopped with work left is no success, whatever it has."""
        scripts = tuple(tally.verdict(strict, part) for tally in self._tallies.values())
        bad = not all(verdict.ok for verdict in scripts)
        status = int(bad or error is not None or (stopped and self.counts["skipped"] > 0))
        return Summary(
            programs=len(self.statuses),
            **self.counts,
            attempts=self.attempts,
            seconds=seconds,
            exit_status=status if signal is None else 128 + signal,
            scripts=scripts,
            failures=grouped(self._failures),
            error=error,
            signal=signal,
        )

    def _failure(self, job: Job[Any], compiled: Compiled) -> Failure:
        # A recorded log is on the disk. Of the others a part is kept here, and there is no folder.
        recorded = compiled.status in RECORDED
        excerpt = "" if recorded else compiled.log[-_EXCERPT:]

        def log() -> str:
            return self._store.log(job.hash) if recorded else excerpt

        def message() -> str:
            text = log()
            try:
                return job.readable(text)
            except (OSError, TilusbuildError):
                return text

        folder = self._store.program_path(job.hash) if recorded else None
        return Failure(
            label=job.label,
            status=compiled.status,
            reason=compiled.reason,
            error=headline(compiled.reason, lambda: compiled.log or log()),
            message=message,
            compile_sh=f"{folder}/module/compile.sh" if folder is not None else None,
        )


def _column(status: Status, cached: bool) -> str:
    if status == Status.BUILT:
        return "cached" if cached else "compiled"
    return status if status in COLUMNS else "crashed"
