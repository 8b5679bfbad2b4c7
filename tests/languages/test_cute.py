"""CuTe DSL's kernels ahead of time (docs/cute.md)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.dlpack import ON_GPU
from support.fake_driver import build_driver
from support.project import Project, needs_cxx

pytest.importorskip("cutlass", reason="CuTe DSL is not installed: pip install 'tilusbuild[cute]'")

PAGE = (Path(__file__).parents[2] / "docs" / "cute.md").read_text()
MANIFEST, KERNELS = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.DOTALL)
MANIFEST = MANIFEST.replace("[target", '[build]\ncache-dir = ".cache"\n[target', 1)
TENSOR_BYTES = 32  # of the kernel's parameters: an address, two sizes, two strides
# Stands for the part of CUDA's runtime that host functions of the DSL call.
RUNTIME = """\
#include <stdio.h>
typedef struct { unsigned grid[3], block[3]; size_t shared; } config;
int _cudaLaunchKernelEx(const config *c, void *kernel, unsigned char **parameters) {
  printf("grid=%u,%u,%u block=%u,%u,%u shared=%zu parameters:", c->grid[0], c->grid[1], c->grid[2],
         c->block[0], c->block[1], c->block[2], c->shared);
  for (int i = 0; i < 3; i++)
    for (int at = 0; at < 32; at++) printf("%s%02x", at ? "" : " ", parameters[i][at]);
  puts("");
  return fflush(stdout);
}
int _cudaLibraryLoadData(void) { return 0; }
int _cudaLibraryGetKernel(void) { return 0; }
int _cudaGetDevice(void) { return 0; }
int _cudaDeviceGetAttribute(void) { return 0; }
int _cuKernelGetAttribute(void) { return 0; }
int _cudaFuncSetAttribute(void) { return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
"""
# Compiles as the DSL's own users do, and calls its host functions.
OWN = """\
import ctypes, subprocess
ctypes.CDLL("./runtime.so", ctypes.RTLD_GLOBAL)
import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor
from kernels import matmul

class Tensor(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_void_p), ("sizes", ctypes.c_int32 * 2), ("stride", ctypes.c_int64)
    ]

for arch in ("sm_80", "sm_90a"):
    for tile, warps in ((64, 2), (64, 4), (128, 4)):
        m, n, k = (cute.sym_int(divisibility=number) for number in (tile, tile, 16))
        tensors = [
            make_fake_compact_tensor(cutlass.Float16, shape, stride_order=(1, 0), assumed_align=16)
            for shape in ((m, k), (n, k), (m, n))
        ]
        options = f"--gpu-arch {arch} --keep-cubin --dump-dir ."
        compiled = cute.compile(matmul, *tensors, tile, warps, options=options)
        name = f"own_{arch}_{tile}_{warps}"
        with open(f"{name}.o", "wb") as file:
            file.write(compiled.dump_to_object(name))
        command = ["gcc", "-shared", f"{name}.o", "./runtime.so", "-o", f"{name}.so"]
        subprocess.run(command, check=True)
        symbol = f"_mlir_{name}__mlir_ciface_{compiled.function_name}"
        host = getattr(ctypes.CDLL(f"./{name}.so"), symbol)
        status = ctypes.c_int32()
        arguments = [
            Tensor(1 << 20, (256, 80), 80), Tensor(2 << 20, (384, 80), 80),
            Tensor(3 << 20, (256, 384), 384), status,
        ]
        print(compiled.__cubin__.hex(), flush=True)
        host((ctypes.c_void_p * 4)(*map(ctypes.addressof, arguments)), 4)
"""
WHEEL_CALL = f"""\
import ctypes, sys
{ON_GPU}
sys.path.append(sys.argv[1])
import gemm
from gemm._runtime import device
device.may_have_cuda = lambda: True  # it looks into /dev, where a made up driver leaves nothing
tensors = OnGpu(0, 1 << 20, 256, 80), OnGpu(0, 2 << 20, 384, 80), OnGpu(0, 3 << 20, 256, 384)
for each in tensors:
    each.tensor.dtype.bits = 16
