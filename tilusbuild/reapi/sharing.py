"""Compiles on other machines beside this one's: this machine's places first, others beside them.

A command that may run elsewhere takes one of the local places while there is one. Otherwise the
executor gets it, as soon as that takes any; what it cannot do is done here, when a place is free,
and so is a compile that must stay. So an executor in trouble makes a build slower, never wrong, and
starts no more compilers here than `-j` allows. gRPC is imported when this machine's places are
taken for the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tilusbuild.engine.events import HERE, WAITING, Placed, Warned
from tilusbuild.engine.interfaces import Job
from tilusbuild.process.base import CancelledError, Command, CompletedCommand, Runner
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import RemoteSettings, explain_missing_package
from tilusbuild.toolchain import Toolchain

if TYPE_CHECKING:
    from tilusbuild.reapi.execute import RemoteExecutor

ReportPlace: TypeAlias = Callable[[str, str], None]
_CHECK_EVERY = 0.1


class Sharing:
    """The other machines of one build: a `remote.lazy.Executors`."""

    def __init__(
        self,
        settings: RemoteSettings,
        runner: Runner,
        limit: Callable[[], int],
        listen: Callable[[Any], None],
    ) -> None:
        """`runner` runs the probe's part here, and nothing else; `limit` says how many compile here
        at once; `listen` gets events."""
        self._settings = settings
        self._runner = runner
        self._places = CompileSlots(limit)
        self._listen = listen
        self._executors: list[tuple[Toolchain, RemoteExecutor | None]] = []
        """One for each toolchain: what a worker has is compared with what is here."""
        self._lock = threading.Lock()

    def make_runner(self, inner: Runner, job: Job, toolchain: Toolchain) -> Runner:
        """Return a runner that runs a job's commands on `inner` or on a worker."""

        def report_place(place: str, worker: str) -> None:
            where = "" if place in (WAITING, HERE) else self._settings.address
            self._listen(Placed(job.hash, job.label, place, where, worker))

        find = partial(self._find_executor, toolchain)
        return SharingRunner(inner, find, self._places, report_place)

    def make_counts(self) -> Mapping[str, Any]:
        """Return the fields of `events.RemoteSummary` that count the workers' compiles; empty
        without any."""
        opened = [each.executed for _, each in self._executors if each is not None]
        done = [each for each in opened if each.commands]
        if not done:
            return {}
        return {
            "executed": sum(each.commands for each in done),
            "executor": self._settings.address,
            "remembered": sum(each.remembered for each in done),
            "executed_seconds": sum(each.seconds for each in done),
            "inputs_bytes": sum(each.inputs for each in done),
            "outputs_bytes": sum(each.outputs for each in done),
        }

    def close(self) -> None:
        self._runner.cancel()
        for _, executor in self._executors:
            if executor is not None:
                executor.close()

    def _find_executor(self, toolchain: Toolchain) -> RemoteExecutor | None:
        """Return the executor for a toolchain, opened on the first call; None if it cannot be
        opened."""
        with self._lock:
            for known, executor in self._executors:
                if known is toolchain or known == toolchain:
                    return executor
            made = None
            try:
                from tilusbuild.reapi.execute import RemoteExecutor
                from tilusbuild.reapi.probe import probe_worker

                compare = partial(probe_worker, toolchain, self._runner)
                made = RemoteExecutor(self._settings, compare, self._emit_warning)
            except ImportError as error:
                self._emit_warning(explain_missing_package(error))
            except RemoteTroubleError as error:
                self._emit_warning(str(error))
            self._executors.append((toolchain, made))
            return made

    def _emit_warning(self, why: str) -> None:
        self._listen(Warned(f"remote execution: {why}"))


class CompileSlots:
    """The slots for compiles on this machine. `limit` returns their number, which may change."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._freed = threading.Condition()

    def try_acquire(self) -> bool:
        """Take a slot. Return False when none is free."""
        with self._freed:
            free = self._taken < self._limit()
            self._taken += free
            return free

    def wait_briefly(self) -> None:
        """Wait a moment, or until a place is free."""
        with self._freed:
            self._freed.wait(_CHECK_EVERY)

    def release_slot(self) -> None:
        """Give a place back."""
        with self._freed:
            self._taken -= 1
            self._freed.notify()


class SharingRunner:
    """Runs the commands of one program on `inner`, or on a worker while no slot of this machine is
    free.

    `find` returns the executor of the workers, or None, and is called when no slot is free.
    """

    def __init__(
        self,
        inner: Runner,
        find: Callable[[], RemoteExecutor | None],
        places: CompileSlots,
        tell: ReportPlace,
    ) -> None:
        self._inner = inner
        self._find = find
        self._executor: RemoteExecutor | None = None
        self._places = places
        self._tell = tell
        self._cancelled = threading.Event()

    def run(self, command: Command) -> CompletedCommand:
        if not command.outputs and not command.stays:
            return self._inner.run(command)
        tried, told = command.stays, False
        while not self._places.try_acquire():
            if not tried:
                self._executor = self._executor or self._find()
            if not tried and self._executor and self._executor.is_ready():
                tried = True
                done = self._executor.run_command(command, self._cancelled, self._tell)
                if done is not None:
                    return done
                told = False
            else:
                if not told:
                    self._tell(WAITING, "")
                told = True
                self._places.wait_briefly()
            if self._cancelled.is_set():
                raise CancelledError
        try:
            if tried or told:
                self._tell(HERE, "")
            return self._inner.run(command)
        finally:
            self._places.release_slot()

    def cancel(self) -> None:
        self._cancelled.set()
        if self._executor is not None:
            self._executor.cancel_command(self._cancelled)
        self._inner.cancel()
