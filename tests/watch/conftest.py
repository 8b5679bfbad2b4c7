"""Projects that are watched by a real `tilusbuild watch`, with a compiler that takes milliseconds.

`watch(project, …)` starts one whose events a test waits for: nothing here sleeps to be in time.
"""

import contextlib
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.nvcc_journal import UNHELD, make_toolkit
from support.processes import Watched
from support.project import Project
from support.trees import published

TEMPLATE = """\
{{% include "kernels/common.j2" %}}
#include "all.h"
// {note}
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {{
  y[0] = a * x[0] * {{{{ unroll }}}};
}}
"""

_SCRIPT = """\
[script.{name}]
template = "kernels/{name}.cu.j2"
kernel = "scale"
targets = ["gpu"]
default = {{ unroll = {default} }}
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
launch = {{ grid = ["cdiv(n, 256)"], block = [256] }}
space.unroll = {{ range = [1, {schedules}] }}
"""


def manifest(nvcc: str, *names: str, schedules: int = 3, default: int = 2) -> str:
    head = (
        'edition = 1\n[project]\nname = "p"\nversion = "0.1.0"\n'
        '[build]\ncache-dir = ".cache"\ninclude-dirs = ["first", "include"]\n'
        f'[toolchain]\nnvcc = "{nvcc}"\n[target.gpu]\narch = "sm_80"\n'
    )
    scripts = (_SCRIPT.format(name=n, schedules=schedules, default=default) for n in names)
    return head + "".join(scripts)


FILES = {
    "kernels/common.j2": "// common\n",
    "include/all.h": '#include "part.h"\n',
    "include/part.h": "// part\n",
    "first/other.h": "",
}


@dataclass
class WatchedProject(Project):
    """A project whose compiler is `nvcc`."""

    nvcc: str = ""

    def save(self, name: str, text: str) -> None:
        """As editors do: write beside, rename."""
        path = self.directory / name
        beside = path.with_name(f"{path.name}~")
        beside.write_text(text)
        os.replace(beside, path)

    def kernel(self, name: str, note: str) -> None:
        self.save(f"kernels/{name}.cu.j2", TEMPLATE.format(note=note))

    def manifest(self, *names: str, **more: int) -> None:
        self.save("tilus.toml", manifest(self.nvcc, *names, **more))

    def declare(self, name: str) -> None:
        """One script more than the manifest has."""
        before = (self.directory / "tilus.toml").read_text()
        self.save("tilus.toml", before + _SCRIPT.format(name=name, schedules=4, default=2))

    def events(self, *words: str) -> list[dict[str, Any]]:
        """The lines of the JSON of a command that ends."""
        return self.run(*words, "--json", status=None).events

    def tree(self) -> dict[str, bytes | str]:
        """What the cache has of programs, headers and scripts, byte for byte."""
        return published(self.cache)

    @property
    def roots(self) -> list[Any]:
        """What the index says was built last, without where the manifest lies."""
        index = json.loads((self.cache / "index.json").read_bytes())
        projects = index["projects"].values()
        for project in projects:
            del project["origin"][""]  # the manifest's inodes and time: no copy has them
        return list(projects)


class Watch:
    """A `tilusbuild watch --json` that runs."""

    def __init__(self, project: WatchedProject, *words: str) -> None:
        self.processes = Watched(project.directory)
        project.environment |= self.processes.environment
        self.process = project.start("watch", "--json", "-j", "2", *words)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=r) for r in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.errors.extend(stream)

    def until(self, *names: str, **values: Any) -> list[dict[str, Any]]:
        """Everything said until an event of such a name, which says these values."""
        events: list[dict[str, Any]] = []
        while True:
            try:
                event = self._events.get(timeout=90)
            except queue.Empty:
                pytest.fail(
                    f"never said: {names} {values}; said {events[-8:]}; {self.errors[-20:]}"
                )
            if event is None:
                pytest.fail(f"it has ended: {events[-8:]} {''.join(self.errors)}")
            events.append(event)
            matches = all(event.get(name) == value for name, value in values.items())
            if event["event"] in names and matches:
                return events

    def rest(self) -> list[dict[str, Any]]:
        """Everything said until it waits again."""
        return self.until("watching")

    def quiet(self, seconds: float) -> list[dict[str, Any]]:
        """Everything said until nothing was for so long."""
        events = []
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get(timeout=seconds)) is not None:
                events.append(event)
        return events

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        for reader in self._readers:
            reader.join(60)
        return status


@pytest.fixture(autouse=True)
def unheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in compiler writes a journal, which the sandbox of a compile forbids."""
    for name, value in UNHELD.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_toolkit(str(tmp_path_factory.mktemp("toolkit")))


@pytest.fixture
def new_project(tmp_path: Path, nvcc: str) -> Callable[..., WatchedProject]:
    def make(*names: str, directory: str = "project", **more: int) -> WatchedProject:
        project = WatchedProject(tmp_path / directory, dict(UNHELD), nvcc=nvcc)
        kernels = {f"kernels/{name}.cu.j2": TEMPLATE.format(note="as it began") for name in names}
        project.write_all({**FILES, **kernels})
        project.manifest(*names, **more)
        return project

    return make


@pytest.fixture
def project(new_project: Callable[..., WatchedProject]) -> WatchedProject:
    """`scale` and `add`, with three schedules each."""
    return new_project("scale", "add")


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(project: WatchedProject, *words: str) -> Watch:
        started.append(Watch(project, *words))
        return started[-1]

    yield start
    for session in started:
        if session.process.poll() is None:
            assert session.interrupt() == 130
        session.processes.assert_none()
        assert "Traceback" not in "".join(session.errors), "".join(session.errors)


@pytest.fixture
def watching(project: WatchedProject, watch: Callable[..., Watch]) -> Watch:
    """A watch of `project` that has built everything and waits."""
    started = watch(project)
    started.rest()
    return started
