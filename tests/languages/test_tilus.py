"""Tilus' scripts ahead of time (docs/tilus.md)."""

import re
import sys
from pathlib import Path

import pytest
import tvm_ffi

from support.fake_driver import FakeDriver, build_driver
from support.processes import run_to_end
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
# Builds as Tilus' own users do, but for the check that there is a GPU, and for a modifier of PTX
# that no ptxas takes for Hopper. The link needs a libcuda.
OWN = """\
import sys, tilus
from pathlib import Path
from unittest.mock import patch
from tilus.hidet.backend import build
from kernels import Matmul
def compile_source(self, command, path, *rest):
    if "sm_90a" in command:
        Path(path).write_text(Path(path).read_text().replace(".cta_group::1", ""))
    return run(self, command, path, *rest)
run = build.SourceCompiler.run_compile_command
tilus.target.set_current_target(getattr(tilus.target, f"nvgpu_{sys.argv[2]}"))
tilus.option.cache_dir(sys.argv[1])
tilus.option.debug.dump_ir()
with patch("torch.cuda.is_available", return_value=True):
    with patch.object(build.SourceCompiler, "run_compile_command", compile_source):
        Matmul(4, 128, 64)._jit_instance_for(64, 1024, 1024, None, None, None).programs()
"""
# The page's kernel with copies by the hardware of Hopper.
HOPPER = {
    KERNELS[KERNELS.index("        acc = ") : KERNELS.index("        self.free_shared(sa)")]: """\
        acc = self.register_tensor(dtype=float32, shape=[self.block_m, self.block_n], init=0.0)
        barrier = self.mbarrier.alloc(counts=[1])
        phase: uint32 = 0
        for k in range(0, k_size, self.block_k):
            with self.thread_group(thread_begin=0, num_threads=32):
                with self.single_thread():
                    self.mbarrier.arrive_and_expect_tx(
                        barrier, transaction_bytes=sa.nbytes + sb.nbytes
                    )
                self.tma.global_to_shared(src=ga, dst=sa, offsets=[m, k], mbarrier=barrier)
                self.tma.global_to_shared(src=gb, dst=sb, offsets=[k, n], mbarrier=barrier)
                self.mbarrier.wait(barrier, phase=phase)
            self.sync()
            acc = self.dot(self.load_shared(sa), self.load_shared(sb), acc)
            self.sync()
            phase ^= 1
""",
    "float32, int32": "float32, int32, uint32",
}
# What Tilus' library asks of CUDA's runtime, by the made up driver.
RUNTIME = """\
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
static dim3 grid, block;
static size_t shared;
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
int __cudaPushCallConfiguration(dim3 g, dim3 b, size_t bytes, void *stream) {
  grid = g; block = b; shared = bytes;
  return 0;
}
int __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *bytes, void **stream) {
  *g = grid; *b = block; *bytes = shared; *stream = NULL;
  return 0;
}
int __cudaLaunchKernel(void *kernel, dim3 g, dim3 b, void **values, size_t bytes, void *stream) {
  return cuLaunchKernel(kernel, g.x, g.y, g.z, b.x, b.y, b.z, bytes, stream, values, NULL);
}
#define ANSWER(type, name) type name(void) { return 0; }
ANSWER(int, cudaGetLastError) ANSWER(int, cudaFuncSetAttribute) ANSWER(int, __cudaGetKernel)
ANSWER(void *, __cudaRegisterFatBinary) ANSWER(int, __cudaRegisterFatBinaryEnd)
ANSWER(int, __cudaRegisterFunction) ANSWER(int, __cudaInitModule)
ANSWER(int, __cudaUnregisterFatBinary) ANSWER(const char *, cudaGetErrorString)
int cudaGetDevice(int *device) { *device = 0; return 0; }
const char *launch_error(void) { return ""; }
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


@pytest.mark.parametrize(
    ("arch", "changes", "parameters"),
    [("sm_80", {}, "i32 ptr ptr ptr"), ("sm_90a", HOPPER, "i32 ptr ptr ptr bytes2 bytes2")],
)
def test_a_program_is_that_of_tilus_itself(
    tmp_path: Path, arch: str, changes: dict[str, str], parameters: str
) -> None:
    # Given a program, and the directory that Tilus makes of the same schedule,
    project = make_project(tmp_path, SMALL.replace("sm_80", arch))
    for change in changes.items():
        project.edit("kernels.py", *change)
    project.write("runtime.c", RUNTIME)
    assert project.compiled("--dump-ir") == 1
    (program,) = project.programs.values()
    directory = build_driver(tmp_path / "driver", str(tmp_path / "runtime.c"))
    driver, own = FakeDriver(directory, tmp_path / "journal"), tmp_path / "own"
    (directory / "libcuda.so").symlink_to("libcuda.so.1")
    run_to_end(
        [sys.executable, "own.py", own, arch.replace("_", "")],
        environment={**driver.environment, "PYTHONPATH": "", "LIBRARY_PATH": str(directory)},
        cwd=tmp_path,
    )
    (tilus_program,) = (own / "programs").iterdir()
    # then Tilus' text is the end of the program's, its source has the same kernel,
    section = (program / "program.txt").read_text().split("\n[program]\n")[1]
    assert (
        section.replace("\n  ", "\n").strip() == (tilus_program / "program.txt").read_text().strip()
    )
    source = (program / "module" / "source.cu").read_text().replace('extern "C"', "static")
    assert (
        source[source.index("static ") :].rstrip()
        in (tilus_program / "module/source.cu").read_text()
    )
    # its instructions are the same,
    assert read_code(program / "module/lib.so") == read_code(tilus_program / "module/lib.so")
    # and so are the texts of each pass, whose functions come in the order of a set.
    for kind, other in (("ir", "ir"), ("module/ir", "module/module/ir")):
        for text in (tilus_program / other).glob("[0-9]*.txt"):
            actual = (program / kind / text.name).read_text()
            assert sorted(actual.splitlines()) == sorted(text.read_text().splitlines())
    # A call of either makes the same tensor maps and the same launch.
    tensors = [
        {"dtype": "f16", "shape": [rows, 1024], "data": number << 20}
        for number, rows in enumerate((200, 1024, 200), 1)
    ]
    environment = {
        "FAKE_CUDA_PARAMETERS": parameters,
        "LD_PRELOAD": str(directory / "libcuda.so.1"),
        "LD_LIBRARY_PATH": f"{directory}:{Path(tvm_ffi.__path__[0]) / 'lib'}:/usr/local/cuda/lib64",
    }
    calls = []
    for built, values in ((program, tensors), (tilus_program, [200, *tensors])):
        library = built / "module/lib.so"
        answer = driver.call(library, {"packed": values}, environment=environment)
        assert answer.answers == [[0, ""]]
        launches = [line.partition(" grid")[2] for line in driver.lines("launch")]
        calls.append(driver.lines("map") + launches)
    assert len(calls[0]) == parameters.count("bytes") + 1
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("kernels.py", ("self.dot(", "self.dott("), "kernels.py:37:13: error: Matmul: Attribute"),
        ("kernels.py", ("= block_m", "= block_m // 0"), "kernels.py:10:24: error: Matmul: Zero"),
        ("kernels.py", ("block_n, block_k", "block_n, depth, block_k"), 'asks for "depth"'),
        ("kernels.py", ("n_size: int,", "n_size: int, more: int,"), 'constant "more" has no value'),
        ("kernels.py", ("m_size: int32", "q: int32"), "variable without definition: m_size"),
        ("kernels.py", ("m: int32 =", f"{SCRATCH}; m: int32 ="), "makes gmem_clean, a uint8*"),
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
