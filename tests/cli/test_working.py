"""A command that takes long says at once that it works, and one with a variable that nothing reads
says that, too."""

import os
import pty
import re
from contextlib import suppress
from pathlib import Path

import pytest

from support.project import Project
from support.scale import TEMPLATE, manifest
from tilusbuild.runtime.option import VARIABLES

COMMANDS = (
    ("plan",),
    ("plan", "--space"),
    ("build", "-t", "cpu"),
    ("compdb", "-o", "c.json"),
    ("render", "-o", "rendered"),
    ("tune", "scale", "-t", "cpu", "--size", "n=9", "--unchecked", "--budget", "3"),
    ("doctor",),
    ("schema",),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """`scale` for the host."""
    text = manifest().replace('[target.gpu]\narch = "sm_80"\n\n', "")
    files = {"tilus.toml": text, "kernels/scale.cu.j2": TEMPLATE}
    return Project.built(tmp_path_factory.mktemp("working"), files)


def on_a_terminal(project: Project, *words: str, patience: str) -> str:
    """Return what a command writes to a terminal."""
    master, slave = pty.openpty()
    (project.directory / "patience").mkdir(exist_ok=True)
    (project.directory / "patience/sitecustomize.py").write_text(
        f"from tilusbuild.report import terminal\nterminal.PATIENCE = {patience}\n"
    )
    environment = {"TERM": "xterm", "CI": "", "PYTHONPATH": str(project.directory / "patience")}
    with Project(project.directory, environment).start(
        *words, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        seen = b""
        with suppress(OSError):  # the terminal's last user has ended
            while piece := os.read(master, 4096):
                seen += piece
        process.wait()
    os.close(master)
    return seen.decode()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_without_output_yet_says_that_it_works(built: Project, words) -> None:
    """With no patience at all that is the first text, and the first output takes it away."""
    with (built.directory / "tilus.toml").open("a") as file:
        file.write("# again\n")
    text = on_a_terminal(built, *words, patience="0")
    line = f"tilusbuild {words[0]}: working …"
    assert text.startswith(f"{line}\r\x1b[2K")
    assert text.count(line) == 1


def test_it_is_said_only_where_somebody_waits(built: Project) -> None:
    assert "working" not in on_a_terminal(built, "plan", patience="1e6")
    assert "working" not in on_a_terminal(built, "plan", "-q", patience="0")
    seen = built.run("plan", PYTHONPATH=str(built.directory / "patience")).err
    assert "working" not in seen, "no terminal"


@pytest.mark.parametrize("words", [("plan",), ("build",), ("run", "scale", "--size", "n=9")])
def test_a_variable_that_nothing_reads_is_a_warning(built: Project, words) -> None:
    for _ in range(2):  # a build is answered from its record the second time, but for this
        ran = built.run(*words, TILUSBUILD_JOBBS="2")
        warned = (
            'warning: TILUSBUILD_JOBBS is not a variable of tilusbuild: did you mean "TILUSBUILD'
        )
        assert ran.err.count(warned) == 1
    assert "TILUSBUILD_JOBBS" not in built.run(*words, "-q", TILUSBUILD_JOBBS="2").err
    assert "warning" not in built.run(*words, TILUSBUILD_JOBS="2").err


def test_every_variable_that_the_sources_name_is_known() -> None:
    sources = Path(__file__).parents[2] / "tilusbuild"
    texts = (path.read_text() for path in sources.rglob("*.py"))
    named = {name for text in texts for name in re.findall(r"TILUSBUILD_[A-Z_]*[A-Z]\b", text)}
    assert {name for name in named if name != "TILUSBUILD_JOB"} - {"TILUSBUILD_REMOTE"} <= VARIABLES
