"""The build and the command of `--exec`, each on a thread beside the session.

The plan of a build is replaced as files change; the build ends with the programs of its latest
plan, and publishes the scripts and the index of that plan. The command has a process group of its
own and is ended for the next change. The end of either is reported once, whatever happens.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from msgspec import Struct

from tilusbuild.builder.project import Project
from tilusbuild.builder.publish import ProjectPublication
from tilusbuild.builder.resources import open_builder
from tilusbuild.builder.timeline import record_timeline
from tilusbuild.engine import events
from tilusbuild.engine.build import BuildLoop
from tilusbuild.engine.events import CompositeReporter, Reporter, Result
from tilusbuild.engine.inbox import PlanQueue
from tilusbuild.engine.running import BuildConfig
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import iterate_jobs
from tilusbuild.process.base import CancelledError, Command, RunnerLostError, start_thread
from tilusbuild.process.local import LocalRunner
from tilusbuild.status import Status
from tilusbuild.watch.events import CommandEnded
from tilusbuild.watch.inputs import PlanState


class BuildEnded(Struct, frozen=True):
    """The end of a build."""

    state: PlanState | None
    """The latest plan of the build; None when it was abandoned."""
    result: Result | None
    error: BaseException | None
    programs: tuple[tuple[str, str], ...]
    """(script, hash) of the compiled programs that are in the plan."""

    @property
    def ok(self) -> bool:
        return self.result is not None and self.result.summary.exit_status == 0


class BuildThread:
    """A build that runs on a thread of its own. The methods are called from one other thread.
    `report_end` is called once, on the build's thread. Raises `OSError` when there can be no
    thread."""

    def __init__(
        self,
        state: PlanState,
        selection: PlanSelection,
        config: BuildConfig,
        reporter: Reporter,
        report_end: Callable[[BuildEnded], None],
    ) -> None:
        self._project = state.project
        self._selection = selection
        self._config = config
        self._reporter = _RecordingReporter(reporter)
        self._report_end = report_end
        self._queue = PlanQueue(iterate_jobs(state.plan), state.list_new_jobs())
        self._lock = threading.Lock()
        self._state: PlanState | None = state
        self._has_ended = False
        self._thread = start_thread(self._run_build)

    def replace_plan(self, state: PlanState) -> bool:
        """Build the programs of this plan and no others. Return False, and change nothing, when the
        build has ended or runs with other tools or settings."""
        with self._lock:
            build_settings = _list_fixed_settings(self._project)
            if self._has_ended or _list_fixed_settings(state.project) != build_settings:
                return False
            if not self._queue.replace_jobs(iterate_jobs(state.plan), state.list_new_jobs()):
                return False
            self._project, self._state = state.project, state
            return True

    def abandon_plan(self) -> None:
        """Stop every compiler and publish nothing. Return when the build has ended."""
        with self._lock:
            self._state = None
        # The new plan has no programs, so the compiles of all programs are killed.
        self._queue.replace_jobs(())
        self._thread.join()

    def stop_compilers(self, signal: int) -> None:
        """Stop every compiler, as at this signal. Return when the build has ended."""
        self._queue.stop_build(signal)
        self._thread.join()

    def _run_build(self) -> None:
        """Build, close the reporter, and report the end, an exception, too. Runs on the build's
        thread."""
        result: Result | None = None
        error: BaseException | None = None
        try:
            result = self._build_programs()
        except BaseException as raised:
            error = raised
        finally:
            self._reporter.close()
        with self._lock:
            self._has_ended = True
            state = self._state
        planned_programs = frozenset() if state is None else state.programs
        compiled = tuple(
            (script, program)
            for script, program in self._reporter.compiled
            if program in planned_programs
        )
        self._report_end(BuildEnded(state, result, error, compiled))

    def _build_programs(self) -> Result:
        """Build until no newer plan came, and publish the latest one unless it was abandoned or the
        build was stopped. Return the result."""
        with open_builder(self._project, self._config) as builder:
            config, cache = builder.config, self._project.cache
            with (
                closing(builder.compiler),
                record_timeline(cache, config, self._reporter) as reporter,
            ):
                loop = BuildLoop(self._queue, builder.store, builder.compiler, reporter, config)
                result = loop.run()
            with self._lock:
                # The loop has ended, and the queue accepts no further plan: this one is the latest.
                state = self._state
            if state is not None and not result.was_stopped:
                publication = ProjectPublication()
                for message in publication.list_notices(state.project, state.plan):
                    self._reporter.emit(events.Warned(message))
                publication.publish_results(state.project, state.plan, self._selection, result)
        return result


def _list_fixed_settings(project: Project) -> tuple[object, ...]:
    """Return the tools and settings of a project that a running build cannot exchange, to be
    compared with those of another project."""
    settings = project.settings
    return (
        project.cache.root,
        settings.jobs,
        settings.nice,
        settings.load_average,
        project.manifest.build.timeout,
        project.toolchains,
    )


class _RecordingReporter(CompositeReporter):
    """Passes events on, and records the programs that were compiled."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.compiled: list[tuple[str, str]] = []

    def emit(self, event: events.Event, /) -> None:
        if isinstance(event, events.Finished) and event.status == Status.BUILT and not event.cached:
            self.compiled.append((event.script, event.hash))
        super().emit(event)


