"""Before there is a project: a manifest that cannot be used is shown, the next save tries again.

Only what a save can mend is waited for: an error with a place in a file. A word of the command line
or of the environment that is wrong ends the watch. It is not known yet where the cache is and what
is read, so that all files of the project are looked at, by the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tilusbuild.builder.project import Project
from tilusbuild.errors import InputError
from tilusbuild.process.stopping import catch_signals
from tilusbuild.state.clock import FileClock
from tilusbuild.state.files import sha256_file
from tilusbuild.watch import events
from tilusbuild.watch.change_detector import ANYTHING, INTERVAL, Detected, PathStates
from tilusbuild.watch.dependencies import project_files
from tilusbuild.watch.screen import Screen

_CACHE = ".cache"


def wait_for_manifest(
    open_project: Callable[[], Project], manifest: str, screen: Screen
) -> Project | int:
    """Return the project of a manifest, as soon as that can be used; or the signal that came
    before.

    Raises `InputError` for what no save would mend.
    """
    root = os.path.dirname(manifest)
    cache = os.path.join(root, _CACHE)
    clock = FileClock(os.path.join(cache, "state"))
    states = PathStates(sha256_file, clock.recent)
    shown = ""
    while True:
        began = clock.moment()
        try:
            return open_project()
        except InputError as error:
            if not any(diagnostic.place is not None for diagnostic in error.diagnostics):
                raise
            text = error.render()
        if text != shown:
            screen.emit(events.Problem(text))
        shown = text
        paths = project_files(root, cache) | {manifest}
        changes = states.check(sorted(paths), since=began, read=paths)
        if not changes:
            screen.emit(events.Watching(len(paths), False))
        signals: SimpleQueue[int] = SimpleQueue()
        with catch_signals(signals.put):
            while not changes:
                try:
                    return signals.get(timeout=INTERVAL)
                except Empty:
                    paths = project_files(root, cache) | {manifest}
                    changes = states.check(sorted(paths))
        screen.emit(Detected({ANYTHING: list(changes)}, changes).event(root))
