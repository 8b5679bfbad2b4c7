"""`watch`: the loop that waits for changes, plans again, and passes the plan to the build.

One thread decides everything, from one inbox: hints of changed files, the end of a build, the end
of a command, a signal. At rest the cache is as after a build of the current files: rest is reported
only after a check that followed the last change.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec.structs import replace

from tilusbuild.builder import outputs
from tilusbuild.builder.noop_record import list_input_paths
from tilusbuild.builder.project import Project
from tilusbuild.engine.history import History
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.process.stopping import catch_signals, raise_signals
from tilusbuild.state.clock import FileTime
from tilusbuild.status import Status
from tilusbuild.watch import events
from tilusbuild.watch.background import BuildEnded, BuildThread, CommandRun
from tilusbuild.watch.change_detector import ChangeDetector, MakeObserver
from tilusbuild.watch.inputs import TOOLS, PlanState, WatchList
from tilusbuild.watch.observer import Observer
from tilusbuild.watch.screen import Screen

# Of glibc's malloc.h.
_M_ARENA_MAX = -8


def _set_thread_limits() -> None:
    """Shorten each thread's turn in the interpreter, and limit the C library to one arena, both for
    the whole process."""
    # While one thread plans, the threads of compilers want the interpreter after every system call.
    # With Python's usual 5 ms, each would wait so long, and the plan for all of them.
    sys.setswitchinterval(0.0005)
    # glibc gives each thread an arena of memory, and keeps it after the thread's end: the memory
    # would grow with each build. So there is only one arena.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class Session:
    """One `tilusbuild watch`. The project is the caller's to close."""

    def __init__(
        self,
        project: Project,
        selection: PlanSelection,
        config: BuildConfig,
        screen: Screen,
        *,
        command: str | None = None,
        make_observer: MakeObserver = Observer,
    ) -> None:
        """`config` is what the command line says of a build, `command` what runs after each."""
        self._selection = selection
        self._config = replace(config, history=History(project.cache.state_path))
        self._command = command
        self._screen = screen
        self._project = project
        self._inbox: SimpleQueue[str | BuildEnded | events.CommandEnded | int] = SimpleQueue()
        self._detector = ChangeDetector(
            lambda path: self._project.digests.digest_file(path),
            self._inbox.put,
            lambda: self._project.cache.root,
            now=lambda: self._project.clock.read_recent_time(),
            make_observer=make_observer,
        )
        self._is_stale = False
        """Whether a watched path has changed since the latest plan."""
        self._changed_at: float | None = None
        """The monotonic time of the first change since the latest plan; None without one."""
        self._tools_changed = False
        """Whether a tool has changed since the tools were discovered."""
        self._state: PlanState | None = None
        """The latest correct plan."""
        self._watch_list = WatchList(project, None)
        self._problem = ""
        """The message of the mistake in the current files; "" without one."""
        self._build_thread: BuildThread | None = None
        self._command_run: CommandRun | None = None
        self._save_count = 0
        self._saved_at = time.monotonic()
        self._is_build_ok = True
        self._signal: int | None = None
        self._is_resting = False

    def run(self) -> int:
        """Plan and build the project, again after each change, until a signal comes. Return the
        exit status: 128 plus the signal.

        At the end no build and no command runs. Raises an error of our own, and `TilusbuildError`
        when the cache cannot be used at the start.
        """
        _set_thread_limits()
        with catch_signals(self._inbox.put):
            try:
                self._project.cache.ensure_complete()
                self._build_anew()
                while self._signal is None:
                    self._handle_next()
            finally:
                self._stop_all()
        return 128 + (self._signal or 0)

    # Waiting.

    def _handle_next(self) -> None:
        """Wait for messages or the next check, handle them, and plan if something changed. Report
        rest before, if nothing is left to do; stop, as by SIGPIPE, if the output has no reader."""
        if not self._is_resting and self._is_idle():
            self._report_rest()
        if not self._screen.is_read:
            self._signal = signal.SIGPIPE
            return
        # A change that came while a plan was made is known (`_is_stale`), and its hint is used up:
        # with a wait for the next message, it would stay unbuilt until something else happens.
        is_pending = self._is_stale or self._signal is not None
        wait = 0.0 if is_pending else max(0.0, self._detector.next_check - time.monotonic())
        self._handle_messages(wait)
        changed_since = self._detector.take_due_check()
        if changed_since is not None:
            self._check_files(changed_since)
        if self._signal is None and self._is_stale:
            self._build_anew()

    def _is_idle(self) -> bool:
        waits = self._is_stale or self._detector.is_hinted
        return self._build_thread is None and self._command_run is None and not waits

    def _handle_messages(self, seconds: float) -> None:
        """Wait up to `seconds` for a message; handle it and all others that are in the inbox."""
        try:
            # Only the first message is waited for. `Empty` is raised when the inbox has no more.
            message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
            while True:
                self._handle_message(message)
                message = self._inbox.get_nowait()
        except Empty:
            return

    def _handle_message(self, message: str | BuildEnded | events.CommandEnded | int) -> None:
        """Handle a signal by its number, the hint of a path, or the end of a build or a command."""
        if isinstance(message, int):
            self._signal = message
        elif isinstance(message, str):
            self._detector.add_hint(message)
        elif isinstance(message, BuildEnded):
            self._handle_build_end(message)
        else:
            self._command_run = None
            self._is_resting = False
            self._screen.emit(message)

    # Checking.

    def _check_files(self, since: float, *, started: FileTime | None = None) -> None:
        """Check every watched path. Report a change that affects the project, and mark the plan as
        stale.

        `since` is the monotonic time that counts as the time of the change. `started` is when the
        plan that was just made began to read; None after another event.
        """
        changes = self._detector.find_changes(self._watch_list.paths, started=started)
        changed = self._watch_list.describe_changes(changes)
        if changed is None:
            return
        self._is_stale = True
        self._changed_at = self._changed_at or since
        self._tools_changed |= TOOLS in changed.parts
        self._save_count += 1
        self._is_resting = False
        self._screen.emit(changed)

    # Planning.

    def _build_anew(self) -> None:
        """End the command, plan the project as it is, and build the plan. Watch the plan's paths,
        and check them for changes since it was begun.

        A mistake in the project is reported, and the last plan stays.
        """
        self._cancel_command()
        # Durations are monotonic; stamps of files are compared with the clock of their file system.
        began_at, started = time.monotonic(), self._project.clock.read_time()
        self._saved_at = self._changed_at or began_at
        self._is_stale, self._changed_at = False, None
        try:
            with raise_signals():
                state = self._make_plan()
        except TilusbuildError as error:
            self._report_problem(error)
        else:
            self._state, self._problem = state, ""
            new_programs = state.programs - (state.previous_programs or frozenset())
            self._screen.emit(
                events.Replanned(
                    programs=state.plan.size,
                    changed=len(new_programs),
                    renders=state.renders,
                    seconds=time.monotonic() - began_at,
                )
            )
            self._build_plan(state)
            self._watch_list = WatchList(state.project, state)
        self._detector.watch_paths(
            self._watch_list.paths, self._project.manifest.root, self._project.cache.root
        )
        # A path that is watched for the first time may have changed after it was read.
        self._check_files(time.monotonic(), started=started)

    def _make_plan(self) -> PlanState:
        """Return a new plan. The manifest is read again, unless this is the first plan, and sets
        `_project`; the tools are discovered again if they changed. Raises `TilusbuildError`."""
        if self._state is not None or self._problem:
            toolchains = self._project.toolchains.values()
            # A toolkit has more files than are watched, so its tools are also compared here.
            rediscover = self._tools_changed or any(
                toolchain.find_changed_path() is not None for toolchain in toolchains
            )
            project = self._project.reread_manifest(tools=rediscover)
            project.cache.ensure_complete()
            self._project, self._tools_changed = project, False
        project = self._project
        renders_before = project.memo.renders
        # The manifest may declare another level now.
        plan = project.make_plan(replace(self._selection, level=project.settings.level.value))
        outputs.check_outputs(project, plan)
        previous_programs = None if self._state is None else self._state.programs
        return PlanState(project, plan, project.memo.renders - renders_before, previous_programs)

    def _report_problem(self, error: TilusbuildError) -> None:
        """Report an error of planning, unless it is the same as before. Watch also the paths that
        the failed attempt read or looked for."""
        self._is_resting = False
        previous, self._problem = self._problem, error.render()
        if self._problem != previous:
            self._screen.emit(events.Problem(self._problem))
        looked_for = list_input_paths(self._project, None)
        if isinstance(error, InputError):
            root = self._project.manifest.root
            locations = [diagnostic.location for diagnostic in error.diagnostics]
            looked_for |= error.looked_for
            looked_for.update(
                os.path.join(root, location.path) for location in locations if location
            )
        self._watch_list = WatchList(self._project, self._state, looked_for)

    # Building.

    def _build_plan(self, state: PlanState) -> None:
        """Have the running build change to a plan; if it cannot, end it and start another build."""
        self._is_resting = False
        if self._build_thread is not None and self._build_thread.replace_plan(state):
            return
        if self._build_thread is not None:
            self._build_thread.abandon_plan()
        # The end of the earlier build is in the inbox, and is handled now: later it would be taken
        # for the end of the build that is started here.
        self._handle_messages(0.0)
        jobs = state.project.settings.jobs.value
        self._build_thread = BuildThread(
            state,
            self._selection,
            replace(self._config, jobs=jobs, started_at=self._saved_at),
            self._screen.start_display(),
            self._inbox.put,
        )

    def _handle_build_end(self, end: BuildEnded) -> None:
        """Report the end of a build. After a success start the command, unless a signal or a change
        came. Raises an error of our own."""
        self._build_thread = None
        self._is_resting = False
        self._project.digests.save_records()
        if end.error is not None and not isinstance(end.error, TilusbuildError):
            raise end.error
        if end.error is not None:
            self._screen.emit(events.Problem(end.error.render()))
        if end.result is not None and Status.CHANGED in end.result.statuses.values():
            self._project.memo.forget_scripts()
        if end.state is None or end.state is not self._state:
            return
        self._is_build_ok = end.ok
        scripts = tuple(dict.fromkeys(script for script, _ in end.programs))
        ok = end.ok and not self._problem
        self._screen.emit(
            events.Rebuilt(
                ok=ok,
                programs=len(end.programs),
                scripts=scripts,
                seconds=time.monotonic() - self._saved_at,
                first=not self._save_count,
            )
        )
        is_superseded = self._signal is not None or self._is_stale
        if ok and self._command is not None and not is_superseded:
            self._start_command(self._command, scripts)

    def _start_command(self, command: str, scripts: Sequence[str]) -> None:
        """End the command that runs, if any, and start this one. `scripts` were just built."""
        self._cancel_command()
        project = self._project
        self._screen.emit(events.CommandStarted(command))
        self._command_run = CommandRun(
            project.runner,
            command,
            os.getcwd(),
            project.environment,
            scripts,
            lambda line: self._screen.emit(events.Printed(line)),
            self._inbox.put,
        )

    def _cancel_command(self) -> None:
        if self._command_run is not None:
            self._command_run.cancel()

    # The end.

    def _report_rest(self) -> None:
        """Report that nothing is left to do, and collect garbage."""
        self._is_resting = True
        ok = self._is_build_ok and not self._problem
        self._screen.emit(events.Watching(len(self._watch_list.paths), ok))
        # Plans of the past are cycles, which only a collection frees. The interpreter would wait
        # with it until they are a quarter of all objects.
        gc.collect()

    def _stop_all(self) -> None:
        self._detector.close()
        if self._build_thread is not None:
            self._build_thread.stop_compilers(self._signal or signal.SIGTERM)
        self._cancel_command()
        self._screen.close()
