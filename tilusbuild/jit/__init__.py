"""Kernels inside a program: asked for by name or by source, from memory, disk or the compiler.

It is the way of `tilusbuild build` for one schedule at a time: the same plan, names, tree, errors.
"""

from __future__ import annotations

from tilusbuild.jit.kernel_cache import KernelCache, KernelNotBuilt, Stats
from tilusbuild.jit.request import Source

__all__ = ["KernelCache", "KernelNotBuilt", "Source", "Stats"]
