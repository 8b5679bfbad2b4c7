"""`torch = true` and `needed`: libraries for a process that has others, which are not linked."""

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.fake_torch import MANIFEST, SOURCE, fake_torch, library
from support.project import NewProject, Project, needs_cxx
from tilusbuild.binary import read_needs


@pytest.fixture
def ops(new_project: NewProject, tmp_path: Path) -> Project:
    """A project with an operator, and a package that has the parts of torch's that count."""
    needs_cxx()
    fake_torch(tmp_path / "site")
    project = new_project(MANIFEST, {"ops.cpp": SOURCE})
    project.environment["PYTHONPATH"] = str(tmp_path / "site")
    return project


def test_torch_is_named_and_not_linked(ops: Project, tmp_path: Path) -> None:
    ops.build()
    made = ops.directory / "ops.so"
    named = read_needs(made.read_bytes()).libraries
    assert {"libtorch_cpu.so", "libtorch.so"} <= {*named}
    assert "libtorch_unused.so" not in named
    with pytest.raises(OSError, match=r"libtorch\w*\.so: cannot open"):
        ctypes.CDLL(str(made))
    for name in ("libtorch_cpu.so", "libtorch.so"):  # as `import torch` does
        ctypes.CDLL(str(tmp_path / "site/torch/lib" / name))
    assert ctypes.CDLL(str(made)).ask() == 42
    assert not [*ops.cache.rglob("libtorch*")]


def test_another_release_with_the_same_headers_links_nothing(ops: Project, tmp_path: Path) -> None:
    ops.build()
    library(tmp_path / "site/torch/lib/libtorch_cpu.so", "int answer() { return 43; }\n")
    assert ops.compiled() == 0
    (tmp_path / "site/torch/include/torch/csrc/api/include/torch/all.h").write_text("enum {};\n")
    assert ops.compiled() == 2


def test_compile_sh_links_the_same_bytes(ops: Project, tmp_path: Path) -> None:
    ops.build()
    (link,) = (path for path in ops.programs.values() if (path / "module/lib.so").exists())
    subprocess.run([link / "module/compile.sh", tmp_path / "again.so"], check=True)
    assert (tmp_path / "again.so").read_bytes() == (ops.directory / "ops.so").read_bytes()


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_no_torch_is_said_where_it_is_asked_for(new_project: NewProject) -> None:
    project = new_project(MANIFEST, {"ops.cpp": SOURCE})
    said = project.run("build", status=2, PYTHONPATH="").err
    assert 'no package "torch" is installed' in said
    assert "tilus.toml:11:" in said
