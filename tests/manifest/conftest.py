"""A small project to spoil: a manifest that loads, to which tests add what they are about."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.model import Manifest

PREAMBLE = """\
edition = 1
[project]
name = "p"
version = "1"
[target.gpu]
arch = "sm_90a"
[script.m]
template = "m.cu.j2"
kernel = "m"
launch = { grid = [1], block = [32] }
"""
"""A whole manifest; what is appended goes on within `[script.m]`."""

EXAMPLE_FILES = [
    *("kernels/matmul.cu.j2", "kernels/transpose.cu.j2", "kernels/scale.cu.j2"),
    *("ref.py", "spaces/transpose.t1.json"),
    *("kernels/axpy.cpp.j2", "kernels/copy.py", "src/a.cpp", "vendor/x.o"),
]

Loader = Callable[[str], Manifest]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project directory, and the working directory, with everything that `PREAMBLE` names."""
    (tmp_path / "m.cu.j2").write_text('#include "m.cuh"\n')
    (tmp_path / "include").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "matmul.cu.j2").write_text("")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load_text(project: Path) -> Loader:
    """Load a whole manifest, given as text."""

    def load_it(text: str) -> Manifest:
        (project / "tilus.toml").write_text(text, encoding="utf-8")
        return load_manifest("tilus.toml")

    return load_it


@pytest.fixture
def load_script(load_text: Loader) -> Loader:
    """Load `PREAMBLE` with something appended."""
    return lambda addition: load_text(PREAMBLE + addition)


@pytest.fixture
def load_example(project: Path, load_text: Loader) -> Loader:
    """Load a text as the project of `tilus.toml.example`, whose files are there."""
    for name in EXAMPLE_FILES:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "kernels" / "include").mkdir()
    return load_text
