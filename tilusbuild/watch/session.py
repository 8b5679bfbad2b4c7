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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.engine.history import History
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import InputError, TilusbuildError
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import ProgramJob
from tilusbuild.process.stopping import catch_signals
from tilusbuild.state.clock import Moment
from tilusbuild.toolchain import Toolchain
from tilusbuild.watch import events
from tilusbuild.watch.background import BuildEnded, BuildThread, CommandRun
from tilusbuild.watch.change_detector import ChangeDetector, MakeWatcher
from tilusbuild.watch.dependencies import Dependencies, Part, project_files
from tilusbuild.watch.observer import Observer
from tilusbuild.watch.replan import PlanState, Replanner
from tilusbuild.watch.screen import Screen

_PATIENCE = 5.0
"""Seconds of changes without an end after which a plan is finished all the same."""
_SWITCH = 0.0005
"""Seconds after which a thread gives the interpreter to another one."""
_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


class _SupersededError(Exception):
    """Something changed while a plan was made."""


class _StoppedError(Exception):
    """A signal came while a plan was made."""


class _Broken(Struct):
    """What is wrong, as long as it is."""

    text: str
    wider: Dependencies
    """What counts as a change meanwhile: every file of the project."""
    news: bool = False
    """Whether something changed since it was reported."""


