"""Before there is a project: a manifest that cannot be used is shown, the next save tries again.

Only what a save can mend is waited for: an error with a place in a file. A word of the command line
or of the environment that is wrong ends the watch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tilusbuild.builder.project import Project
from tilusbuild.errors import InputError
from tilusbuild.process.stopping import catch_signals
from tilusbuild.state.clock import FileClock, Moment
from tilusbuild.state.files import sha256_file
from tilusbuild.watch import events
from tilusbuild.watch.change_detector import ANYTHING, ChangeDetector
from tilusbuild.watch.dependencies import Dependencies, project_files
from tilusbuild.watch.screen import Screen

_CACHE = ".cache"


def wait_for_manifest(
    open_project: Callable[[], Project], manifest: str, screen: Screen, *, poll: bool
) -> Project | int:
    """Return the project of a manifest, as soon as that can be used; or the signal that came
    before.

    Raises `InputError` for what no save would mend.
    """
    clock = FileClock(os.path.join(os.path.dirname(manifest), _CACHE, "state"))
    began = clock.moment()
    try:
        return open_project()
    except InputError as error:
        _raise_unless_placed(error)
        return _Waiting(open_project, manifest, screen, poll, clock).until_mended(error, began)


def _raise_unless_placed(error: InputError) -> None:
    if not any(diagnostic.place is not None for diagnostic in error.diagnostics):
        raise error


class _Waiting:
    """Waits for a manifest to be mended."""

    def __init__(
        self,
        open_project: Callable[[], Project],
        manifest: str,
        screen: Screen,
        poll: bool,
        clock: FileClock,
    ) -> None:
        self._open = open_project
        self._manifest = manifest
        self._root = os.path.dirname(manifest)
        self._screen = screen
        self._inbox: SimpleQueue[str | int] = SimpleQueue()
        self._clock = clock
        # No cache is known yet; one that lies in a project is mostly this or another hidden one.
        self._cache = os.path.join(self._root, _CACHE)
        self._detector = ChangeDetector(
            sha256_file, self._inbox.put, lambda: self._cache, now=clock.recent, poll=poll
        )
        self._signal: int | None = None

    def until_mended(self, error: InputError, began: Moment) -> Project | int:
        """`began` is when we began to read the manifest."""
        with catch_signals(self._inbox.put):
            try:
                shown = ""
                while True:
                    if (text := error.render()) != shown:
                        self._screen.emit(events.Problem(text))
                    shown = text
                    if not self._changed(began):
                        return self._signal or 0
                    began = self._clock.moment()
                    try:
                        return self._open()
                    except InputError as again:
                        _raise_unless_placed(again)
                        error = again
            finally:
                self._detector.close()

    def _changed(self, began: Moment) -> bool:
        """Wait for a change in the project since it was read; False when a signal came instead."""
        paths = project_files(self._root, self._cache) | {self._manifest}
        dependencies = {ANYTHING: Dependencies(paths)}
        self._detector.follow(set(paths), self._root, self._cache)
        found = self._detector.check(dependencies, started=began)
        if not found.parts:
            self._screen.emit(events.Watching(len(paths), self._detector.polling, False))
        while not found.parts:
            self._wait()
            if self._signal is not None:
                return False
            if self._detector.due() is not None:
                found = self._detector.check(dependencies)
        self._screen.emit(found.event(self._root))
        return True

    def _wait(self) -> None:
        try:
            message = self._inbox.get(
                timeout=max(0.0, self._detector.next_check - time.monotonic())
            )
        except Empty:
            return
        if isinstance(message, int):
            self._signal = message
        else:
            self._detector.add_hint(message)
