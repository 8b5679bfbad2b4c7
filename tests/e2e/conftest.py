"""Projects to build, and the command line to build them with, each command a process of its own.

`new_project` makes a small project in a directory; its `run` and `build` call `python -m
tilusbuild` there. `fake_cuda` is a CUDA toolkit that is fast, journaled and misbehaves when a
template tells it to (`support/nvcc_journal.py`). What needs root, or another file system, skips
with its reason."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.nvcc_journal import FakeCuda, as_release, make_toolkit
from support.processes import Watched
from support.project import NewProject, Project
from support.scale import TEMPLATE, manifest


@pytest.fixture
def new_project(tmp_path: Path) -> NewProject:
    """new_project(manifest_text, files={…}, directory="project") writes a project."""

    def make(
        text: str | None = None,
        files: Mapping[str, str] = {"kernels/scale.cu.j2": TEMPLATE},
        directory: str | Path = "project",
        **environment: str,
    ) -> Project:
        project = Project(tmp_path / directory, environment)
        return project.write_all({"tilus.toml": manifest() if text is None else text, **files})

    return make


@pytest.fixture
def project(new_project: NewProject) -> Project:
    """`scale` for the host, with two schedules."""
    return new_project()


@pytest.fixture(scope="session")
def _fake_toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toolkit")
    make_toolkit(str(directory))
    return directory


@pytest.fixture
def fake_cuda(_fake_toolkit: Path, tmp_path: Path) -> FakeCuda:
    """A toolkit with an empty journal."""
    directory = shutil.copytree(_fake_toolkit, tmp_path / "toolkit")
    return FakeCuda(str(directory / "bin" / "nvcc"))


@pytest.fixture
def other_cuda(_fake_toolkit: Path, tmp_path: Path) -> FakeCuda:
    """Another toolkit, of release 13.1, with a journal of its own."""
    directory = shutil.copytree(_fake_toolkit, tmp_path / "other")
    return FakeCuda(as_release(str(directory), "13.1.15"))


@pytest.fixture
def root() -> None:
    """Skips where this is not the superuser's process."""
    if os.geteuid() != 0:
        pytest.skip("only root can do this")


@pytest.fixture
def mounts(root: None) -> None:
    """Skips where no mount can be made in a namespace of one's own."""
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    if tried.returncode:
        pytest.skip("this machine lets root mount nothing")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Processes of this test, which at the end are none: give `environment` to what it starts."""
    watching = Watched(tmp_path)
    yield watching
    watching.assert_none()
