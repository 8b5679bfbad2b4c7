"""What `meta.json` says of compiled code: its images and its kernels' resources, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilusbuild.binary import CodeImage, PtxasUsage


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
