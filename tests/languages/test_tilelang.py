"""TileLang's kernels ahead of time (docs/tilelang.md)."""

import json
import re
import sys
from pathlib import Path

import pytest

from support.fake_driver import HERE, FakeDriver, build_driver
from support.processes import run_to_end
from support.project import Project

pytest.importorskip("tilelang", reason="there is no TileLang: pip install 'tilusbuild[tilelang]'")
pytestmark = pytest.mark.nvcc

PAGE = (Path(__file__).parents[2] / "docs" / "tilelang.md").read_text()
MANIFEST, KERNELS = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL)
MANIFEST = MANIFEST.replace("[target", '[build]\ncache-dir = ".cache"\n[target', 1)
SMALL = MANIFEST.replace("[64, 128]", "[128]").replace("[2, 3]", "[3]")
# As in TileLang's quickstart: tensors are parameters, and `C` is what a call returns.
EAGER = """\
import tilelang
import tilelang.language as T
@tilelang.jit
def matmul(A, B, block_M, num_stages):
    N, K = T.const("N, K")
    m = T.dynamic("m")
    A: T.Tensor((m, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((m, N), "float16")
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(m, block_M), threads=128) as (bx, by):
        a = T.alloc_shared((block_M, 32), "float16")
        b = T.alloc_shared((32, 128), "float16")
        c = T.alloc_fragment((block_M, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=num_stages):
            T.copy(A[by * block_M, k * 32], a)
            T.copy(B[k * 32, bx * 128], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * block_M, bx * 128])
    return C
"""

# What TileLang's host code asks of the driver and of CUDA's runtime, besides the made up driver.
ANSWERS = """\
#define ANSWER(name) int name(void) { return 0; }
ANSWER(cuCtxResetPersistingL2Cache) ANSWER(cuMemsetD32) ANSWER(cuMemsetD32_v2)
ANSWER(cuModuleGetGlobal) ANSWER(cuModuleGetGlobal_v2) ANSWER(cuModuleLoadDataEx)
ANSWER(cuStreamSetAttribute) ANSWER(cuTensorMapEncodeIm2col) ANSWER(cuLaunchCooperativeKernel)
ANSWER(cudaSetDevice) ANSWER(cudaGetLastError) ANSWER(cudaPeekAtLastError)
int cudaGetDevice(int *device) { *device = 0; return 0; }
"""
# Calls TileLang's own host code, whose kernel need not be compiled.
OWN = """\
import ctypes, json, sys, tilelang
from tilelang import tvm
from launcher_process import tensor
from kernels import matmul
target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
with target:
    lowered = tilelang.lower(matmul(1024, 1024, 128, 3), target, enable_host_codegen=True)
keep = []
tensors = [ctypes.addressof(tensor(each, keep)) for each in json.loads(sys.argv[1])]
tvm.runtime.Executable(lowered.rt_mod).jit()["gemm"](*map(ctypes.c_void_p, tensors))
"""

CONVOLUTION = """\
import tilelang.language as T


def matmul(N, K, block_M, num_stages):
    @T.prim_func
    def convolve(A: T.Tensor((1, 64, 64, 128), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            for k in T.Pipelined(18, num_stages=num_stages):
                T.c2d_im2col(A, a, 0, k, 3, 1, 1, 1)
                T.copy(a, C)

    return convolve
"""


def make_project(directory: Path, kernels: str = KERNELS, manifest: str = SMALL) -> Project:
    """Return a project that may import torch, which other tests hide: TileLang needs it."""
    project = Project(directory, {"PYTHONPATH": ""})
    return project.write_all({"tilus.toml": manifest, "kernels.py": kernels})


def read_launch(program: Path) -> tuple[str, ...]:
    """Return grid, block, shared memory and parameters of a program."""
    text = (program / "program.txt").read_text()
    return tuple(re.findall(r"^(?:grid|block|smem|parameters) = (.*)", text, re.MULTILINE))


