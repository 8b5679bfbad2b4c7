"""Projects to build, and the command line to build them with, each command a process of its own.

`new_project` makes a small project in a folder; its `run` and `build` call `python -m tilusbuild`
there. `fake_cuda` is a CUDA toolkit that is fast, journaled and misbehaves when a template tells it
to (`tests/fakes`). What needs root, or another file system, skips with its reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TEMPLATE = """\
{# y = a * x #}
constexpr int unroll = {{ unroll }};
{% if target.kind == "cpu" %}
extern "C" void scale(float a, const float *x, float *y, long long n) {
  for (long long i = 0; i < n; ++i) y[i] = a * x[i];
}
{% else %}
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
{% endif %}
"""
"""Of the script `scale`, whose only parameter is `unroll`."""

REFERENCE = """\
import numpy as np


def scale(a, x, y):
    return np.float32(a) * x
"""

_SCRIPT = """\
[script.{name}]
template = "kernels/{name}.cu.j2"
kernel = "scale"
targets = ["{target}"]
args = {{ a = "f32", x = "f32*[n]", y = {{ type = "f32*[n]", out = true }}, n = "i64" }}
launch = {{ grid = ["cdiv(n, 256)"], block = [256] }}
{more}
[script.{name}.space]
unroll = {{ range = [1, {schedules}] }}
"""


def script(name: str = "scale", *, target: str = "cpu", schedules: int = 2, more: str = "") -> str:
    """The tables of a script; `more` are further lines of its first table."""
    return _SCRIPT.format(name=name, target=target, schedules=schedules, more=more)


def manifest(*scripts: str, build: str = "") -> str:
    """A whole manifest with a target for the host and one for a GPU; `build` goes in `[build]`."""
    return (
        'edition = 1\n\n[project]\nname = "p"\nversion = "0.1.0"\n\n'
        f'[build]\ncache-dir = ".cache"\n{build}\n\n'
        '[target.cpu]\narch = "cpu"\n\n[target.gpu]\narch = "sm_80"\n\n'
    ) + "\n".join(scripts or [script()])


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        last = self.events[-1]
        assert last["event"] == "summary"
        return last


@dataclass
class Project:
    """A project in a folder, built into `cache`, with variables added to the environment."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """Words in front of each command line, as of `setpriv`."""

    @property
    def cache(self) -> Path:
        return self.folder / ".cache"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        """The command, running, in a session of its own; its output is kept as text."""
        env = {**os.environ, **self.environment}
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
        command = [*self.before, sys.executable, "-m", "tilusbuild", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, start_new_session=True, **how
        )

    def run(self, *words: str, status: int | None = 0) -> Ran:
        """The command, ended with this exit status; None is any."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        assert status in (None, process.returncode), f"{process.returncode}:\n{out}\n{err}"
        return Ran(process.returncode, out, err)

    def build(self, *words: str, status: int | None = 0) -> dict[str, Any]:
        """The summary of a build."""
        return self.run("build", "--json", *words, status=status).summary

    def compiled(self, *words: str) -> int:
        """How many programs a build that succeeds compiles."""
        count: int = self.build(*words)["attempts"]
        return count

    @property
    def programs(self) -> dict[str, Path]:
        """The program folders in the cache by their names."""
        return {path.name: path for path in sorted(self.cache.glob("programs/*"))}

    @property
    def libraries(self) -> dict[str, bytes]:
        """The bytes of each lib.so by its program."""
        found = {name: path / "module" / "lib.so" for name, path in self.programs.items()}
        return {name: path.read_bytes() for name, path in found.items() if path.exists()}

    def copy(self, folder: Path, *, cache: bool) -> Project:
        """The same project elsewhere, with or without what it has built."""
        ignored = None if cache else shutil.ignore_patterns(".cache")
        shutil.copytree(self.folder, folder, symlinks=True, ignore=ignored)
        return Project(folder, dict(self.environment), self.before)


@dataclass(frozen=True)
class FakeCuda:
    """A toolkit of one test."""

    nvcc: str
    fake: ModuleType

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_HOME": os.path.dirname(os.path.dirname(self.nvcc))}

    def most_at_once(self) -> int:
        """How many compiles have run at the same time."""
        most: int = self.fake.most_at_once(self.nvcc)
        return most

    @property
    def compiles(self) -> Counter[str]:
        """How often each program was given to the compiler, by the journal's key."""
        counted: Counter[str] = self.fake.compiles(self.nvcc)
        return counted


class Examples:
    """What tests write projects with."""

    template = TEMPLATE
    reference = REFERENCE
    manifest = staticmethod(manifest)
    script = staticmethod(script)


@pytest.fixture(scope="session")
def examples() -> type[Examples]:
    return Examples


NewProject = Callable[..., Project]


@pytest.fixture
def new_project(tmp_path: Path) -> NewProject:
    """new_project(manifest_text, files={…}, folder="project") writes a project."""

    def make(
        text: str | None = None,
        files: Mapping[str, str] = {"kernels/scale.cu.j2": TEMPLATE},
        folder: str | Path = "project",
        **environment: str,
    ) -> Project:
        project = Project(tmp_path / folder, environment)
        project.write("tilus.toml", manifest() if text is None else text)
        for name, content in files.items():
            project.write(name, content)
        return project

    return make


@pytest.fixture
def project(new_project: NewProject) -> Project:
    """`scale` for the host, with two schedules."""
    return new_project()


@pytest.fixture(scope="session")
def _fake_toolkit(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Path]:
    path = os.path.join(os.path.dirname(__file__), "..", "fakes", "nvcc_journal.py")
    spec = importlib.util.spec_from_file_location("e2e_nvcc_journal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("toolkit")
    module.make_toolkit(str(folder))
    return module, folder


@pytest.fixture
def fake_cuda(_fake_toolkit: tuple[ModuleType, Path], tmp_path: Path) -> FakeCuda:
    """A toolkit with an empty journal."""
    fake, made = _fake_toolkit
    folder = shutil.copytree(made, tmp_path / "toolkit")
    return FakeCuda(str(folder / "bin" / "nvcc"), fake)


@pytest.fixture
def root() -> None:
    """Skips where this is not the superuser's process."""
    if os.geteuid() != 0:
        pytest.skip("only root can do this")


@pytest.fixture
def mounts(root: None) -> None:
    """Skips where no mount can be made in a namespace of one's own."""
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    if tried.returncode:
        pytest.skip("this machine lets root mount nothing")


class Watched:
    """The processes that carry a mark in their environment, or live below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.fsencode(folder)
        self.mark = f"E2E_MARK={folder}".encode()

    def alive(self) -> list[str]:
        return [words for pid, words in _processes() if self._is_ours(pid)]

    def assert_none(self) -> None:
        """Nothing of it goes on; what was killed is given the time that the kernel needs."""
        for _ in range(500):
            if not self.alive():
                return
            time.sleep(0.01)
        pytest.fail(f"still running: {self.alive()}")

    def _is_ours(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                if self.mark in file.read().split(b"\0"):
                    return True
            places = [os.fsencode(os.readlink(f"/proc/{pid}/{name}")) for name in ("cwd", "exe")]
            return any(place.startswith(self.folder) for place in places)
        return False


def _processes() -> Iterator[tuple[int, str]]:
    """Every process that runs but this one: its number and its command line."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().replace(b"\0", b" ").decode(errors="replace")
                if words:
                    yield int(name), words


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Processes of this test, which at the end are none: give `environment` to what it starts."""
    watching = Watched(tmp_path)
    yield watching
    watching.assert_none()


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, Sequence[object]]]:
    """tree(folder): everything below with kind, size and times, to compare before and after."""

    def listing(folder: Path) -> dict[str, Sequence[object]]:
        found: dict[str, Sequence[object]] = {}
        for where, folders, files in os.walk(folder):
            for path in (where, *(os.path.join(where, name) for name in (*folders, *files))):
                stat = os.lstat(path)
                found[os.path.relpath(path, folder)] = (
                    stat.st_mode,
                    stat.st_size if not os.path.isdir(path) else 0,
                    stat.st_mtime_ns,
                    stat.st_ctime_ns,
                    stat.st_ino,
                )
        return found

    return listing


@pytest.fixture(scope="session")
def kill_group() -> Callable[[subprocess.Popen[str], int], None]:
    """Sends a signal to all processes of a group that `start` made."""

    def send(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    return send
