"""A command whose standard streams are closed, or do not block: it does its work, and says all."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from support import scale
from support.processes import run_python
from support.project import NewProject, Project


def test_a_build_does_its_work(new_project: NewProject) -> None:
    project = new_project(scale.manifest(scale.script()), {"kernels/scale.cu.j2": scale.TEMPLATE})
    project.before = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    project.run("build")
    project.run("build")  # from the record
    assert len(os.listdir(project.directory / ".cache" / "programs")) == 2
    project.before = ()
    assert project.build()["cached"] == 2


def test_what_is_said_beside_a_result_changes_no_exit_status(project: Project) -> None:
    """In a pipe whose reader has ended."""
    project.build()
    project.before = ("bash", "-c", 'exec 3> >(exit); wait $!; exec "$@" 2>&3 3>&-', "bash")
    project.run("package", "-o", "out")


def test_a_pipe_that_does_not_block_gets_whole_lines(new_project: NewProject) -> None:
    """Who reads may be slow, and whoever made the pipe may have it so, as Node.js does."""
    template = """{{ raise("y\n" * 200000) }}"""
    project = new_project(scale.manifest(scale.script()), {"kernels/scale.cu.j2": template})
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    started = subprocess.Popen(
        [sys.executable, "-m", "tilusbuild", "build", "--json"],
        cwd=project.directory,
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    with open(reading, "rb") as file:
        first = file.read(1)
        time.sleep(0.5)  # it has filled the pipe, and waits
        lines = (first + file.read()).splitlines()
    assert started.wait() == 2
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert events[0]["event"] == "error"
    assert json.dumps(events).count("y\\n") == 2 * 200000
    assert lines.count(b"  y") == 199999


def test_a_stream_that_python_takes_for_closed_is_written_to(tmp_path: Path) -> None:
    """As when there was no descriptor left to ask about it."""
    code = "import sys; sys.stderr = None; from tilusbuild.cli.main import main; main(['plan'])"
    ended = run_python(code, status=None, cwd=tmp_path)
    assert "no tilus.toml" in ended.stderr
