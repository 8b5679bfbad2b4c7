"""Which target of a script this machine can run: `run` and `tune` choose alike, before they build.

The GPU is asked in a process of its own, so that a driver that fails ends that one only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from tilusbuild.builder.project import Project
from tilusbuild.errors import input_error
from tilusbuild.plan.model import PlanSelection, Target, called_script_of, chosen_pairs
from tilusbuild.runtime.device import CodeKind, Device, can_run, code_rank, cpu, may_have_cuda
from tilusbuild.runtime.naming import Name
from tilusbuild.tune.bench.bench import DeviceBench


def target_here(
    project: Project, name: Name, target: str | None, index: int = 0, *, cpu_first: bool = False
) -> Target:
    """Return the target: the one that is named, else the best for GPU `index`, else the cpu's; with
    `cpu_first` the cpu's before that. Raises `InputError` when this machine can run none."""
    called_script_of(project.manifest, name)
    selection = PlanSelection((name,), (target,) if target else ())
    targets = [target for _, target in chosen_pairs(project.manifest, selection)]
    host = [target for target in targets if target.kind == "cpu"]
    gpu = None if host and (cpu_first or len(targets) == 1) else _gpu(project, index)
    fits = [(rank, t) for t in targets if gpu and (rank := _rank(t, gpu))]
    if fits or host:
        return min(fits, key=lambda fit: fit[0])[1] if fits else host[0]
    names = ", ".join(f"{target.name} ({target.arch})" for target in targets)
    here = f"its GPU is {gpu}" if gpu else "it has no CUDA device"
    newer = "`ptx = true` in an older target runs on newer GPUs, too;\n" if gpu else ""
    raise input_error(
        f"{name.script} is built for {names}, which this machine cannot run: {here}",
        hint=f"{newer}`tilusbuild tune --export FILE` makes a bundle to measure elsewhere",
    )


def device_of(facts: Mapping[str, Any], index: int) -> Device:
    """Return the device, as a worker described it."""
    if facts["kind"] == "cpu":
        return cpu()
    return Device("cuda", index, str(facts["name"]), str(facts["arch"]), int(facts["driver"]))


def _gpu(project: Project, index: int) -> Device | None:
    if not may_have_cuda():
        return None
    bench = DeviceBench(project.runner, "cuda", index, {}, limit=60.0)
    try:
        return device_of(bench.describe(), index)
    finally:
        bench.close()


def _rank(target: Target, gpu: Device) -> tuple[int, int] | None:
    """Return how well code for a target suits a GPU, least first; None where it does not run."""
    ranks = [
        (code_rank(arch.name, gpu.arch, kind), -arch.number)
        for kind in (get_args(CodeKind) if target.ptx else ("sass",))
        for arch in target.archs
        if can_run(arch.name, gpu.arch, kind)
    ]
    return min(ranks, default=None)