def test_the_page_builds_four_programs_and_then_none(tmp_path: Path) -> None:
    # Given the page's project, when it is built,
    project = make_project(tmp_path, manifest=MANIFEST)
    assert project.compiled() == 4
    # then each program has the launch of its schedule, over the size that the function leaves open,
    assert set(map(read_launch, project.programs.values())) == {
        (
            f"8, ((m + {rows - 1}) // {rows}), 1",
            "128, 1, 1",
            str(stages * 64 * (rows + 128)),
            "A, B, C, m",
        )
        for rows in (64, 128)
        for stages in (2, 3)
    }
    # and nothing is left to do.
    assert project.compiled() == 0


def test_a_function_in_the_style_of_the_quickstart_is_the_same_kernel(tmp_path: Path) -> None:
    launches: list[tuple[str, ...]] = []
    for name, kernels in {"page": KERNELS, "eager": EAGER}.items():
        project = make_project(tmp_path / name, kernels)
        assert project.compiled() == 1
        launches += map(read_launch, project.programs.values())
    assert launches[0] == launches[1]


def test_a_kernel_for_hopper_launches_as_by_tilelang(tmp_path: Path) -> None:
    # Given a kernel whose copies need tensor maps,
    project = make_project(tmp_path, manifest=SMALL.replace("sm_80", "sm_90a"))
    project.write_all({"own.py": OWN, "answers.c": ANSWERS})
    assert project.compiled() == 1
    (program,) = project.programs.values()
    driver = FakeDriver(
        build_driver(tmp_path / "driver", str(tmp_path / "answers.c")), tmp_path / "journal"
    )
    environment = {**driver.environment, "FAKE_CUDA_PARAMETERS": "bytes2 bytes2 ptr i32"}

    def read_calls() -> list[str]:
        lines = driver.lines("map") + driver.lines("launch")
        return [line.replace("in primary0 ", "").replace("in none ", "") for line in lines]

    # when it is called, and TileLang calls its own,
    tensors = [
        {"dtype": "f16", "shape": [rows, 1024], "strides": [1024, 1], "data": number << 20}
        for number, rows in enumerate((200, 1024, 200), 1)
    ]
    driver.call(program / "module/lib.so", {"packed": tensors}, environment=environment)
    calls = read_calls()
    driver.journal.unlink()
    environment |= {
        "LD_PRELOAD": str(driver.directory / "libcuda.so.1"),
        "PYTHONPATH": str(HERE),
        "TILELANG_CACHE_DIR": str(tmp_path / "cache"),
    }
    own = [sys.executable, "own.py", json.dumps(tensors)]
    run_to_end(own, environment=environment, cwd=tmp_path)
    # then the driver gets the same maps, grid, block, shared memory and parameters.
    assert len(calls) == 3
    assert calls == read_calls()


def test_a_tensor_map_of_a_convolution_is_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path, CONVOLUTION, SMALL.replace("sm_80", "sm_90a"))
    message = "it needs a TMA descriptor of a convolution, A_desc"
    assert message in project.run_to_error("build")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("kernels.py", ("num_stages,", "num_stages, depth,"), 'asks for "depth"'),
        ("kernels.py", ("return gemm", "return 1"), "it returned a value of type int"),
        ("kernels.py", ('T.dynamic("m")', 'T.dynamic("q")'), '"q" is not one of args'),
        ("tilus.toml", ('args.B = { type = "f16', 'args.B = { type = "bf16'), "B is float16*"),
        ("tilus.toml", ('"i32"', '"i64"'), "m is int32, not i64"),
        ("tilus.toml", ('"sm_80"', '["sm_80", "sm_86"]'), "no code for sm_80, sm_86"),
        ("tilus.toml", ("py:matmul", "py:T"), "T: it is not a function"),
    ],
)
def test_a_mistake_is_one_error(
    tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
    project = make_project(tmp_path)
    project.edit(file, *change)
    assert message in project.run_to_error("build")
