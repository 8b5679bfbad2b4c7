"""A build of many programs with nothing to do looks at what was compiled, and not for every file
that somebody may have deleted by hand: docs/cache.md says who finds that, and how it comes back."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from support import scale
from support.processes import run_python, run_to_end
from support.project import Project, head, needs_cxx
from tilusbuild.state.stamp import COARSE_TICK

FEW_ARE_MANY = """\
import sys
from tilusbuild.builder import noop_record
from tilusbuild.cli.main import main
noop_record.MAX_CHECKED_DIRECTORIES = 2
sys.exit(main(["build"]))
"""
"""A build to which three programs are many."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Three programs, to be copied."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("many") / "project")
    project.write("tilus.toml", scale.manifest(scale.script(schedules=3)))
    project.write("kernels/scale.cu.j2", scale.TEMPLATE)
    project.build()
    return project


@pytest.fixture
def project(compiled: Project, tmp_path: Path) -> Project:
    """Three programs, and a record of a build of many."""
    project_copy = compiled.copy(tmp_path / "project")
    build_many(project_copy)
    return project_copy


def build_many(project: Project) -> str:
    command = [sys.executable, "-c", FEW_ARE_MANY]
    environment = {**os.environ, **project.environment}
    ran = run_to_end(command, cwd=project.directory, env=environment)
    return ran.stderr


def test_what_was_compiled_comes_back_by_the_same_command(project: Project) -> None:
    for path, part in zip(project.programs.values(), ("module/lib.so", "module", ""), strict=True):
        gone = path / part
        gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    build_many(project)
    assert project.run("cache", "verify").status == 0
    assert "nothing to do" in build_many(project)


@pytest.mark.parametrize("then", ["the manifest is touched", "verify advises"])
def test_another_file_comes_back_by_a_plan_or_as_verify_says(project: Project, then: str) -> None:
    names = ("meta.json", "options.txt", "module/source.cu")
    for path, name in zip(project.programs.values(), names, strict=True):
        (path / name).unlink()
    assert "nothing to do" in build_many(project)
    if then == "verify advises":
        output = project.run("cache", "verify", status=1).out
        for path in project.programs.values():
            assert f"programs/{path.name}" in output
            shutil.rmtree(path)
    else:
        (project.directory / "tilus.toml").touch()
    build_many(project)
    assert project.run("cache", "verify").status == 0


# What a build after a template's edit imports and starts: no more than rendering takes.
MANIFEST = (
    head()
    + """\
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
args = { x = "f32*[n]", n = "i64" }
launch = { grid = ["cdiv(n, 256)"], block = [256] }
space.unroll = [1]
"""
)
TEMPLATE = 'extern "C" void scale(float *x, long long n) { x[0] = {{ unroll }}; }\n'
BUILD = """\
import json, os, sys
started = []
sys.addaudithook(lambda event, _: event in ("os.posix_spawn", "os.fork", "subprocess.Popen")
                 and started.append(event))
from tilusbuild.manifest import memo
memo.A_MINUTE = 0  # our own code may have been edited just now
from tilusbuild.cli.main import main
status = main(["build", "--json"])
print(json.dumps([status, sorted(sys.modules), started]))
"""

NOT_NEEDED = [
    "numpy", "pydantic", "pydantic_core", "importlib.metadata", "rich", "tomli", "tomllib",
    "watchdog", "subprocess", "zstandard", "tvm_ffi", "asyncio", "multiprocessing",
    "difflib", "tilusbuild.binary", "tilusbuild.compile.causes",
    "tilusbuild.compile.checks", "tilusbuild.compile.program",
    "tilusbuild.process.landlock", "tilusbuild.process.resident", "tilusbuild.runtime.script",
    "tilusbuild.cache.garbage", "tilusbuild.toolchain.nvrtc_command",
    "tilusbuild.dispatch", "tilusbuild.package", "tilusbuild.runtime.kernel",
    "tilusbuild.space.component", "tilusbuild.preflight.diagnose", "tilusbuild.tune.verb_tune",
    "tilusbuild.watch.verb",
]  # fmt: skip
"""What checks a manifest, enumerates, compiles, dispatches, loads, shows, packages, watches."""


def build(directory: Path) -> tuple[dict[str, object], set[str], list[str]]:
    """The summary of a build in a process of its own, what it imported, and what it
    started."""
    ran = run_python(BUILD, cwd=directory)
    *_, summary, last = ran.stdout.splitlines()
    _, modules, started = json.loads(last)
    return json.loads(summary), set(modules), started


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A project that was built, and looked at when its directories were no longer fresh."""
    (tmp_path / "tilus.toml").write_text(MANIFEST)
    (tmp_path / "scale.cu.j2").write_text(TEMPLATE)
    build(tmp_path)
    time.sleep(COARSE_TICK / 1e9 + 0.1)
    (tmp_path / "scale.cu.j2").write_text("{# an edit #}" + TEMPLATE)
    build(tmp_path)
    return tmp_path


def test_an_edit_that_changes_no_source(built: Path) -> None:
    (built / "scale.cu.j2").write_text("{# a comment #}" + TEMPLATE)
    summary, modules, started = build(built)
    assert (summary["programs"], summary["compiled"]) == (1, 0)
    assert modules.isdisjoint(NOT_NEEDED), sorted(modules.intersection(NOT_NEEDED))
    assert started == []


def test_a_first_build_of_a_small_space(tmp_path: Path) -> None:
    """Importing NumPy takes longer than looking at a few combinations."""
    rules = 'space.vector = [1, 2]\nderived.tile = "vector * unroll"\nrestrict.small = "tile < 2"\n'
    (tmp_path / "tilus.toml").write_text(MANIFEST + rules)
    (tmp_path / "scale.cu.j2").write_text(TEMPLATE)
    summary, modules, _ = build(tmp_path)
    assert (summary["programs"], summary["compiled"]) == (1, 1)
    assert "numpy" not in modules
