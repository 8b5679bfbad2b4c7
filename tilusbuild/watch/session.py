"""`watch`: the loop that waits for changes, plans again, and says to the build what is wanted now.

Everything is decided on one thread, from one inbox: hints that something happened to a file, the
end of a build, the end of a command, a signal. At rest the cache holds what a build of the files as
they are would have made: rest is reported only after a check that followed the last change.
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
from tilusbuild.builder.noop_record import input_paths
from tilusbuild.builder.project import Project
from tilusbuild.engine.history import History
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.process.stopping import catch_signals, raise_signals
from tilusbuild.state.clock import Moment
from tilusbuild.status import Status
from tilusbuild.watch import events
from tilusbuild.watch.background import BuildEnded, BuildThread, CommandRun
from tilusbuild.watch.change_detector import ChangeDetector, MakeWatcher
from tilusbuild.watch.inputs import TOOLS, PlanState, WatchList
from tilusbuild.watch.observer import Observer
from tilusbuild.watch.screen import Screen

_SWITCH = 0.0005
"""Seconds after which a thread gives the interpreter to another one."""
_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def _prepare_for_threads() -> None:
    """Change two settings of the whole process, for many threads that come and go."""
    # A compiler's thread asks for the interpreter at every system call while another one plans;
    # with the usual 5 ms each, both would wait for each other.
    sys.setswitchinterval(_SWITCH)
    # glibc gives threads memory of their own and keeps it: each build's would add to the last.
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
        make_watcher: MakeWatcher = Observer,
    ) -> None:
        """`config` is what the command line says of a build, `command` what runs after each."""
        self._selection = selection
        self._config = replace(config, history=History(project.cache.state_path))
        self._command = command
        self._screen = screen
        self._project = project
        self._inbox: SimpleQueue[str | BuildEnded | events.CommandEnded | int] = SimpleQueue()
        self._detector = ChangeDetector(
            lambda path: self._project.digests.digest(path),
            self._inbox.put,
            lambda: self._project.cache.root,
            now=lambda: self._project.clock.recent(),
            make_watcher=make_watcher,
        )
        self._is_stale = False
        """Whether something changed that no plan has seen yet."""
        self._since = 0.0
        """When the first of that happened; 0 is not yet."""
        self._tools_changed = False
        """Whether a tool changed that was not discovered again yet."""
        self._state: PlanState | None = None
        """The latest plan that was right."""
        self._watched = WatchList(project, None)
        self._problem = ""
        """What is wrong, as long as it is."""
        self._build_thread: BuildThread | None = None
        self._executing: CommandRun | None = None
        self._saves = 0
        self._saved = time.monotonic()
        self._ok = True
        self._signal: int | None = None
        self._resting = False

    def run(self) -> int:
        """Watch until a signal comes; return the exit status that stands for it."""
        _prepare_for_threads()
        with catch_signals(self._inbox.put):
            try:
                self._project.cache.ensure()
                self._plan()
                while self._signal is None:
                    self._step()
            finally:
                self._end()
        return 128 + (self._signal or 0)

    # Waiting.

    def _step(self) -> None:
        """Wait for one thing, and do what it asks for."""
        if not self._resting and self._is_idle():
            self._rest()
        if not self._screen.is_read:
            self._signal = signal.SIGPIPE
            return
        # The hint of a change that came while a plan was made is used up: waiting for the next
        # message here would leave it unbuilt until something else happens.
        now = self._is_stale or self._signal is not None
        self._take_within(0.0 if now else max(0.0, self._detector.next_check - time.monotonic()))
        if (since := self._detector.due()) is not None:
            self._check_files(since)
        if self._signal is None and self._is_stale:
            self._plan()

    def _is_idle(self) -> bool:
        waits = self._is_stale or self._detector.is_hinted
        return self._build_thread is None and self._executing is None and not waits

    def _take_within(self, seconds: float) -> None:
        try:
            self._take(self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait())
            while True:
                self._take(self._inbox.get_nowait())
        except Empty:
            return

    def _take(self, message: str | BuildEnded | events.CommandEnded | int) -> None:
        if isinstance(message, int):
            self._signal = message
        elif isinstance(message, str):
            self._detector.add_hint(message)
        elif isinstance(message, BuildEnded):
            self._built(message)
        else:
            self._executing = None
            self._resting = False
            self._screen.emit(message)

    # Checking.

    def _check_files(self, since: float, *, started: Moment | None = None) -> None:
        """Check everything that is watched, and report what changed; `since` is when that may have
        been, `started` when the latest plan began to read."""
        changes = self._detector.check(self._watched.paths, started=started)
        changed = self._watched.event_of(changes)
        if changed is None:
            return
        self._is_stale = True
        self._since = self._since or since
        self._tools_changed |= TOOLS in changed.parts
        self._saves += 1
        self._resting = False
        self._screen.emit(changed)

    # Planning.

    def _plan(self) -> None:
        """Plan the project as it is, and have the plan built. What is wrong is reported; the last
        plan stays then."""
        self._cancel_command()
        began, started = time.monotonic(), self._project.clock.moment()
        self._saved = self._since or began
        self._is_stale, self._since = False, 0.0
        try:
            with raise_signals():
                state = self._planned()
        except TilusbuildError as error:
            self._report(error)
        else:
            self._take_up(state, time.monotonic() - began)
        self._detector.follow(
            self._watched.paths, self._project.manifest.root, self._project.cache.root
        )
        # What is watched for the first time may have changed after it was read.
        self._check_files(time.monotonic(), started=started)

    def _planned(self) -> PlanState:
        """Return the plan of the project, which is read again unless it was just opened. Raises
        `TilusbuildError`."""
        if self._state is not None or self._problem:
            found = self._project.toolchains.values()
            # A toolkit has more parts than are watched.
            tools = self._tools_changed or any(each.changed() is not None for each in found)
            project = self._project.reread(tools=tools)
            project.cache.ensure()
            self._project, self._tools_changed = project, False
        project = self._project
        renders = project.memo.renders
        # The manifest may declare another level now.
        plan = project.plan(replace(self._selection, level=project.settings.level.value))
        outputs.check(project, plan)
        before = None if self._state is None else self._state.programs
        return PlanState(project, plan, project.memo.renders - renders, before)

    def _take_up(self, state: PlanState, seconds: float) -> None:
        """Have a new plan built, and watch what it read."""
        self._state, self._problem = state, ""
        changed = len(state.programs - (state.before or frozenset()))
        self._screen.emit(events.Replanned(state.plan.size, changed, state.renders, seconds))
        self._build(state)
        self._watched = WatchList(state.project, state)

    def _report(self, error: TilusbuildError) -> None:
        """Report what is wrong, and watch what was read until that was found, too."""
        self._resting = False
        before, self._problem = self._problem, error.render()
        if self._problem != before:
            self._screen.emit(events.Problem(self._problem))
        looked_for = input_paths(self._project, None)
        if isinstance(error, InputError):
            root = self._project.manifest.root
            places = (each.place for each in error.diagnostics if each.place is not None)
            looked_for |= error.looked_for
            looked_for.update(os.path.join(root, place.path) for place in places)
        self._watched = WatchList(self._project, self._state, looked_for)
        if self._build_thread is not None and self._state is not None:
            self._build_thread.replace(self._state)

    # Building.

    def _build(self, state: PlanState) -> None:
        """Build a plan: by the build that runs, if it can."""
        self._resting = False
        if self._build_thread is not None and self._build_thread.replace(state):
            return
        if self._build_thread is not None:
            self._build_thread.abandon()
        # The end of the build before is in the inbox. Taken later, it would be held for the end of
        # the one that is started here.
        self._take_within(0.0)
        jobs = state.project.settings.jobs.value
        self._build_thread = BuildThread(
            state,
            self._selection,
            replace(self._config, jobs=jobs, started_at=self._saved),
            self._screen.building(),
            self._inbox.put,
        )

    def _built(self, built: BuildEnded) -> None:
        self._build_thread = None
        self._resting = False
        self._project.digests.save()
        if built.error is not None and not isinstance(built.error, TilusbuildError):
            raise built.error
        if built.error is not None:
            self._screen.emit(events.Problem(built.error.render()))
        if built.result is not None and Status.CHANGED in built.result.statuses.values():
            self._project.memo.forget()
        if built.state is None or built.state is not self._state:
            return
        self._ok = built.ok
        scripts = tuple(dict.fromkeys(script for script, _ in built.programs))
        seconds = time.monotonic() - self._saved
        ok = built.ok and not self._problem
        count = len(built.programs)
        self._screen.emit(events.Rebuilt(ok, count, scripts, seconds, not self._saves))
        superseded = self._signal is not None or self._is_stale
        if ok and self._command is not None and not superseded:
            self._execute(self._command, scripts)

    def _execute(self, command: str, scripts: Sequence[str]) -> None:
        self._cancel_command()
        project = self._project
        self._screen.emit(events.CommandStarted(command))
        self._executing = CommandRun(
            project.runner,
            command,
            os.getcwd(),
            project.environment,
            scripts,
            lambda line: self._screen.emit(events.Printed(line)),
            self._inbox.put,
        )

    def _cancel_command(self) -> None:
        if self._executing is not None:
            self._executing.cancel()

    # The end.

    def _rest(self) -> None:
        self._resting = True
        ok = self._ok and not self._problem
        self._screen.emit(events.Watching(len(self._watched.paths), ok))
        # Plans that are over are cycles, which the interpreter would let grow to a quarter of all.
        gc.collect()

    def _end(self) -> None:
        self._detector.close()
        if self._build_thread is not None:
            self._build_thread.stop(self._signal or 15)
        self._cancel_command()
        self._screen.close()
