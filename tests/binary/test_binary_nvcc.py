"""The readers against this machine's toolkit: what nvcc was asked for, ptxas, cuobjdump."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.binary.cubin import parse_ptxas, read_cubin
from tilusbuild.binary.elf import BinaryError
from tilusbuild.binary.fatbin import extract_cubins, read_archs

pytestmark = pytest.mark.nvcc

Nvcc = Callable[..., str]

SOURCE = """\
extern "C" __global__ void __launch_bounds__(256) plain(float *x, int n) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (n) x[threadIdx.x] = tile[255 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024) spills(float *x, int n) {
    float a[96];
    _Pragma("unroll") for (int i = 0; i < 96; i++) a[i] = x[i * n + threadIdx.x];
    for (int k = 0; k < n; k++)
        _Pragma("unroll") for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i * 7 + 1) % 96] + x[k];
    _Pragma("unroll") for (int i = 0; i < 96; i++) x[i * n + threadIdx.x] = a[i];
}
__device__ __noinline__ float called(float *x, int n) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i];
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[(int)x[i] & 63];
    return sum;
}
template <int N> __global__ void calls(float *x) {
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = called(x, N);
    asm volatile("bar.sync 3;");
    asm volatile("bar.sync 7;");
    x[0] = dynamic[1];
}
template __global__ void calls<20>(float *);
extern "C" __global__ void empty() {}
"""


def test_clusters_are_those_of_the_source(nvcc: Nvcc, tmp_path: Path) -> None:
    (tmp_path / "c.cu").write_text(
        'extern "C" __global__ void __cluster_dims__(4, 2) fixed() {}\n'
        'extern "C" __global__ void open() {}\n'
    )
    nvcc("-cubin", *gencode("sm_90a"), "c.cu", "-o", "c.cubin")
    cluster_by_name = {
        usage.name: usage.cluster for usage in read_cubin((tmp_path / "c.cubin").read_bytes())
    }
    assert cluster_by_name == {"fixed": (4, 2, 1), "open": None}


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "k.cu").write_text(SOURCE)
    return "k.cu"


def gencode(arch: str, *, ptx: bool = False) -> tuple[str, str]:
    virtual = arch.replace("sm_", "compute_")
    return "-gencode", f"arch={virtual},code={f'[{arch},{virtual}]' if ptx else arch}"


def known_to(nvcc: Nvcc, names: list[str]) -> list[str]:
    helped = nvcc("--help")
    return [name for name in names if f"'{name}'" in helped]


def test_cubins_agree_with_ptxas(nvcc: Nvcc, source: str, tmp_path: Path) -> None:
    archs = known_to(nvcc, ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120a"])
    assert archs
    for arch in archs:
        log = nvcc("-cubin", *gencode(arch), "-Xptxas", "-v", source, "-o", "k.cubin")
        usage_by_kernel = {usage.kernel: usage for usage in parse_ptxas(log)}
        data = (tmp_path / "k.cubin").read_bytes()
        kernels = {kernel.name: kernel for kernel in read_cubin(data)}
        assert (
            set(kernels)
            == set(usage_by_kernel)
            == {"plain", "spills", "empty", "_Z5callsILi20EEvPf"}
        )
        for name, kernel in kernels.items():
            log_of = usage_by_kernel[name]
            assert log_of.arch == arch
            cubin_sizes = (kernel.registers, kernel.stack, kernel.static_smem)
            ptxas_sizes = (log_of.registers, log_of.stack, log_of.static_smem)
            assert cubin_sizes == ptxas_sizes, (arch, name)
        assert kernels["spills"].max_threads == 1024
        assert kernels["empty"].max_threads is None
        assert usage_by_kernel["spills"].spill_bytes > 0
        assert usage_by_kernel["plain"].spill_bytes == 0
        (image,) = read_archs(data)
        assert (image.kind, image.arch) == ("sass", arch)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "a", "f"])
def test_every_name_that_nvcc_takes_is_read_back(nvcc: Nvcc, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k() {}\n')
    names = sorted(set(re.findall(rf"'(sm_\d+{suffix})'", nvcc("--help"))))
    flags = [word for name in names for word in gencode(name, ptx=True)]
    nvcc("-fatbin", *flags, "k.cu", "-o", "k.fatbin")
    data = (tmp_path / "k.fatbin").read_bytes()
    actual = sorted((image.arch, image.kind) for image in read_archs(data))
    assert actual == sorted((name, kind) for name in names for kind in ("sass", "ptx"))
    images = [image for cubin in extract_cubins(data) for image in read_archs(cubin.data)]
    assert sorted(image.arch for image in images) == names


@pytest.mark.parametrize("mode", ["default", "none", "size", "speed"])
def test_images_of_a_fatbin_and_of_a_library(nvcc, source, tmp_path, mode) -> None:
    if "--compress-mode" not in nvcc("--help"):
        pytest.skip("this nvcc has no compression modes")
    archs = known_to(nvcc, ["sm_80", "sm_90a", "sm_100f"][: 3 if mode == "default" else 2])
    flags = [flag for arch in archs for flag in gencode(arch, ptx=arch == "sm_80")]
    expected = [("sass", "sm_80"), ("ptx", "sm_80"), *(("sass", arch) for arch in archs[1:])]
    nvcc("-fatbin", "-compress-mode", mode, *flags, source, "-o", "k.fatbin")
    names = ["k.fatbin"]
    if mode == "default":
        nvcc("-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *flags, source, "-o", "k.so")
        names.append("k.so")
    for name in names:
        data = (tmp_path / name).read_bytes()
        assert sorted((i.kind, i.arch) for i in read_archs(data)) == sorted(expected)
        try:
            cubins = extract_cubins(data)
        except BinaryError as error:
            assert mode == "speed", error  # noqa: PT017
            continue
        assert [c.image.arch for c in cubins] == archs
        assert all(len(read_cubin(c.data)) == 4 for c in cubins)
