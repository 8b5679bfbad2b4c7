"""Which target of a script this machine can run: `run` and `tune` choose alike, and first."""

from __future__ import annotations

from tilusbuild.builder.project import Project
from tilusbuild.errors import input_error
from tilusbuild.plan.model import PlanSelection, Target, called_script_of, chosen_pairs
from tilusbuild.runtime.choose import suited
from tilusbuild.runtime.device import may_have_cuda
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
    fits = [
        (rank, target)
        for target in targets
        if gpu and (rank := suited([a.name for a in target.archs], target.ptx, gpu)[0])
    ]
    if fits or host:
        return min(fits, key=lambda fit: fit[0])[1] if fits else host[0]
    names = ", ".join(f"{target.name} ({target.arch})" for target in targets)
    here = f"its GPU is {gpu}" if gpu else "it has no CUDA device"
    newer = "`ptx = true` in an older target runs on newer GPUs, too;\n" if gpu else ""
    raise input_error(
        f"{name.script} is built for {names}, which this machine cannot run: {here}",
        hint=f"{newer}`tilusbuild tune --export FILE` makes a bundle to measure elsewhere",
    )
