"""Builds under GNU make: together they run no more compilers than its -j says; tokens go back."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import scale
from support.jobserver import Fifo
from support.nvcc_journal import FakeCuda
from support.project import NewProject, Project

MEETING = """\
// fake: meet {{{{ {most} }}}}
// fake: slow 0.05
extern "C" __global__ void scale(float a, const float *x, float *y, long long n) {{}}
constexpr int unroll = {{{{ unroll }}}};
"""
"""A template whose compiles go on when so many have run at once, in whichever build."""


@pytest.fixture
def make() -> str:
    """GNU make."""
    path = shutil.which("make")
    if path is None:
        pytest.skip("GNU make is not installed")
    return path


def build_line(options: str = "") -> str:
    return f"{sys.executable} -m tilusbuild build -j4 {options}"


@pytest.fixture
def two(new_project: NewProject, fake_cuda: FakeCuda, tmp_path: Path) -> Callable[[int], Path]:
    """two(most): a directory with two projects of eight programs each, which meet."""

    def write(most: int) -> Path:
        for name in ("one", "two"):
            new_project(
                scale.manifest(scale.script(target="gpu", schedules=8)),
                {"kernels/scale.cu.j2": MEETING.format(most=most) + f"// {name}\n"},
                directory=name,
            )
        return tmp_path

    return write


def run_make(make: str, directory: Path, environment: dict[str, str], *words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    with subprocess.Popen(
        [make, *words],
        cwd=directory,
        env={**clean, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ran:
        out, _ = ran.communicate(timeout=120)
    assert ran.returncode == 0, out
    return out


def test_two_builds_under_one_make_share_its_jobs(make, two, fake_cuda) -> None:
    directory = two(3)
    (directory / "Makefile").write_text(
        f"all: one two\none two:\n\t+{build_line('-C $@')}\n.PHONY: all one two\n"
    )
    out = run_make(make, directory, fake_cuda.environment, "-j3")
    assert "warning" not in out
    assert len(fake_cuda.compiles) == 16
    assert fake_cuda.most_at_once() == 3


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "fifo", b"++")
    yield fifo
    os.close(fifo.end)


def test_a_fifo_is_shared_and_all_tokens_are_returned_at_the_end(
    new_project: NewProject, fake_cuda: FakeCuda, tokens: Fifo
) -> None:
    project = new_project(
        scale.manifest(scale.script(target="gpu", schedules=8)),
        {"kernels/scale.cu.j2": MEETING.format(most=3)},
        **fake_cuda.environment,
        **tokens.environment,
    )
    assert project.build("-j8")["compiled"] == 8
    assert fake_cuda.most_at_once() == 3
    assert tokens.count == 2


def test_compilers_run_with_the_niceness_that_was_asked_for(new_project, fake_cuda) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if own > 12:
        pytest.skip("this process is nice already")
    project = new_project(
        scale.manifest(scale.script(target="gpu", schedules=2)), **fake_cuda.environment
    )
    project.build("--nice", "7")
    begun = [words for words in fake_cuda.spans if words[0] == "begin"]
    assert [words[2] for words in begun] == [str(own + 7)] * 2


def test_under_load_one_compiler_runs_at_a_time(new_project, fake_cuda) -> None:
    project = new_project(
        scale.manifest(scale.script(target="gpu", schedules=6)), **fake_cuda.environment
    )
    assert project.build("-j4", "-l", "0.001")["compiled"] == 6
    assert fake_cuda.most_at_once() == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-l", "x"), "--load-average must be a number above 0"),
        (("--nice", "20"), "--nice must be a number from 0 to 19"),
    ],
)
def test_wrong_manners_are_refused(project: Project, words: tuple[str, ...], message: str) -> None:
    assert message in project.run("build", *words, status=2).err
