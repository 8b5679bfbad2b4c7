"""What is edited while a build runs is built by the next one, whatever any clock says.

Builds run under libfaketime, which moves their clock and not that of the file system: a file server
that is behind, one that is ahead, a clock that is set back between two builds."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support import scale
from support.processes import wait_until
from support.project import NewProject, Project, needs_cxx

GATE = """\
#!/bin/sh
touch "{0}/running"
while [ ! -e "{0}/open" ]; do sleep 0.02; done
exec "$@"
"""
"""In front of each compiler: waits until the test lets it go on."""
NAMES = ("first", "second")
SKEWS = ("+10s", "-10s", "+1h", "-1h")


class Gated(Project):
    """A project whose compilers wait, with the clock of each command moved by `skew`."""

    skew = ""

    def moved(self, skew: str) -> None:
        """Set the clock of the commands to come."""
        self.before = ("faketime", "-f", skew) if skew else ()
        self.environment["NO_FAKE_STAT"] = "1"

    def compile_and(self, happens: object) -> None:
        """Build, and call `happens` while a compiler runs."""
        (self.directory / "gate/open").unlink(missing_ok=True)
        (self.directory / "gate/running").unlink(missing_ok=True)
        with self.start("build") as process:
            wait_until(lambda: (self.directory / "gate/running").exists() or ended(process))
            happens()  # type: ignore[operator]
            (self.directory / "gate/open").touch()
            _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err


def ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


@pytest.fixture
def gated(new_project: NewProject, tmp_path: Path) -> Gated:
    """Two scripts for the host, built."""
    needs_cxx()
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime")
    gate = tmp_path / "project/gate"
    gate.mkdir(parents=True)
    (gate / "gate.sh").write_text(GATE.format(gate))
    (gate / "gate.sh").chmod(0o755)
    (gate / "open").touch()
    text = scale.manifest(*(scale.script(name, schedules=1) for name in NAMES))
    text += f'\n[toolchain]\nlauncher = ["{gate}/gate.sh"]\n'
    made = new_project(text, {})
    project = Gated(made.directory, made.environment)
    (project.directory / "kernels").mkdir()
    for name in NAMES:
        edit(project, name, 0)
    time.sleep(0.2)
    project.build()
    return project


def edit(project: Project, name: str, number: int) -> None:
    """Change the text of a template, and not its size."""
    template = project.directory / f"kernels/{name}.cu.j2"
    template.write_text(f"{scale.TEMPLATE}// {number:04}\n")


def assert_up_to_date(project: Gated) -> None:
    """Nothing that was remembered hides that something is not built."""
    project.moved("")
    shutil.rmtree(project.cache / "state")
    elsewhere = project.directory.parent / "another-home"
    summary = project.run("build", "--json", HOME=str(elsewhere)).summary
    assert summary["attempts"] == 0, "the build before this one missed an edit"


@pytest.mark.parametrize("skew", SKEWS)
def test_an_edit_during_a_build_is_seen_by_the_next(gated: Gated, skew: str) -> None:
    gated.moved(skew)
    for name in NAMES:
        edit(gated, name, 1)
    gated.build()
    time.sleep(0.2)
    edit(gated, "second", 2)
    gated.compile_and(lambda: edit(gated, "first", 2))
    assert gated.compiled() == 1
    assert_up_to_date(gated)


def test_a_clock_that_is_set_back_between_builds(gated: Gated) -> None:
    for number, skew in enumerate(("+1h", "", "-1h", "+10s", "-10s"), start=1):
        gated.moved(skew)
        edit(gated, "first", number)
        assert gated.compiled() == 1, skew
        assert gated.compiled() == 0, skew
    assert_up_to_date(gated)


@pytest.mark.parametrize("skew", ["+10s", "-10s", ""])
def test_there_is_a_record_all_the_same(gated: Gated, skew: str) -> None:
    """A skew costs no time: the second build after an edit answers from a record."""
    gated.moved(skew)
    edit(gated, "first", 1)
    time.sleep(0.2)
    gated.build()
    records = Path(os.environ["HOME"], ".cache/tilusbuild/records")
    before = {path: path.stat().st_mtime_ns for path in records.iterdir()}
    gated.build()
    assert before == {path: path.stat().st_mtime_ns for path in records.iterdir()}
