"""`group`: one front end for the kernels of several schedules, and a program of each all the same.

Each test says how often nvcc's front end ran (`-ptx`), and what came of each kernel.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.project import Project, head
from tilusbuild.binary.cubin import open_cubin
from tilusbuild.binary.fatbin import extract_cubins

pytestmark = pytest.mark.nvcc

MANIFEST = (
    head("gpu", "sm_80")
    + """\
[script.scale]
template = "scale.cu.j2"
kernel = "ops::scale<{{ block }}, {{ unroll }}>"
args = { x = "f32*[n]", y = { type = "f32*[n]", out = true }, n = "i32" }
space = { unroll = [1, 2], block = [64, 128] }
group = ["unroll"]
launch = { grid = ["cdiv(n, block)"], block = ["block"] }
[package.all]
formats = ["dir"]
"""
)
SOURCE = """\
#include "depth.h"
// unroll by {{ unroll }}
namespace ops {
template <int Block, int Unroll>
__global__ void scale(const float *x, float *y, int n) {
  static_assert(Block != BAD, "no such block");
  __shared__ float held[Block * DEPTH];
  int i = blockIdx.x * Block + threadIdx.x;
  if (i < n) held[threadIdx.x] = x[i];
  __syncthreads();
  if (i < n) y[i] = Unroll * held[Block - 1 - threadIdx.x];
}
}
"""
DEPTH = "#pragma once\n#define BAD -1\n#define DEPTH 1\n"
FILES = {"scale.cu.j2": SOURCE, "depth.h": DEPTH}


def front_ends(
    project: Project, *words: str, status: int | None = None
) -> tuple[int, dict[int, Any]]:
    """How often the front end ran in a build, and the end of each program that it compiled."""
    ran = project.run("build", "--json", "-v", *words, status=status)
    ended = {e["index"]: e for e in ran.events if e["event"] == "finished"}
    commands = (word for event in ended.values() for word in event["commands"])
    return sum(" -ptx " in command for command in commands), ended


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("units"))
    project.write_all({"tilus.toml": MANIFEST, **FILES})
    count, ended = front_ends(project)
    assert count == 2, "one for each value of the group"
    assert {event["status"] for event in ended.values()} == {"built"}
    assert len(project.libraries) == 4
    return project


@pytest.fixture
def built(_built: Project, tmp_path: Path) -> Project:
    """Four programs in two units; one's own."""
    return _built.copy(tmp_path / "own")


def kernels(project: Project, index: int) -> list[str]:
    """The kernels of which a program's code was compiled."""
    (shown,) = project.run("cache", "show", "--json", f"scale/{index}").events
    return [*shown["kernels"]]


def test_each_program_has_its_own_kernel_and_no_other(built: Project) -> None:
    names = [kernels(built, index) for index in range(4)]
    assert [len(group) for group in names] == [1, 1, 1, 1]
    parts = [name.split("Li")[1:] for (name,) in names]
    assert [(a.rstrip("E"), b.split("E")[0]) for a, b in parts] == [
        *(("64", "1"), ("128", "1"), ("64", "2"), ("128", "2"))
    ]
    assert built.compiled() == 0


def test_a_unit_is_compiled_again_as_one(built: Project) -> None:
    built.edit("tilus.toml", "block = [64, 128]", "block = [64, 128, 256]")
    count, ended = front_ends(built)
    assert (count, len(ended)) == (2, 6), "the source of a unit names all of its kernels"
    built.edit("scale.cu.j2", "// unroll", "// unrolled")
    assert "the rendered source changed" in built.run("explain", "scale").out
    built.edit("scale.cu.j2", "// unrolled", "// unroll")
    built.edit("tilus.toml", '"block"] }', '"block"], smem = 16 }')
    assert front_ends(built)[0] == 0, "the launch is no part of what the front end compiles"


