"""DeepGEMM: its bf16 GEMM of sm_90, as its JIT compiles an instance.

Its own way is a small source for each layout, which takes the address of the kernel, compiled by
nvcc to a cubin with the flags of `deep_jit/backend/cuda/options.hpp` and of its library; ninja
stands for the look-up in its cache. The layouts are those that its heuristics for sm_90 weigh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from _bench import ninja, nvcc

from _real import world
from _real.project import Project
from _real.schedules import hold_equal, schedules

PACKAGE = "sgl-deep-gemm==0.2.5"

_SHAPES = ((4096, 7168), (7168, 2048))
_MULTIPROCESSORS = 132
_FLAGS = (
    "--gpu-architecture=sm_90a -O3 --compiler-options=-O3 "
    "--ptxas-options=--register-usage-level=10 -std=c++20 --compiler-options=-fPIC "
    "--compiler-options=-fconcepts --expt-relaxed-constexpr --expt-extended-lambda "
    "--diag-suppress=39,161,174,177,186,940 "
    "--compiler-options=-Wno-deprecated-declarations,-Wno-abi"
)
_NAMES = (
    "shape_n", "shape_k", "block_m", "block_n", "cluster", "multicast_a", "stages", "math_threads",
    "swizzle_d",
)  # fmt: skip
_SOURCE = """\
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>

using namespace deep_gemm;

static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&sm90_bf16_gemm_impl<
        cute::UMMA::Major::K, cute::UMMA::Major::K,
        0, {n}, {k},
        1,
        {layout.m}, {layout.n}, 64,
        128, 128, {layout.swizzle},
        {layout.stages},
        128, {layout.threads},
        {layout.cluster}, {multicast},
        {multiprocessors},
        GemmType::Normal, false,
        cutlass::bfloat16_t
    >);
}};
"""
_NINJA = """\
rule jit
  command = {nvcc} $in --cubin --output-file $out {flags} --include-path {include} -MD -MF $out.d
  deps = gcc
  depfile = $out.d
"""


@dataclass(frozen=True)
class _Layout:
    """A candidate of its heuristics, with what they infer of it."""

    m: int
    n: int
    cluster_m: int
    cluster_n: int

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def swizzle(self) -> int:
        """Bytes, of the output."""
        return next(mode for mode in (128, 64, 32, 16) if self.n * 2 % mode == 0)

    @property
    def stages(self) -> int:
        output = -(-self.m * self.n * 2 // 1024) * 1024
        return min((232448 - output - 16 * 8 * 2) // ((self.m + self.n) * 64 * 2), 16)

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return 128 if self.m <= 64 else 256

    def values(self) -> tuple[object, ...]:
        """Return what the port's schedules are compared by, in `_NAMES`' order."""
        multicast = self.cluster_n > 1
        return self.m, self.n, self.cluster, multicast, self.stages, self.threads, self.swizzle


_Pair: TypeAlias = tuple[tuple[int, int], _Layout]
"""Columns and depth, and a layout."""


def _layouts() -> Iterator[_Layout]:
    """Yield the candidates for a shape of more than 32 rows, in their order."""
    for cluster_m in (1, 2):
        for cluster_n in (1, 2):
            if cluster_m * cluster_n > 2 or _MULTIPROCESSORS % (cluster_m * cluster_n):
                continue
            for m in (64, 128, 256):
                for n in range(16, 257, 16):
                    layout = _Layout(m, n, cluster_m, cluster_n)
                    small = m * n < 128 * 192 and layout.stages < 4
                    if not (m > 128 and n > 128) and layout.stages >= 3 and not small:
                        yield layout


def prepare(instances: int | None) -> Project:
    """Lay `instances` of its 240 kernels out, spread over them, or all."""
    world.install(PACKAGE, alone=True)
    include = world.site("deep_gemm") / "include"
    tree = world.WORK / "deep_gemm"
    world.port("deep_gemm", tree)
    pairs = [(shape, layout) for shape in _SHAPES for layout in _layouts()]
    _hold_equal(tree / "tilus.toml", pairs)
    step = max(1, len(pairs) // (instances or len(pairs)))
    chosen = pairs[::step][:instances]
    build = tree / "theirs"
    lines = [_NINJA.format(nvcc=nvcc(), flags=_FLAGS, include=include)]
    for number, ((n, k), layout) in enumerate(chosen):
        (build / f"{number}").mkdir(parents=True, exist_ok=True)
        multicast = str(layout.cluster_n > 1).lower()
        text = _SOURCE.format(
            n=n, k=k, layout=layout, multicast=multicast, multiprocessors=_MULTIPROCESSORS
        )
        source = build / f"{number}/kernel.cu"
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        lines.append(f"build {number}/kernel.cubin: jit {number}/kernel.cu")
    (build / "build.ninja").write_text("\n".join(lines) + "\n")
    if instances is not None:
        _narrow(tree / "tilus.toml", chosen)
    cubins = [build / f"{number}/kernel.cubin" for number in range(len(chosen))]
    return Project(
        name=f"DeepGEMM, {len(chosen)} of {len(pairs)} bf16 kernels of sm_90a",
        tree=tree,
        theirs=[(build, [ninja(), "-j2"])],
        made=lambda: cubins,
        theirs_again=(build, [ninja(), "-j2"]),
        theirs_code=lambda: cubins,
        theirs_compiles=len(chosen),
        products=(lambda: list(tree.rglob("programs/**/module/lib.so")), lambda: cubins),
        header=include / "deep_gemm/mma/sm90.cuh",
    )


def _hold_equal(manifest: Path, pairs: Sequence[_Pair]) -> None:
    """Hold the manifest's instances to those of the heuristics. Raises `WorkNotDoneError`."""
    hold_equal(
        [tuple(p[name] for name in _NAMES) for p in schedules(manifest, "bf16_gemm", "hopper")],
        [(*shape, *layout.values()) for shape, layout in pairs],
        "DeepGEMM's layouts",
    )


def _narrow(manifest: Path, chosen: Sequence[_Pair]) -> None:
    """Restrict the port to a sample."""
    rules = [
        f"(shape_n == {n} and block_m == {layout.m} and block_n == {layout.n} "
        f"and cluster == {layout.cluster} and multicast_a == {layout.cluster_n > 1})"
        for (n, _), layout in chosen
    ]
    rule = f'[script.bf16_gemm.restrict]\nsample = "{" or ".join(rules)}"'
    text, _, _ = manifest.read_text().partition("[script.bf16_gemm.default]")
    manifest.write_text(text.replace("[script.bf16_gemm.restrict]", rule))
