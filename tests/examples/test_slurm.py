"""`examples/slurm`: its script and prefix with doubles, and on a cluster where there is one."""

import os
import sys
from pathlib import Path

import pytest

from support.processes import run_to_end
from support.project import Project, needs_cxx
from support.scale import TEMPLATE, manifest, script
from support.trees import published

SCRIPT = Path(__file__).parents[2] / "examples/slurm/build.sbatch"
COMMAND = f"{os.path.dirname(sys.executable)}/tilusbuild"
LAUNCHER = '\n[toolchain]\nlauncher = ["{}", "-n1"]\n'

SRUN = """\
#!/bin/sh
# srun -n1 COMMAND: needs the job of the allocation, and starts nothing with it.
[ "$1" = -n1 ] && [ -n "$SLURM_JOB_ID" ] || { echo "srun: error: no job" >&2; exit 1; }
shift
echo "$SLURM_JOB_ID" >> "$STEPS"
exec env -u SLURM_JOB_ID -u STEPS LEAKED=1 "$@"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    needs_cxx()
    kernel_project = Project(tmp_path / "project")
    text = manifest(script(schedules=3))
    kernel_project.write_all({"tilus.toml": text, "kernels/scale.cu.j2": TEMPLATE})
    (kernel_project.directory / "shards").mkdir()
    return kernel_project


def build_alone(project: Project) -> dict[str, bytes | str]:
    """What a build here leaves."""
    project.run("build", "--cache-dir", "alone")
    return published(project.directory / "alone")


def test_the_tasks_of_an_array_build_what_one_build_does(project: Project) -> None:
    for task in ("1", "2", "0"):
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_MAX": "2"}
        environment = {**os.environ, **variables, "TILUSBUILD": COMMAND}
        ran = run_to_end(["bash", SCRIPT], cwd=project.directory, env=environment)
    assert "3 fetched" in ran.stderr
    assert published(project.cache) == build_alone(project)


def test_a_step_gets_the_job_and_the_compiler_does_not(project: Project, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    steps = tmp_path / "steps"
    expected = build_alone(project)
    text = (project.directory / "tilus.toml").read_text()
    project.write("tilus.toml", text + LAUNCHER.format(srun))
    project.run("build", SLURM_JOB_ID="7", STEPS=str(steps))
    assert set(steps.read_text().split()) == {"7"}
    assert published(project.cache) == expected
