"""Another directory, another user, another number of jobs: nothing to do, or the very same
bytes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import scale
from support.nvcc_journal import FakeCuda
from support.project import NewProject

HEADER = "inline const char *where() { return __FILE__; }\n"


@pytest.fixture
def with_header(new_project: NewProject):
    """A project for a target, with a header that says where it is."""

    def make(target, build=""):
        template = '#include <cassert>\n#include "where.h"\n' + scale.TEMPLATE
        if target == "gpu":
            template = template.replace(
                "if (i < n)", "assert(n > 0 && __FILE__[0]);\n  if (i < n)"
            ).replace("inline const", "__device__ inline const")
        files = {"kernels/scale.cu.j2": template, "include/where.h": HEADER}
        text = scale.manifest(
            scale.script(target=target), build=f'include-dirs = ["include"]\n{build}'
        )
        return new_project(text, files)

    return make


TARGETS = [
    pytest.param("cpu", "", id="cpu"),
    pytest.param("gpu", 'flags = ["-lineinfo"]', id="lineinfo", marks=pytest.mark.nvcc),
]


@pytest.mark.parametrize(("target", "build"), TARGETS)
def test_another_directory(with_header, tmp_path: Path, target, build):
    """The same bytes are made elsewhere; `compile.sh` needs the tree, bash and the compilers."""
    project = with_header(target, build)
    project.build("-j", "2")
    with_cache = project.copy(tmp_path / "elsewhere/with its cache", cache=True)
    moved = with_cache.build("-j", "1")
    assert (moved["attempts"], moved["cached"]) == (0, 2)

    anew = project.copy(tmp_path / "é much deeper/place/than/before", cache=False)
    anew.environment["TMPDIR"] = str(anew.directory)
    assert anew.compiled("-j", "1") == 2
    libraries = project.libraries
    assert anew.libraries == libraries

    shutil.rmtree(project.directory)
    assert len(libraries) == 2
    for name, program in with_cache.programs.items():
        os.remove(program / "module/lib.so")
        subprocess.run([program / "module/compile.sh"], cwd="/", check=True)
        assert (program / "module/lib.so").read_bytes() == libraries[name]


def test_another_place_of_the_toolkit(new_project: NewProject, fake_cuda: FakeCuda, tmp_path: Path):
    text = scale.manifest(scale.script(target="gpu"))
    project = new_project(text, **fake_cuda.environment)
    assert project.compiled() == 2
    moved = (tmp_path / "toolkit").rename(tmp_path / "another toolkit")
    project.environment["CUDA_HOME"] = str(moved)
    assert project.compiled() == 0
    (moved / "nvvm/libdevice/libdevice.10.bc").write_text("of another release")
    assert project.compiled() == 2


def test_another_user(with_header, root: None, tmp_path: Path):
    """The user `nobody`, who may read whatever the Python under test is made of."""
    project = with_header("cpu")
    project.build()
    anew = project.copy(tmp_path / "nobodys", cache=False)
    for path in (anew.directory, *anew.directory.rglob("*")):
        os.chown(path, 65534, 65534)
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    anew.before = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *may_read)
    if subprocess.run([*anew.before, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets root become nobody else")
    anew.environment["HOME"] = "/nonexistent"
    assert anew.compiled() == 2
    assert {path.stat().st_uid for path in anew.programs.values()} == {65534}
    assert anew.libraries == project.libraries
