"""Which target of a script this machine can run: `run` and `tune` choose alike, and first."""

from __future__ import annotations

from typing import get_args

from tilusbuild.builder.project import Project
from tilusbuild.errors import input_error
from tilusbuild.plan.model import PlanSelection, Target, called_script_of, chosen_pairs
from tilusbuild.runtime.device import CodeKind, Device, can_run, code_rank, may_have_cuda
from tilusbuild.runtime.naming import Name
from tilusbuild.tune.bench.bench import ask_gpu


def target_here(
    project: Project, name: Name, target: str | None, index: int = 0, *, cpu_first: bool = False
) -> Target:
    """Return the target: the one that is named, else the best for GPU `index`, else the cpu's; with
    `cpu_first` the cpu's before that. Raises `InputError` when this machine can run none."""
    called_script_of(project.manifest, name)
    selection = PlanSelection((name,), (target,) if target else ())
    targets = [target for _, target in chosen_pairs(project.manifest, selection)]
    host = [target for target in targets if target.kind == "cpu"]
    unneeded = host and (cpu_first or len(targets) == 1)
    gpu = None if unneeded or not may_have_cuda() else ask_gpu(project.runner, index)
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


def _rank(target: Target, gpu: Device) -> tuple[int, int] | None:
    """Return how well code for a target suits a GPU, least first; None where it does not run."""
    ranks = [
        (code_rank(arch.name, gpu.arch, kind), -arch.number)
        for kind in (get_args(CodeKind) if target.ptx else ("sass",))
        for arch in target.archs
        if can_run(arch.name, gpu.arch, kind)
    ]
    return min(ranks, default=None)
