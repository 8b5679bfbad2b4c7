"""Compiles on other machines beside this one's: this machine's slots first, workers beside them.

A command that may run elsewhere takes a slot of this machine while one is free. Otherwise the
executor gets it, as soon as that takes any; what it cannot do is done here, when a slot is free,
and so is a compile that must stay. So an executor in trouble makes a build slower, never wrong, and
starts no more compilers here than `-j` allows. gRPC is imported when the slots of this machine are
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
# Seconds: an executor may take one more command before a slot is free here.
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
        """`runner` runs this machine's part of the probe, and nothing else; `limit` returns the
        number of slots here; `listen` gets events."""
        self._settings = settings
        self._runner = runner
        self._slots = CompileSlots(limit)
        self._listen = listen
        self._executors: list[tuple[Toolchain, RemoteExecutor | None]] = []
        """One for each toolchain: a worker's tools are compared with those of this machine."""
        self._lock = threading.Lock()

    def make_runner(self, inner: Runner, job: Job, toolchain: Toolchain) -> Runner:
        """Return a runner that runs a job's commands on `inner` or on a worker."""

        def report_place(stage: str, worker: str) -> None:
            # In the other stages the executor has the command.
            address = "" if stage in (WAITING, HERE) else self._settings.address
            self._listen(Placed(job.hash, job.label, stage, address, worker))

        # The executor is opened by the first command that finds no free slot here.
        find_executor = partial(self._find_executor, toolchain)
        return SharingRunner(inner, find_executor, self._slots, report_place)

    def make_counts(self) -> Mapping[str, Any]:
        """Return the fields of `events.RemoteSummary` that count the workers' compiles; empty
        without any."""
        opened = [executor for _, executor in self._executors if executor is not None]
        # Executors that ran no command are left out: they sent the inputs of the probe only, which
        # are not those of the build.
        counts = [executor.executed for executor in opened if executor.executed.commands]
        if not counts:
            return {}
        return {
            "executed": sum(count.commands for count in counts),
            "executor": self._settings.address,
            "remembered": sum(count.remembered for count in counts),
            "executed_seconds": sum(count.seconds for count in counts),
            "inputs_bytes": sum(count.inputs for count in counts),
            "outputs_bytes": sum(count.outputs for count in counts),
        }

    def close(self) -> None:
        self._runner.cancel()
        for _, executor in self._executors:
            if executor is not None:
                executor.close()

    def _find_executor(self, toolchain: Toolchain) -> RemoteExecutor | None:
        """Return the executor for a toolchain, opened on the first call; None, after one warning,
        if it cannot be opened."""
        with self._lock:
            for executor_toolchain, executor in self._executors:
                # By identity first, which is fast: equality compares all digests of both.
                if executor_toolchain is toolchain or executor_toolchain == toolchain:
                    return executor
            new_executor = None
            try:
                from tilusbuild.reapi.execute import RemoteExecutor
                from tilusbuild.reapi.probe import probe_worker

                compare = partial(probe_worker, toolchain, self._runner)
                new_executor = RemoteExecutor(self._settings, compare, self._emit_warning)
            except ImportError as error:
                self._emit_warning(explain_missing_package(error))
            except RemoteTroubleError as error:
                self._emit_warning(str(error))
            # None is remembered, too: else each program would try a server that cannot be used.
            self._executors.append((toolchain, new_executor))
            return new_executor

    def _emit_warning(self, why: str) -> None:
        self._listen(Warned(f"remote execution: {why}"))


class CompileSlots:
    """The slots for compiles on this machine. `limit` returns their number, which may change."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._used = 0
        self._freed = threading.Condition()

    def try_acquire(self) -> bool:
        """Take a slot. Return False when none is free."""
        with self._freed:
            is_free = self._used < self._limit()
            if is_free:
                self._used += 1
            return is_free

    def wait_briefly(self) -> None:
        """Wait a moment, or until a slot is free."""
        with self._freed:
            self._freed.wait(_CHECK_EVERY)

    def release_slot(self) -> None:
        """Give a slot back."""
        with self._freed:
            self._used -= 1
            self._freed.notify()


class SharingRunner:
    """Runs the commands of one program on `inner`, or on a worker while no slot of this machine is
    free.

    `find` returns the executor of the workers, or None, and is called when no slot is free.
    """

    def __init__(
        self,
        inner: Runner,
        find_executor: Callable[[], RemoteExecutor | None],
        slots: CompileSlots,
        report_place: ReportPlace,
    ) -> None:
        self._inner = inner
        self._find_executor = find_executor
        self._executor: RemoteExecutor | None = None
        self._slots = slots
        self._report_place = report_place
        self._cancelled = threading.Event()

    def run(self, command: Command) -> CompletedCommand:
        """Run a command in a slot of this machine, or on a worker if that takes the command before
        a slot is free. Return what came of it.

        A command without outputs runs here, without a slot. Reports where the command is. Raises
        `CancelledError`, and the exceptions of `inner`.
        """
        if not command.outputs and not command.stays:
            return self._inner.run(command)
        # A command goes to a worker once, and never if it `stays`. One that the worker could not
        # run waits for a slot here.
        may_use_worker = not command.stays
        is_waiting = False
        while not self._slots.try_acquire():
            if may_use_worker:
                self._executor = self._executor or self._find_executor()
            if may_use_worker and self._executor and self._executor.is_ready():
                may_use_worker = False
                is_waiting = False
                completed = self._executor.run_command(command, self._cancelled, self._report_place)
                if completed is not None:
                    return completed
            else:
                if not is_waiting:
                    self._report_place(WAITING, "")
                is_waiting = True
                self._slots.wait_briefly()
            if self._cancelled.is_set():
                raise CancelledError
        try:
            # `HERE` is the default: a command that got a slot at once needs no report.
            if not may_use_worker or is_waiting:
                self._report_place(HERE, "")
            return self._inner.run(command)
        finally:
            self._slots.release_slot()

    def cancel(self) -> None:
        self._cancelled.set()
        if self._executor is not None:
            self._executor.cancel_command(self._cancelled)
        self._inner.cancel()
