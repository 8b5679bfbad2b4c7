"""A command that takes long says at once that it works, and one with a variable that nothing reads
says that, too."""

import os
import pty
import re
import shutil
from pathlib import Path

import pytest

from support.project import Project, needs_cxx
from support.scale import TEMPLATE, manifest
from tilusbuild.manifest.settings import VARIABLES

COMMANDS = (
    ("plan",),
    ("plan", "--space"),
    ("build", "-t", "cpu"),
    ("build", "-n"),
    ("explain",),
    ("report",),
    ("graph",),
    ("compdb", "-o", "c.json"),
    ("render", "-o", "rendered"),
    ("run", "scale", "-t", "cpu", "--size", "n=9"),
    ("tune", "scale", "-t", "cpu", "--size", "n=9", "--unchecked", "--budget", "3"),
    ("dispatch", "show", "scale"),
    ("package", "-o", "dist"),
    ("doctor",),
    ("cache", "ls"),
    ("schema",),
    ("init", "new"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """`scale` for the host."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("working"))
    text = manifest().replace('[target.gpu]\narch = "sm_80"\n\n', "")
    project.write_all({"tilus.toml": text, "kernels/scale.cu.j2": TEMPLATE})
    project.build()
    return project


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_without_output_yet_says_that_it_works(built: Project, words) -> None:
    """With no patience at all that is the first line, and it stands there once."""
    shutil.rmtree(built.directory / "new", ignore_errors=True)
    (built.directory / "tilus.toml").touch()
    lines = built.run(*words, status=None, TILUSBUILD_PATIENCE="0").err.splitlines()
    said = f"tilusbuild {words[0]}: working …"
    assert lines[0] == said
    assert lines.count(said) == 1
    for quiet in (["-q"], ["--json"], ["--progress", "none"]):
        shutil.rmtree(built.directory / "new", ignore_errors=True)
        if words[0] in ("plan", "explain"):
            quieter = built.run(*words, *quiet, status=None, TILUSBUILD_PATIENCE="0")
            assert said not in quieter.err


@pytest.mark.parametrize("patience", ["0", "1e6"])
@pytest.mark.parametrize("words", [("plan",), ("plan", "nothing"), ("cache", "ls"), ("build",)])
def test_on_a_terminal_the_first_output_takes_the_line_away(
    built: Project, words: tuple[str, ...], patience: str
) -> None:
    (built.directory / "tilus.toml").write_text(
        (built.directory / "tilus.toml").read_text() + "# again\n"
    )
    master, slave = pty.openpty()
    environment = {"TERM": "xterm", "CI": "", "TILUSBUILD_PATIENCE": patience}
    built = Project(built.directory, environment)
    with built.start(*words, stdout=slave, stderr=slave) as process:
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 4096):
                seen += piece
        except OSError:  # the terminal's last user has ended
            pass
        process.wait()
    os.close(master)
    text = seen.decode()
    line = f"tilusbuild {words[0]}: working …"
    assert text.count(line) == (patience == "0")
    if patience == "0":
        assert text.startswith(f"{line}\r\x1b[2K")
        assert len(text) > len(f"{line}\r\x1b[2K"), "something follows"


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
