"""What a program costs in system calls, by the difference of two builds that differ in nothing but
the number of programs. Counts, not times: a look more at each program is a tenth of a large build
with nothing to do, and a new inode half a millisecond where they are searched for."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.processes import run_to_end
from tilusbuild import noop

DIRECTORY = Path(__file__).resolve().parents[2] / "benchmarks"
FEW, MORE = 20, 40

COUNTING = """
import os
COUNTS = dict.fromkeys(("looks", "opens", "directories"), 0)
def counted(name, kind):
    real = getattr(os, name)
    def call(*words, **more):
        COUNTS[kind] += 1
        return real(*words, **more)
    setattr(os, name, call)
counted("stat", "looks"), counted("lstat", "looks"), counted("open", "opens")
counted("mkdir", "directories")
"""


@pytest.fixture(scope="module")
def projects() -> ModuleType:
    """The module that makes the benchmarks' projects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DIRECTORY))
        return importlib.import_module("_projects")


class Built:
    """A build from nothing by a compiler that starts no process, and what its threads called."""

    def __init__(self, projects: ModuleType, directory: Path, programs: int) -> None:
        self.root = directory / str(programs)
        nvcc = projects.fake_toolkit(self.root / "toolkit")
        projects.project(self.root / "project", programs, nvcc)
        code = projects.FILL.replace("JOBS", "1").replace("SYNC", "True").replace("LIKE", "''")
        code = f"{COUNTING}{code}\nprint(json.dumps(COUNTS))"
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "xdg")}
        words = [sys.executable, "-c", code]
        where = self.root / "project"
        ran = run_to_end(words, cwd=where, env=environment)
        filled, counts = ran.stdout.splitlines()
        assert int(filled.split()[0]) == programs
        self.counts: dict[str, int] = json.loads(counts)


@pytest.fixture(scope="module")
def builds(projects: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILUSBUILD_SANDBOX", "0")
        directory = tmp_path_factory.mktemp("builds")
        return Built(projects, directory, FEW), Built(projects, directory, MORE)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        # Of each file: its permissions, its size after the rename, for the script, for the record.
        ("looks", 4 * 7 + 16),
        # Of each file: written by us, hashed, synced; the rest are directories, locks, meta.json.
        ("opens", 3 + 7 + 8 + 17),
        # The entry, its `module`, and where both are made; that of all programs, which is there.
        ("directories", 4),
    ],
)
def test_a_program_built_from_nothing(builds: tuple[Built, Built], kind: str, most: float) -> None:
    few, more = (build.counts[kind] for build in builds)
    assert (more - few) / (MORE - FEW) <= most


def test_a_program_with_nothing_to_do(builds, monkeypatch) -> None:
    looked, stat = [], os.stat
    for build in builds:
        (path,) = (build.root / "xdg/tilusbuild/records").iterdir()
        data = path.read_bytes()
        names: list[str] = []

        def look(name: str, names: list[str] = names) -> os.stat_result:
            names.append(name)
            return stat(name)

        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", look)
            key, _, variables = map(bytes, noop.split_pieces(data)[:3])
            asked = [word.partition("=") for word in variables.decode().split("\0") if "=" in word]
            environment = {name: value for name, _, value in asked}
            assert noop.check_record(data, key, environment) is not None
        looked.append(len(names))
    # Its directory, `module`, the library: each shows what the others do not.
    assert (looked[1] - looked[0]) / (MORE - FEW) == 3