# Characters. A longer line is reported in parts.
MAX_LINE = 1 << 16


class LineSplitter:
    """Splits output into lines. Of a line that was overwritten (`\\r`), the last state counts."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""

    def add_output(self, output: bytes) -> None:
        """Report the lines that this piece of output completes, and the first part of an unfinished
        line of more than `MAX_LINE` characters."""
        text = self._unfinished + self._decoder.decode(output)
        # What follows the last newline is not a complete line yet.
        *complete_lines, self._unfinished = text.split("\n")
        for line in complete_lines:
            self._report_line(line)
        if len(self._unfinished) > MAX_LINE:
            self.flush_line()

    def flush_line(self) -> None:
        """Pass on the last line, if it has no newline."""
        if self._unfinished:
            self._report_line(self._unfinished)
        self._unfinished = ""

    def _report_line(self, line: str) -> None:
        # Of "10 %\r20 %\r", a terminal shows "20 %" in the end.
        _, _, last_state = line.rstrip("\r").rpartition("\r")
        self._report(last_state)


class CommandRun:
    """A running command. `report_line` gets each line of its output, and `report_end` is called
    once; both on the command's thread."""

    def __init__(
        self,
        runner: LocalRunner,
        command: str,
        directory: str,
        environment: Mapping[str, str],
        scripts: Sequence[str],
        report_line: Callable[[str], None],
        report_end: Callable[[CommandEnded], None],
    ) -> None:
        self._scope = runner.open_scope()
        self._command = command
        self._directory = directory
        self._environment = environment
        self._scripts = scripts
        self._splitter = LineSplitter(report_line)
        self._report_end = report_end
        self._thread = start_thread(self._run_command)

    def cancel(self) -> None:
        """Kill the command. Return when its end was reported."""
        self._scope.cancel()
        # No line of the command may follow the change for which it is cancelled.
        self._thread.join()

    def _run_command(self) -> None:
        """Run the command by `/bin/sh`, with the scripts in TILUSBUILD_REBUILT, and report its end.
        The error of a command that cannot be started is its output."""
        status: int | None = None
        seconds = 0.0
        try:
            command = Command(
                ("/bin/sh", "-c", self._command),
                cwd=self._directory,
                env={**self._environment, "TILUSBUILD_REBUILT": "\n".join(self._scripts)},
                on_output=self._splitter.add_output,
            )
            completed = self._scope.run(command)
            status, seconds = completed.status, completed.seconds
        except CancelledError:
            pass
        except (OSError, RunnerLostError) as error:
            # The exit status of a shell that cannot start a command.
            status = 127
            self._splitter.add_output(f"{error}\n".encode(errors="replace"))
        finally:
            self._splitter.flush_line()
        self._report_end(CommandEnded(self._command, status, seconds))
