"""The emulator finds what it is there to find: each test breaks a kernel in one way."""

import numpy as np
import pytest

from support.cuda_on_cpu.emulator import Kernel, KernelError


@pytest.fixture
def run(gemm, launch, tmp_path):
    """Launches the default GEMM with one piece replaced: (result, expected, counts)."""
    program = gemm.default("gemm", "hopper", dtype="f16")

    def broken(old, new, **options):
        source = program.source
        assert old in source
        kernel = Kernel(source.replace(old, new), program.script, str(tmp_path))
        rng = np.random.default_rng(0)
        m, n, k = 128, 128, 320
        a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
        c = np.zeros((m, n), np.float16)
        arguments = [a, b, c, np.int32(m), np.int32(n), np.int32(k), np.float32(1)]
        done = launch(program, kernel, arguments, m=m, n=n, k=k, **options)
        return done.tensors[2], a.astype(np.float32) @ b.astype(np.float32), done

    return broken


BARRIER = "    __syncthreads();  // this stage"


def test_a_barrier_that_is_missing(run):
    result, expected, _ = run(BARRIER, "    // this stage", late_copies=False)
    assert not np.allclose(result, expected, rtol=1e-2, atol=1e-2)


def test_bank_conflicts(run):
    result, expected, done = run("(chunk ^ ", "(chunk + 0 * ")
    np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)
    assert done.ldmatrix_conflicts > 0


def test_a_copy_from_outside(run):
    with pytest.raises(KernelError, match="reads outside of every buffer"):
        run("column + j * chunk;", "column + j * chunk + 8;")


def test_a_barrier_that_half_the_block_reaches(tmp_path):
    source = """
    extern "C" __global__ void k(float *x) {
      if (threadIdx.x < 32) { __syncthreads(); }
      x[threadIdx.x] = __shfl_xor_sync(0xffffffff, x[threadIdx.x], 1);
      if (threadIdx.x >= 32) __shfl_xor_sync(0xffffffff, 0, threadIdx.x < 48 ? 1 : 2);
    }
    """
    x = np.arange(64, dtype=np.float32)
    swapped = Kernel(source, "k", str(tmp_path)).launch([1], [64], 0, [x]).tensors[0]
    np.testing.assert_array_equal(swapped, x.reshape(-1, 2)[:, ::-1].reshape(-1))
