"""The `meta.json` of a program that was compiled: its images, its kernels' resources, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tilusbuild.binary import CodeImage, PtxasUsage
from tilusbuild.compile.model import PRODUCT, Recipe
from tilusbuild.status import Compiled


def image_rows(images: Iterable[CodeImage]) -> list[dict[str, Any]]:
    """Return the code in a library: kind, architecture and bytes of each image."""
    return [{"kind": image.kind, "arch": image.arch, "size": image.size} for image in images]


def kernel_rows(usages: Iterable[PtxasUsage]) -> dict[str, dict[str, Any]]:
    """Return what each kernel takes, by name and architecture; bytes, and registers of a thread."""
    kernels: dict[str, dict[str, Any]] = {}
    for usage in usages:
        kernels.setdefault(usage.kernel, {})[usage.arch] = {
            "registers": usage.registers,
            "stack": usage.stack,
            "spill_stores": usage.spill_stores,
            "spill_loads": usage.spill_loads,
            "static_smem": usage.static_smem,
            "barriers": usage.barriers,
        }
    return kernels


def described(recipe: Recipe, compiled: Compiled) -> Mapping[str, Any]:
    """Return the `meta.json` of a program: its status, what the binary holds, what it needs.

    `kernels` is by name and architecture, in bytes and registers of a thread; `dynamic_smem` is the
    launch's bytes of a block, or the expression when the call decides it.
    """
    meta: dict[str, Any] = {
        "status": compiled.status,
        "reason": compiled.reason,
        "images": image_rows(compiled.images),
        "kernels": kernel_rows(compiled.ptxas),
    }
    if (product := recipe.pipeline.product) != PRODUCT:
        meta["product"] = f"module/{product}"
    launch = recipe.launch
    if launch is not None:
        smem = launch.smem.substitute(recipe.constants)
        meta["dynamic_smem"] = smem.canonical if smem.constant is None else smem.constant
    return meta
