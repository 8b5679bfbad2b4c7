"""The `meta.json` of a program that was compiled here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilusbuild.compile import CompileOutcome
from tilusbuild.compile.described import image_rows, kernel_rows
from tilusbuild.compile.steps import PRODUCT
from tilusbuild.plan.script_instance import RenderedProgram


def described(work: RenderedProgram, outcome: CompileOutcome) -> Mapping[str, Any]:
    """Return the `meta.json` of a program: its status, what the binary holds, what it needs.

    `kernels` is by name and architecture, in bytes and registers of a thread; `dynamic_smem` is the
    launch's bytes of a block, or the expression when the call decides it.
    """
    meta: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "images": image_rows(outcome.images),
        "kernels": kernel_rows(outcome.ptxas),
    }
    if (product := work.recipe.pipeline.product) != PRODUCT:
        meta["product"] = f"module/{product}"
    launch = work.recipe.launch
    if launch is not None:
        smem = launch.smem.substitute(work.recipe.constants)
        meta["dynamic_smem"] = smem.canonical if smem.constant is None else smem.constant
    return meta
