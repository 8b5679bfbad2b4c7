"""Triton's kernels from nothing, by a loop of `triton.compile` in one process a core.

Both compile the same kernels, a matrix product over a space of tiles. tilusbuild checks and links
them, too. Neither has anything but the packages and their bytecode.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import _bench
from _bench import Arm, process
from cold import emptied

_MANIFEST = """\
edition = 1
[project]
name = "triton"
version = "0.1.0"
[build]
cache-dir = ".cache"
[target.gpu]
arch = "sm_80"
[script.product]
triton = "kernels/product.py:product"
args.c = {{ type = "f16*[m, n]", out = true, align = 16 }}
args.a = {{ type = "f16*[m, k]", align = 16 }}
args.b = {{ type = "f16*[k, n]", align = 16 }}
args.m = "i32"
args.n = "i32"
args.k = "i32"
launch = {{ grid = ["cdiv(m, BLOCK_M)", "cdiv(n, BLOCK_N)"] }}
space.BLOCK_M = [32, 64]
space.BLOCK_N = [32, 64]
space.BLOCK_K = [16, 32]
space.num_warps = [2, 4, 8]
space.num_stages = {{ range = [2, {last}] }}
"""
_KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def product(c, a, b, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, k, BLOCK_K):
        depth = first + tl.arange(0, BLOCK_K)
        inside_a = (rows < m)[:, None] & (depth < k)[None, :]
        inside_b = (depth < k)[:, None] & (columns < n)[None, :]
        x = tl.load(a + rows[:, None] * k + depth[None, :], mask=inside_a, other=0.0)
        y = tl.load(b + depth[:, None] * n + columns[None, :], mask=inside_b, other=0.0)
        sums = tl.dot(x, y, sums)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.float16), mask=inside)
"""
_LOOP = """\
import os, sys
from itertools import product as combine
workers, last = int(sys.argv[1]), int(sys.argv[2])
number = next(n for n in range(workers) if n == workers - 1 or not os.fork())
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.product import product
signature = dict(c="*fp16", a="*fp16", b="*fp16", m="i32", n="i32", k="i32")
signature |= dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_K"), "constexpr")
divisible = {(i,): [["tt.divisibility", 16]] for i in range(3)}
space = [*combine((32, 64), (32, 64), (16, 32), (2, 4, 8), range(2, last + 1))]
for m, n, k, warps, stages in space[number::workers]:
    source = ASTSource(product, signature, dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k), divisible)
    triton.compile(source, GPUTarget("cuda", 80, 32), dict(num_warps=warps, num_stages=stages))
if number == workers - 1:
    for _ in range(workers - 1):
        if os.wait()[1]:
            sys.exit(1)
"""


def main() -> None:
    asked = _bench.arguments(__doc__, rounds=3, programs=96)
    last = 2 if asked.small else 1 + max(1, asked.programs // 24)
    programs, cores = 24 * (last - 1), len(os.sched_getaffinity(0))
    with _bench.workshop() as directory:
        (directory / "kernels").mkdir()
        (directory / "tilus.toml").write_text(_MANIFEST.format(last=last))
        (directory / "kernels" / "product.py").write_text(_KERNEL)
        (directory / "loop.py").write_text(_LOOP)
        environment = {"TRITON_CACHE_DIR": str(directory / "own"), "TRITON_DISABLE_LINE_INFO": "1"}

        def count(root: Path, pattern: str) -> bool:
            return len([*root.glob(pattern)]) == programs

        arms = [
            Arm(
                "triton.compile in a loop",
                lambda: process(
                    (sys.executable, "loop.py", str(cores), str(last)), directory, environment
                ),
                lambda: count(directory / "own", "*/product.cubin"),
                lambda: emptied(directory / "own"),
            ),
            Arm(
                "tilusbuild build",
                lambda: process((*_bench.TILUSBUILD, "build", "-j", str(cores)), directory),
                lambda: count(directory / ".cache", "programs/*/module/lib.so"),
                lambda: emptied(directory / ".cache"),
            ),
        ]
        _bench.alternate(arms, 1 if asked.small else asked.rounds, warm_up=False)
        result = _bench.report(f"cold, {programs} kernels of Triton", arms, per=programs)
    _bench.finish(asked, [result])


if __name__ == "__main__":
    main()