def _prepare_for_threads() -> None:
    """Change two settings of the whole process, for many threads that come and go."""
    # A compiler's thread asks for the interpreter at every system call while another one renders;
    # with the usual 5 ms each, the first compile would start when the last rendering is done.
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
        self._replanner = Replanner(selection, self._found, self._raise_if_superseded)
        self._detector = ChangeDetector(
            lambda path: self._project.digests.digest(path),
            self._inbox.put,
            lambda: self._project.cache.root,
            now=lambda: self._project.clock.recent(),
            make_watcher=make_watcher,
        )
        self._pending: set[Part] = set()
        """What changed and no plan has seen yet."""
        self._since = 0.0
        """When the first of that happened, or the first after something was wrong; 0 is not yet."""
        self._state: PlanState | None = None
        self._broken: _Broken | None = None
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
            except _StoppedError:
                pass
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
        # A change that came while a plan was made is in `_pending`, and its hint is used up:
        # waiting for the next message here would leave it unbuilt until something else happens.
        now = self._wants_plan() or self._signal is not None
        self._take_within(0.0 if now else max(0.0, self._detector.next_check - time.monotonic()))
        self._check_if_due()
        if self._signal is None and self._wants_plan():
            self._plan()

    def _is_idle(self) -> bool:
        waits = self._wants_plan() or self._detector.is_hinted
        return self._build_thread is None and self._executing is None and not waits

    def _wants_plan(self) -> bool:
        """Return whether there is something to plan, and it may be planned now."""
        return bool(self._pending) and (self._broken is None or self._broken.news)

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

    def _check_if_due(self) -> bool:
        """Check the files when it is time to; return whether there was a change."""
        since = self._detector.due()
        return since is not None and self._check_files(since)

    def _check_files(self, since: float, *, started: Moment | None = None) -> bool:
        """Check everything; `started` is when the plan began to read it."""
        wider = self._broken.wider if self._broken is not None else None
        seen = self._detector.check(self._needs(), wider, started=started)
        if not seen.parts:
            return False
        self._since = self._since or since
        self._pending.update(seen.parts)
        self._saves += 1
        if self._broken is not None:
            self._broken.news = True
        self._resting = False
        self._screen.emit(seen.event(self._project.manifest.root))
        return True

    def _needs(self) -> dict[Part, Dependencies]:
        return self._state.dependencies if self._state is not None else {}

    def _watched(self) -> set[str]:
        paths = {path for each in self._needs().values() for path in each.paths}
        return paths | (self._broken.wider.paths if self._broken is not None else set())

    def _follow(self) -> None:
        root = self._project.manifest.root
        self._detector.follow(self._watched(), root, self._project.cache.root)

    # Planning.

    def _plan(self) -> None:
        """Plan what is pending, and have it built."""
        self._cancel_command()
        if self._broken is not None:
            self._broken.news = False
        began, started = time.monotonic(), self._project.clock.moment()
        self._saved = self._since or began
        dirty = set(self._pending)
        before = self._state
        try:
            if before is None:
                if dirty:
                    self._project = self._project.reread(tools=True)
                state = self._replanner.first(self._project)
            else:
                state = self._replanner.again(before, dirty)
        except _SupersededError:
            return
        except TilusbuildError as error:
            self._no_plan(error, started)
            return
        self._state, self._project = state, state.project
        self._pending, self._since = set(state.wrong), 0.0
        self._screen.emit(
            events.Replanned(
                programs=state.plan.size,
                changed=len(state.programs - (before.programs if before else set())),
                renders=state.renders,
                seconds=time.monotonic() - began,
            )
        )
        if state.problems:
            self._wrong(InputError(*state.problems))
        else:
            self._broken = None
        self._build(state)
        self._follow()
        # What is watched for the first time may have changed after it was read.
        self._check_files(time.monotonic(), started=started)

    def _no_plan(self, error: TilusbuildError, started: Moment) -> None:
        """Report why there is no new plan; the last one stays. A save since it was `started` may
        have mended it."""
        self._since = 0.0
        self._wrong(error)
        if self._build_thread is not None and self._state is not None:
            self._build_thread.replace(self._state)
        elif self._build_thread is not None:
            self._build_thread.abandon()
        self._follow()
        self._check_files(time.monotonic(), started=started)

    def _wrong(self, error: TilusbuildError) -> None:
        """Report what is wrong; until it is fixed every change in the project counts."""
        before = self._broken
        self._resting = False
        project = self._project
        paths = {project.manifest.path, *project_files(project.manifest.root, project.cache.root)}
        if isinstance(error, InputError):
            named = (d.place.path for d in error.diagnostics if d.place is not None)
            paths.update(os.path.join(project.manifest.root, path) for path in named)
        self._broken = _Broken(error.render(), Dependencies(frozenset(paths)))
        if before is None or self._broken.text != before.text:
            self._screen.emit(events.Problem(self._broken.text))

    def _found(self, job: ProgramJob, instead: str | None) -> None:
        """Have a new program built while the others are still planned."""
        if self._state is None and self._build_thread is None:
            # The first plan is built as a whole: it knows the defaults and the longest programs,
            # and a program that is started as soon as it is found would start before them.
            return
        toolchain = job.planned.spec.toolchain
        if self._build_thread is None:
            self._start(self._project, [toolchain])
        building = self._build_thread
        if building is not None and building.can_build(self._project, [toolchain]):
            building.want(job, instead)

    def _raise_if_superseded(self) -> None:
        """Called between two renderings: give the plan up when something has changed meanwhile."""
        self._take_within(0.0)
        if self._signal is not None:
            raise _StoppedError
        lasts = time.monotonic() - (self._since or time.monotonic())
        if self._detector.is_hinted and lasts < _PATIENCE and self._check_if_due():
            raise _SupersededError

    # Building.

    def _start(self, project: Project, toolchains: Iterable[Toolchain]) -> BuildThread:
        self._resting = False
        self._build_thread = BuildThread(
            project,
            toolchains,
            self._selection,
            replace(self._config, jobs=project.settings.jobs.value, started_at=self._saved),
            self._screen.building(),
            self._inbox.put,
        )
        return self._build_thread

    def _build(self, state: PlanState) -> None:
        building = self._build_thread
        tools = state.toolchains.values()
        if building is not None and not building.can_build(state.project, tools):
            building.abandon()
            building = None
        if building is None or not building.replace(state):
            if building is not None:
                building.join()
            # The end of the build before is in the inbox. Taken later, it would be held for the end
            # of the one that is started here.
            self._take_within(0.0)
            self._start(state.project, tools).replace(state)

    def _built(self, built: BuildEnded) -> None:
        self._build_thread = None
        self._resting = False
        self._project.digests.save()
        if built.error is not None and not isinstance(built.error, TilusbuildError):
            raise built.error
        if built.error is not None:
            self._screen.emit(events.Problem(built.error.render()))
        if built.state is None or built.state is not self._state:
            return
        self._ok = built.ok
        scripts = tuple(dict.fromkeys(script for script, _ in built.programs))
        seconds = time.monotonic() - self._saved
        ok = built.ok and self._broken is None
        count = len(built.programs)
        self._screen.emit(events.Rebuilt(ok, count, scripts, seconds, not self._saves))
        superseded = self._signal is not None or bool(self._pending)
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
        ok = self._ok and self._broken is None
        self._screen.emit(events.Watching(len(self._watched()), ok))
        # Plans that are over are cycles, which the interpreter would let grow to a quarter of all.
        gc.collect()

    def _end(self) -> None:
        self._detector.close()
        if self._build_thread is not None:
            self._build_thread.stop(self._signal or 15)
        self._cancel_command()
        self._screen.close()
