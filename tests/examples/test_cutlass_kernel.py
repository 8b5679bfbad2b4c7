"""The CuTe kernel computes what NumPy computes, emulated with the CUTLASS wheel's own headers."""

import numpy as np
import pytest

from support.cuda_on_cpu import cute
from support.cuda_on_cpu.emulator import Kernel


@pytest.fixture
def flags(tmp_path):
    cutlass, cuda = cute.cutlass_headers(), cute.cuda_headers()
    if cutlass is None:
        pytest.skip("no CUTLASS headers: pip install nvidia-cutlass==4.2.0.0")
    if cuda is None:
        pytest.skip("no CUDA headers on this machine")
    return cute.compiler_flags(str(tmp_path / "include"), cutlass, cuda)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [{"block_n": 128, "block_k": 32}, {"block_n": 64, "block_k": 64}]
)
def test_linear(cutlass, launch, flags, tmp_path, schedule):
    program = cutlass.programs("linear", "sm_80", **schedule)[0]
    kernel = Kernel(program.source, program.script, str(tmp_path), flags)
    block_m, block_n, block_k = (program.values[f"block_{d}"] for d in "mnk")
    rng = np.random.default_rng(0)
    # Several tiles with edges and more steps than stages; one tile that is mostly outside.
    for m, n, k in [(block_m + 5, block_n + 24, block_k * 6 + 8), (40, 24, 16)]:
        x, w, bias = (
            rng.standard_normal(shape).astype(np.float16) for shape in [(m, k), (n, k), (n,)]
        )
        arguments = [
            x,
            w,
            bias,
            np.zeros((m, n), np.float16),
            np.int32(m),
            np.int32(n),
            np.int32(k),
        ]
        expected = cutlass.reference.linear(x, w, bias, None)
        for options in [{}, {"late_copies": False, "order": "backward"}]:
            done = launch(program, kernel, arguments, m=m, n=n, k=k, **options)
            result = done.tensors[3].astype(np.float32)
            np.testing.assert_allclose(result, expected, rtol=2**-10, atol=1e-3)
            assert done.ldmatrix_conflicts == 0
            assert done.copy_conflicts == 0