gemm.load("matmul")(*tensors)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of the page, built where no nvcc is."""
    needs_cxx()
    project = Project(tmp_path_factory.mktemp("gemm"))
    project.environment["NVCC"] = "/nowhere"
    return project.write_all({"tilus.toml": MANIFEST, "kernels.py": KERNELS})


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """For each program of the page the cubin and the launch of the DSL itself."""
    directory = tmp_path_factory.mktemp("own")
    for name, text in {"runtime.c": RUNTIME, "own.py": OWN, "kernels.py": KERNELS}.items():
        (directory / name).write_text(text)
    gcc = ["gcc", "-w", "-shared", "-fPIC", "runtime.c", "-o", "runtime.so"]
    subprocess.run(gcc, cwd=directory, check=True)
    command = [sys.executable, "own.py"]
    output = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return output.stdout.splitlines()


def test_the_cubins_are_those_of_the_dsl_itself(project: Project, own: list[str]) -> None:
    # Given the page's project, when it is built,
    assert project.compiled("--dump-ir") == 6
    # then its cubins are those of the DSL's own compiles,
    cubins = {
        (program / "module" / "kernel.cubin").read_bytes().hex()
        for program in project.programs.values()
    }
    assert cubins == {*own[::2]}
    for program in project.programs.values():
        # and each launch is expressions over a call's sizes.
        text = (program / "program.txt").read_text()
        assert re.search(r"^grid = cdiv\(m, (64|128)\), cdiv\(n, \1\), 1$", text, re.MULTILINE)
        assert 'compiler = "nvidia-cutlass-dsl' in text
        assert ".entry kernel_cutlass_multiply" in (program / "module/ir/matmul.ptx").read_text()
    assert project.compiled() == 0


def test_a_wheel_launches_as_the_host_function_does(
    project: Project, own: list[str], tmp_path: Path
) -> None:
    # Given a wheel in an environment with nothing but its dependency,
    environment = project.unpack_wheel(tmp_path / "site")
    driver = build_driver(tmp_path / "driver")
    # when it launches its first program,
    journal = tmp_path / "journal"
    made_up = {
        "FAKE_CUDA_ARCHS": "80",
        "FAKE_CUDA_PARAMETERS": " ".join(3 * [f"bytes{TENSOR_BYTES}"]),
        "FAKE_CUDA_JOURNAL": str(journal),
        "LD_LIBRARY_PATH": str(driver),
    }
    command = [sys.executable, "-I", "-S", "-c", WHEEL_CALL, str(environment)]
    subprocess.run(command, env=made_up, check=True)
    # then grid, block, shared memory and each byte of the parameters are those that the DSL's host
    # function launches with.
    (launch,) = (line for line in journal.read_text("latin-1").splitlines() if "launch" in line)
    assert launch.replace("launch in primary0 ", "").replace("stream=(nil) ", "") == own[1]
    package = f"{environment}/gemm/tilus"
    project.run("preflight", package, "--device", "sm_80", "--driver", "13.0")


LAUNCH = "multiply(a, b, c, mma).launch(grid=grid, block=(32 * warps, 1, 1))"
TMA = """

@cute.kernel
def prefetch(atom: cute.CopyAtom):
    cute.nvgpu.cpasync.prefetch_descriptor(atom)


@cute.jit
def with_tma(a: cute.Tensor):
    layout = cute.make_layout((64, 64), stride=(64, 1))
    operation = cute.nvgpu.cpasync.CopyBulkTensorTileG2SOp()
    atom, _ = cute.nvgpu.cpasync.make_tiled_tma_atom(operation, a, layout, (64, 64))
    prefetch(atom).launch(grid=(1, 1, 1), block=(32, 1, 1))
"""


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("kernels.py", ("tile: cutlass", "size: cutlass"), '"size" is not in args'),
        ("kernels.py", ("mma.get_slice", "mma.get_slices"), "kernels.py:9:12"),
        ("kernels.py", (LAUNCH, f"{LAUNCH}\n    {LAUNCH}"), "launches 2 kernels, not one"),
        (
            "kernels.py",
            (LAUNCH, f"if grid[0] > 4:\n        {LAUNCH}"),
            "its host function decides by (cdiv(m, 64) > 4) whether to launch",
        ),
        ("kernels.py", ("@cute.jit\ndef matmul", "def matmul"), '"a", which the script does not'),
        ("tilus.toml", ("py:matmul", "py:with_tma"), "computes with an address, as for a TMA desc"),
        ("tilus.toml", ("py:matmul", "py:multiply"), "it is not a host function of CuTe DSL"),
        ("tilus.toml", ("py:matmul", "py:matmal"), "there is no function matmal"),
        ("tilus.toml", ('"f16*[m, k]"', '"f16*[...]"'), "CuTe DSL has no shape [...] for a"),
        ("tilus.toml", ('"sm_90a"', '["sm_80", "sm_86"]'), "no code for sm_80, sm_86"),
    ],
)
def test_a_mistake_is_one_error(
    tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
    files = {"tilus.toml": MANIFEST, "kernels.py": KERNELS + TMA}
    project = Project(tmp_path).write_all(files)
    project.edit(file, *change)
    assert message in project.run_to_error("build", "-t", "hopper")
