"""saxpy in Triton, whose launcher a call is compared with."""

import triton
import triton.language as tl


@triton.jit
def kernel(x, y, a, n, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(y + offsets, a * tl.load(x + offsets, inside) + tl.load(y + offsets, inside), inside)
