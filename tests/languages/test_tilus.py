"""Tilus' scripts ahead of time (docs/tilus.md)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.binary.cubin import open_cubin
from tilusbuild.binary.fatbin import extract_cubins

pytest.importorskip("tilus", reason="Tilus is not installed: pip install 'tilusbuild[tilus]'")
pytestmark = pytest.mark.nvcc

PAGE = (Path(__file__).parents[2] / "docs" / "tilus.md").read_text()
MANIFEST, KERNELS = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL)
MANIFEST = MANIFEST.replace("[target", '[build]\ncache-dir = ".cache"\n[target', 1)
SMALL = MANIFEST.replace("[4, 8]", "[4]").replace(", [64, 128]]", "]")
SCRATCH = "self.global_tensor(dtype=int32, shape=[4], requires_clean=True)"
# Builds as Tilus' own users do, but for the check that there is a GPU. The link needs a libcuda.
OWN = """\
import sys, tilus
from unittest.mock import patch
from kernels import Matmul
tilus.target.set_current_target(tilus.target.nvgpu_sm80)
tilus.option.cache_dir(sys.argv[1])
tilus.option.debug.dump_ir()
with patch("torch.cuda.is_available", return_value=True):
    Matmul(4, 128, 64)._jit_instance_for(64, 1024, 1024, None, None, None).programs()
"""


def make_project(directory: Path, manifest: str = SMALL) -> Project:
    """Return a project that may import torch, which other tests hide: Tilus needs it."""
    project = Project(directory, {"PYTHONPATH": ""})
    return project.write_all({"tilus.toml": manifest, "kernels.py": KERNELS, "own.py": OWN})


def read_code(library: Path) -> bytes:
    """Return the instructions of the one kernel of a library."""
    elfs = [open_cubin(cubin.data) for cubin in extract_cubins(library.read_bytes())]
    (code,) = (e.read_section(s) for e in elfs for s in e.sections if s.name.startswith(".text."))
    return code


def test_the_page_builds_four_programs_and_then_none(tmp_path: Path) -> None:
    # Given the page's project, when it is built,
    project = make_project(tmp_path, MANIFEST)
    assert project.compiled() == 4
    # then each program has the launch of its schedule, over the size that the script leaves open,
    launch = re.compile(r"^(?:grid|block|smem|parameters) = (.*)", re.MULTILINE)
    texts = [(program / "program.txt").read_text() for program in project.programs.values()]
    assert {tuple(launch.findall(text)) for text in texts} == {
        (f"((m_size + {m - 1}) // {m}), {1024 // n}, 1", str(warps * 32), "6144", names)
        for m, n in ((128, 64), (64, 128))
        for warps in (4, 8)
        for names in ("m_size, a_ptr, b_ptr, c_ptr",)
    }
    # and nothing is left to do.
    assert project.compiled() == 0


def test_a_program_has_what_tilus_itself_writes(tmp_path: Path) -> None:
    # Given a program, and the directory that Tilus makes of the same schedule,
    project = make_project(tmp_path)
    assert project.compiled("--dump-ir") == 1
    (program,) = project.programs.values()
    empty, own = tmp_path / "stub" / "libcuda.so", tmp_path / "own"
    empty.parent.mkdir()
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", empty], check=True)
    subprocess.run(
        [sys.executable, "own.py", own],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "LIBRARY_PATH": str(empty.parent)},
        check=True,
    )
    (theirs,) = (own / "programs").iterdir()
    # then Tilus' text is the end of the program's, its source has the same kernel,
    section = (program / "program.txt").read_text().split("\n[program]\n")[1]
    assert section.replace("\n  ", "\n").strip() == (theirs / "program.txt").read_text().strip()
    source = (program / "module" / "source.cu").read_text().replace('extern "C"', "static")
    assert source[source.index("static ") :].rstrip() in (theirs / "module/source.cu").read_text()
    # its instructions are the same,
    assert read_code(program / "module/lib.so") == read_code(theirs / "module/lib.so")
    # and so are the texts of each pass, whose functions come in the order of a set.
    for directory, other in (("ir", "ir"), ("module/ir", "module/module/ir")):
        for text in (theirs / other).glob("[0-9]*.txt"):
            ours = (program / directory / text.name).read_text()
            assert sorted(ours.splitlines()) == sorted(text.read_text().splitlines())


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("kernels.py", ("self.dot(", "self.dott("), "kernels.py:37:13: error: Matmul: Attribute"),
        ("kernels.py", ("= block_m", "= block_m // 0"), "kernels.py:10:24: error: Matmul: Zero"),
        ("kernels.py", ("block_n, block_k", "block_n, depth, block_k"), 'asks for "depth"'),
        ("kernels.py", ("n_size: int,", "n_size: int, more: int,"), 'constant "more" has no value'),
        ("kernels.py", ("m_size: int32", "q: int32"), "variable without definition: m_size"),
        ("kernels.py", ("m: int32 =", f"{SCRATCH}; m: int32 ="), "it makes gmem_clean, a uint8*"),
        ("tilus.toml", ('b_ptr = { type = "f16', 'b_ptr = { type = "bf16'), "b_ptr is float16*"),
        ("tilus.toml", ('"i32"', '"i64"'), "m_size is int32, not i64"),
        ("tilus.toml", ('"sm_80"', '["sm_80", "sm_86"]'), "no code for sm_80, sm_86"),
        ("tilus.toml", ("py:Matmul", "py:cdiv"), "cdiv: it is not a class of tilus.Script"),
    ],
)
def test_a_mistake_is_one_error(
    tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
    project = make_project(tmp_path)
    project.edit(file, *change)
    assert message in project.run_to_error("build")
