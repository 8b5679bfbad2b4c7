"""What the compilers cannot do of what a manifest asks: architectures, flags, the C++ standard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilusbuild.compile.pipelines import Pipeline, pipeline_for
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import Target
from tilusbuild.toolchain import Toolchain

Keys = tuple[str | int, ...]


def refusals(
    manifest: Manifest, pairs: Iterable[tuple[str, Target]], toolchain: Toolchain
) -> list[Diagnostic]:
    """Return what is refused, each once, for pairs of a script's name and a target."""
    found: list[Diagnostic] = []
    used: dict[Pipeline, None] = {}
    for script, target in pairs:
        has_kernel = manifest.scripts[script].kernel is not None
        pipeline = pipeline_for(target.kind, has_kernel, toolchain.device_compiler)
        used[pipeline] = None
        found += _tools(manifest, target, pipeline, toolchain)
        found += _flags(manifest, script, target.name, pipeline)
    for pipeline in used:
        found += _standard(manifest, pipeline)
    return list(dict.fromkeys(found))


def _tools(
    manifest: Manifest, target: Target, pipeline: Pipeline, toolchain: Toolchain
) -> Iterator[Diagnostic]:
    place = manifest.place_of_value("target", target.name, "arch")
    try:
        pipeline.check_archs(toolchain, target.archs, place)
    except InputError as error:
        yield from error.diagnostics
    if problem := pipeline.tools_problem(target.archs, target.ptx, toolchain):
        message, hint = problem
        yield Diagnostic(message, place, hint)


def _flags(
    manifest: Manifest, script: str, target: str, pipeline: Pipeline
) -> Iterator[Diagnostic]:
    """Yield each flag that the compiler does not know, where it is written."""
    places: tuple[tuple[Keys, tuple[str, ...]], ...] = (
        (("build", "flags"), manifest.build.flags),
        (("target", target, "flags"), manifest.targets[target].flags),
        (manifest.written(script, target, "flags"), manifest.scripts[script].flags_for(target)),
    )
    for keys, flags in places:
        for one in pipeline.refused_flags(flags):
            place = manifest.place_of_value(*keys, one.index)
            message = f'{pipeline.compiler} does not know "{one.flag}"'
            yield Diagnostic(message, place, one.hint)


def _standard(manifest: Manifest, pipeline: Pipeline) -> Iterator[Diagnostic]:
    std = manifest.toolchain.std
    if pipeline.standards is not None and std not in pipeline.standards:
        place = manifest.place_of_value("toolchain", "std")
        known = ", ".join(pipeline.standards)
        yield Diagnostic(f"{pipeline.compiler} does not know {std}", place, f"it knows {known}")
