"""`generate`: a template to a header for each program, which its source and its headers include."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from support.project import NewProject, Project, head, needs_cxx

MANIFEST = (
    head("host", build='include-dirs = ["include"]')
    + """\
[script.scale]
template = "scale.cpp"
render = false
kernel = "scale"
args = { y = { type = "i32*[n]", out = true }, n = "i32" }
space = { factor = [2, 3] }
generate = { "config.inc" = "config.inc.j2" }
"""
)
FILES = {
    "scale.cpp": '#include "config.inc"\n#include "uses.h"\n'
    'extern "C" void scale(int *y, int n) {\n'
    "  for (int i = 0; i < n; i++) y[i] = FACTOR * uses();\n}\n",
    "config.inc.j2": '#pragma once\n#include "depth.h"\n#define FACTOR ({{ factor }} * DEPTH)\n',
    "include/depth.h": "#pragma once\n#define DEPTH 10\n",
    "include/uses.h": '#include "config.inc"\ninline int uses() { return FACTOR > 0 ? 1 : 0; }\n',
}


def results(project: Project) -> list[int]:
    """What each library of the project's current programs computes."""
    values = []
    for index in range(2):
        (shown,) = project.run("cache", "show", "--json", f"scale/{index}").events
        library = project.cache / "programs" / shown["program"] / "module/lib.so"
        y = (ctypes.c_int * 1)()
        assert ctypes.CDLL(str(library)).launch(y, 1, None) == 0
        values.append(y[0])
    return values


def test_each_program_has_its_own_header(new_project: NewProject, tmp_path: Path) -> None:
    needs_cxx()
    project = new_project(MANIFEST, FILES)
    assert project.compiled() == 2
    assert results(project) == [20, 30]
    assert project.compiled() == 0
    before = set(project.programs)
    # An edit of the header's template, and of a header that only it includes.
    project.edit("config.inc.j2", "{{ factor }}", "{{ factor }} + 0")
    assert project.compiled() == 2
    project.edit("include/depth.h", "10", "100")
    assert project.compiled() == 2
    project.edit("include/depth.h", "100", "10")
    project.edit("config.inc.j2", "{{ factor }} + 0", "{{ factor }}")
    assert project.compiled() == 0, "what was before is found again"
    assert before <= set(project.programs)
    moved = project.copy(tmp_path / "elsewhere", cache=False)
    moved.build()
    assert set(moved.programs) == before


@pytest.mark.nvcc
@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
def test_it_lies_beside_the_source(new_project: NewProject, compiler: str) -> None:
    """It includes what lies there; a file of its name, there or in include-dirs, is another."""
    text = MANIFEST.replace('"cpu"', '"sm_80"').replace("[2, 3]", "[2]")
    text = text.replace('"scale.cpp"', '"kernels/scale.cu"')
    text += "launch = { grid = [1], block = [32] }\n"
    own = '#include "config.inc"\n#include "also.h"\nstatic_assert(FACTOR == 20);\n'
    files = {
        "kernels/scale.cu": f'{own}extern "C" __global__ void scale(int *y, int n) {{ *y = n; }}\n',
        "kernels/depth.h": "#pragma once\n#define DEPTH 10\n",
        "kernels/also.h": '#include "config.inc"\n',
        "config.inc.j2": FILES["config.inc.j2"],
        "kernels/config.inc": "#define FACTOR 1\n",
        "include/config.inc": "#define FACTOR 1\n",
    }
    project = new_project(text, files)
    assert project.compiled("--device-compiler", compiler) == 1
    (program,) = project.programs.values()
    assert (program / "module/config.inc").read_text().endswith("(2 * DEPTH)\n")
    if compiler == "nvcc":
        script, again = program / "module/compile.sh", project.directory / "again.so"
        subprocess.run(["bash", script, again], check=True)
        assert again.read_bytes() == (program / "module/lib.so").read_bytes()
    project.edit("kernels/config.inc", "1", "3")
    assert project.compiled("--device-compiler", compiler) == 0, "nobody includes it"
    other = "#undef FACTOR\n#include <config.inc>\nstatic_assert(FACTOR == 1);"
    project.edit("kernels/scale.cu", "static_assert(FACTOR == 20);", other)
    if compiler == "nvcc":
        assert project.compiled() == 1
    else:
        error = project.run("build", "--device-compiler", compiler, status=1).err
        assert "NVRTC takes #include <config.inc> for" in error
