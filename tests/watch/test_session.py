"""A session on the test's own thread: what happens between two steps is the test's to say."""

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tilusbuild.builder.project import Project
from tilusbuild.engine.events import Event, Reporter
from tilusbuild.engine.running import BuildConfig
from tilusbuild.plan.model import PlanSelection
from tilusbuild.watch import change_detector, events
from tilusbuild.watch.observer import Observer
from tilusbuild.watch.screen import Screen
from tilusbuild.watch.session import Session


class _EnoughError(Exception):
    """The test has seen what it waited for."""


class Hints(Observer):
    """An observer that tells what the test says."""

    def __init__(self) -> None: ...

    def __call__(self, hint: Callable[[str], None], ignored: Callable[[], str]) -> "Hints":
        self.hint = hint
        return self

    def watch_roots(self, watch_roots: Mapping[str, bool]) -> None: ...

    def close(self) -> None: ...


class Eye(Screen):
    """A screen that notes what it is told, and lets the test act at each event and build."""

    def __init__(self) -> None:
        super().__init__(
            reporter=lambda: _Silent(),
            stderr=io.StringIO(),
            json=None,
            terminal=False,
            quiet=True,
            verbose=False,
            clear=False,
        )
        self.said: list[Event] = []
        self.at_rest: list[Callable[[], None]] = []
        self.at_build: list[Callable[[], None]] = []
        self.at_problem: list[Callable[[], None]] = []

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.said.append(event)
        if isinstance(event, events.Problem) and self.at_problem:
            self.at_problem.pop(0)()
        if isinstance(event, events.Watching):
            if not self.at_rest:
                raise _EnoughError
            self.at_rest.pop(0)()

    def start_display(self) -> Reporter:
        if self.at_build:
            self.at_build.pop(0)()
        return super().start_display()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.said if isinstance(event, kind)]


class _Silent:
    def emit(self, event: Event, /) -> None: ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def eye() -> Iterator[Eye]:
    # What never comes to rest would wait for ever: a signal ends it, which no test expects.
    timer = threading.Timer(90, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    yield Eye()
    timer.cancel()


def watched(project: Any, eye: Eye, hints: Hints) -> None:
    """Watch until the last thing that the test has to do was done, and it is at rest again."""
    with Project.open(str(project.directory), {"jobs": 2}, os.environ) as opened:
        selection = PlanSelection((), (), opened.settings.level.value)
        session = Session(opened, selection, BuildConfig(), eye, make_observer=hints)
        with pytest.raises(_EnoughError):
            session.run()


def test_a_save_while_a_build_begins_is_planned_at_once(
    project: Any, eye: Eye, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_detector, "QUIET", 0.0)
    hints = Hints()

    def save(note: str) -> None:
        project.kernel("scale", note)
        hints.hint(str(project.directory / "kernels/scale.cu.j2"))

    def begin() -> None:
        eye.said.clear()
        eye.at_build = [lambda: save("second")]
        save("first")

    eye.at_rest = [begin]
    watched(project, eye, hints)
    assert len(eye.of(events.Changed)) == 2
    assert [event.ok for event in eye.of(events.Watching)] == [True]
    summary = project.build(status=None)
    assert (summary["compiled"], summary["exit_status"]) == (0, 0)


def test_a_save_while_the_first_mistake_is_printed_is_seen(project: Any, eye: Eye) -> None:
    """No file was looked at before: that this one is another than was planned is known by when."""
    right = (project.directory / "tilus.toml").read_text()
    project.write("b.cpp", "int b;\n")
    library = '[library.b]\nsources = ["b.cpp"]\nkind = "static"\noutput = "b.cpp"\n'
    project.save("tilus.toml", right + library)
    eye.at_problem = [lambda: project.save("tilus.toml", right)]
    watched(project, eye, Hints())
    assert [event.ok for event in eye.of(events.Watching)] == [True]
