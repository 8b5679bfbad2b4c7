"""examples/marlin: the kernels of vLLM's generator, by their C++ names, and their numbers."""

import numpy as np

from support.cuda_on_cpu.emulator import Kernel
from support.paths import ROOT

EXAMPLE = ROOT / "examples/marlin"


def generated() -> set[tuple[int, int, int, int, int]]:
    """The loops of vLLM's generate_kernels.py, for 4-bit weights."""
    blocks = [(128, 128, 256), (64, 256, 256), (64, 128, 128), (128, 64, 128)]
    return {
        (group, int(16 * size), k, n, threads)
        for group in (-1, 2, 4, 8)
        for size in (0.5, 1, 2, 3, 4)
        for k, n, threads in blocks
        if threads != 256 or (k, n) == ((128, 128) if size <= 1 else (64, 256))
    }


def test_the_space_is_that_of_the_generator(marlin):
    names = ("group_blocks", "thread_m", "thread_k", "thread_n", "threads")
    made = {tuple(p.values[name] for name in names) for p in marlin.programs("gemm", "ampere")}
    assert made == generated()
    assert len(made) == 60


def test_the_numbers(tmp_path):
    lines = (EXAMPLE / "src/w4a16.cuh").read_text().splitlines()
    header = "\n".join(line for line in lines if not line.startswith("#"))
    wrapper = """
extern "C" __global__ void __launch_bounds__(128)
gemm(const float *a, const int *b, const float *scales, float *c, int m, int n, int k, int groups) {
  w4a16::tile<float, 128, 8, 64, 32, 2>(a, b, scales, c, m, n, k, groups);
}
"""
    kernel = Kernel(header + wrapper, "gemm", str(tmp_path))
    m, n, k = 5, 72, 64
    rng = np.random.default_rng(1)
    a = rng.standard_normal((m, k), dtype=np.float32)
    q = rng.integers(0, 16, (k, n), dtype=np.int64)
    scales = rng.standard_normal((2, n), dtype=np.float32)
    shifts = 4 * np.arange(8)[None, :, None]
    words = (q.reshape(k // 8, 8, n) << shifts).sum(axis=1)
    b = words.astype(np.uint32).view(np.int32)
    sizes = [np.int32(m), np.int32(n), np.int32(k), np.int32(2)]
    c = np.zeros((m, n), np.float32)
    done = kernel.launch([2, 1, 1], [128, 1, 1], 0, [a, b, scales, c, *sizes])
    expected = a @ ((q - 8) * np.repeat(scales, 32, axis=0)).astype(np.float32)
    np.testing.assert_allclose(done.tensors[3], expected, rtol=1e-4, atol=1e-4)
