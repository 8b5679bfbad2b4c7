"""Several processes build into one real cache and some are killed; a journal tells who compiled."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.paths import TESTS
from tilusbuild.cache.tree import Tree
from tilusbuild.cache.verify import verify_cache

_BUILDER = """
import os, sys, time
from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.tree import Tree
from tilusbuild.engine.running import BuildConfig
from tilusbuild.engine.build import build_jobs
from support.fake_engine import FakeJob, Listener, built, failed

root, journal, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Compiler:
    def compile(self, job, work, stage):
        note(f"start {job.index}")
        time.sleep(0.003)
        os.makedirs(os.path.join(stage.path, "module"))
        if job.index % 10 == 7:
            return failed()
        with open(os.path.join(stage.path, "module", "lib.so"), "w") as file:
            file.write(job.text)
        return built()

    def cancel(self):
        pass

def note(line):
    handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\\n".encode())
    os.close(handle)

jobs = [FakeJob(f"tilusbuild program 1\\njob {i}", index=i) for i in range(count)]
result = build_jobs(jobs, BuildStore(Tree(root)), Compiler(), Listener(), BuildConfig(jobs=3))
summary = result.summary
print(summary.compiled, summary.attempts)
sys.exit(summary.exit_status)
"""


def start(tmp_path: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            _BUILDER,
            str(tmp_path / "cache"),
            str(tmp_path / "log"),
            str(count),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )


def compiles(tmp_path: Path) -> Counter[str]:
    log = tmp_path / "log"
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


def test_eight_builders_at_once_compile_each_program_once(tmp_path: Path) -> None:
    builders = [start(tmp_path, 80) for _ in range(8)]
    answers = [builder.communicate()[0].split() for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * 8
    assert compiles(tmp_path) == {f"start {i}": 1 for i in range(80)}
    assert sum(int(compiled) for compiled, _ in answers) == 72
    assert verify_cache(Tree(str(tmp_path / "cache"))) == []
