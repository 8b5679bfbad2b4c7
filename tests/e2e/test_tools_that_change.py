"""A toolkit that is replaced while it is used: nothing is published under the hash of the first."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.processes import wait_until
from support.project import NewProject


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes() + b"// another\n")
    new.chmod(path.stat().st_mode)
    new.rename(path)


def overwritten(path: Path) -> None:
    with path.open("a") as file:
        file.write("// another\n")


def gone(path: Path) -> None:
    path.rename(path.with_name("away"))


@pytest.mark.parametrize(
    ("name", "how", "verdict"),
    [
        ("bin/ptxas", gone, "// fake: fail\n"),
        ("include/cuda_fp16.h", replaced, ""),
        ("nvvm/libdevice/libdevice.10.bc", overwritten, "// fake: fail\n"),
    ],
)
def test_a_compile_that_ran_while_a_tool_changed_is_not_recorded(
    new_project: NewProject,
    fake_cuda: FakeCuda,
    how: Callable[[Path], None],
    name: str,
    verdict: str,
) -> None:
    project = new_project(
        scale.manifest(scale.script(target="gpu", schedules=2)),
        {"kernels/scale.cu.j2": f"// fake: slow 0.4\n{verdict}" + scale.TEMPLATE},
        **fake_cuda.environment,
    )
    process = project.start("build", "-j1")
    wait_until(lambda: len(fake_cuda.journal) > 0)
    path = Path(fake_cuda.environment["CUDA_HOME"], name)
    how(path)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "changed while it was used; build again" in stderr
    assert len(fake_cuda.journal) == 1
    assert os.listdir(project.directory / ".cache" / "programs") == []
    if how is gone:
        path.with_name("away").rename(path)
    status = 1 if verdict else 0
    summary = project.build(status=status)
    assert (summary["cached"], summary["attempts"]) == (0, 2)


def test_an_equal_tool_that_takes_a_tools_place_is_noticed_and_rebuilds_nothing(
    new_project: NewProject, fake_cuda: FakeCuda
) -> None:
    project = new_project(
        scale.manifest(scale.script(target="gpu", schedules=2)),
        {"kernels/scale.cu.j2": scale.TEMPLATE},
        **fake_cuda.environment,
    )
    project.build()
    ptxas = Path(fake_cuda.environment["CUDA_HOME"], "bin/ptxas")
    again = ptxas.with_name("again")
    again.write_bytes(ptxas.read_bytes())
    again.chmod(0o755)
    again.rename(ptxas)
    summary = project.build()
    assert (summary["cached"], summary["attempts"]) == (2, 0)