def test_what_one_kernel_cannot_do_is_said_of_it_alone(built: Project) -> None:
    """ptxas refuses one of two kernels; a limit leaves out another; the front end refuses one."""
    built.edit("depth.h", "DEPTH 1", "DEPTH (Block == 128 ? 1000 : 1)")
    count, ended = front_ends(built)
    assert count == 2
    assert {n: e["status"] for n, e in ended.items()} == {
        0: "built", 1: "failed", 2: "built", 3: "failed"
    }  # fmt: skip
    assert "too much shared" in ended[1]["reason"]
    built.edit("depth.h", "(Block == 128 ? 1000 : 1)", "1")
    built.edit("depth.h", "BAD -1", "BAD 64")
    count, ended = front_ends(built)
    assert count == 2 * (1 + 2), "each tried together once, then by itself"
    assert {n: e["status"] for n, e in ended.items()} == {
        0: "failed", 1: "built", 2: "failed", 3: "built"
    }  # fmt: skip
    assert "depth" not in ended[0]["reason"]
    assert "no such block" in ended[0]["reason"]
    assert "scale.cu.j2" in ended[0]["reason"]


def test_a_limit_prunes_one_kernel_of_a_unit(built: Project) -> None:
    built.edit("tilus.toml", "[package.all]", "prune.max-registers = 'block - 40'\n[package.all]")
    front_ends(built)
    built.edit("tilus.toml", "block - 40", "block - 63")
    count, ended = front_ends(built)
    assert count == 0, "the front end's output is kept"
    assert [ended[n]["status"] for n in range(4)] == ["pruned", "built", "pruned", "built"]


def test_a_program_of_a_unit_is_whole(built: Project, tmp_path: Path) -> None:
    """`compile.sh` and a package need no other program."""
    (program, content) = next(iter(built.libraries.items()))
    alone = tmp_path / "tree"
    for name in ("programs/" + program, "include"):
        shutil.copytree(built.cache / name, alone / name)
    script = alone / "programs" / program / "module/compile.sh"
    subprocess.run(["bash", str(script), str(tmp_path / "lib.so")], check=True)
    assert (tmp_path / "lib.so").read_bytes() == content
    shutil.rmtree(built.cache / "state")
    built.run("package", "all", "--output", str(tmp_path / "out"))
    built.run("cache", "verify")
    (packed,) = (tmp_path / "out").iterdir()
    assert len([*packed.glob("**/lib.so")]) == 4


def test_the_same_code_as_alone(built: Project, tmp_path: Path) -> None:
    """Grouping changes which front end a kernel went through, and no instruction."""
    apart = built.copy(tmp_path / "apart", cache=False)
    apart.edit("tilus.toml", 'group = ["unroll"]\n', "")
    assert front_ends(apart)[0] == 4

    def code(project: Project) -> list[bytes]:
        sections = []
        for index in range(4):
            (shown,) = project.run("cache", "show", "--json", f"scale/{index}").events
            library = project.cache / "programs" / shown["program"] / "module/lib.so"
            (cubin,) = extract_cubins(library.read_bytes())
            elf = open_cubin(cubin.data)
            (kernel,) = shown["kernels"]
            section = elf.find_section(f".text.{kernel}")
            assert section is not None
            sections.append(elf.read_section(section))
        return sections

    assert code(built) == code(apart)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["unroll"]', '["unrol"]', 'tilus.toml:14:10: error: unknown parameter "unrol"'),
        ('["unroll"]', "[]", '"unroll" is undefined'),
        ("[64, 128]", "{ range = [1, 257] }", "257 schedules would be one translation unit"),
    ],
)
def test_what_cannot_be_grouped_is_said(new_project, old, new, message) -> None:
    project = new_project(MANIFEST, FILES)
    project.edit("tilus.toml", old, new)
    error = project.run("plan", status=2).err
    assert message in error
    if "undefined" in message:
        assert 'pass it to the kernel, as in kernel = "scale<{{ unroll }}>"' in error
