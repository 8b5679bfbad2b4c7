"""saxpy in Triton, whose launcher a call is compared with."""

import triton
import triton.language as tl


@triton.jit
def kernel(x, y, a, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, a * tl.load(x + at, inside) + tl.load(y + at, inside), inside)
