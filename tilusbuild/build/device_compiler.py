"""Which compiler makes a script's device code, and whether it takes what the manifest asks of it.

NVRTC compiles the kernel pipeline only: a script with an `entry` holds host code, and stays nvcc's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilusbuild.compile.nvrtc import STANDARDS, refused
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.manifest import Manifest
from tilusbuild.plan.model import Target
from tilusbuild.toolchain import Toolchain

Pair = tuple[str, Target]
"""A script's name, and what it is built for."""


def through_nvrtc(manifest: Manifest, pair: Pair) -> bool:
    """Whether NVRTC can compile this script for this target."""
    script, target = pair
    return target.kind == "cuda" and manifest.scripts[script].kernel is not None


def problems(
    manifest: Manifest, pairs: Iterable[Pair], toolchain: Toolchain
) -> Iterator[Diagnostic]:
    """What the compilers cannot do of what is asked: architectures, and flags for NVRTC."""
    seen: set[tuple[str | int, ...]] = set()
    for script, target in pairs:
        nvrtc = toolchain.nvrtc is not None and through_nvrtc(manifest, (script, target))
        if (key := ("target", target.name, nvrtc)) not in seen:
            seen.add(key)
            place = manifest.place_of_value("target", target.name, "arch")
            try:
                toolchain.check_archs(target.archs, place, nvrtc=nvrtc)
            except InputError as error:
                yield from error.diagnostics
            if nvrtc:
                yield from _joined(target, toolchain, manifest)
        if nvrtc:
            yield from _flags(manifest, script, target.name, seen)
    if toolchain.nvrtc is not None and manifest.toolchain.std not in STANDARDS:
        std = manifest.toolchain.std
        place = manifest.place_of_value("toolchain", "std")
        yield Diagnostic(f"NVRTC knows no {std}", place, f"it knows {', '.join(STANDARDS)}")


def _joined(target: Target, toolchain: Toolchain, manifest: Manifest) -> Iterator[Diagnostic]:
    several = len(target.archs) > 1 or target.ptx
    if several and toolchain.nvrtc is not None and toolchain.nvrtc.joiner is None:
        yield Diagnostic(
            "several architectures, or PTX, in one library need libnvfatbin beside NVRTC",
            manifest.place_of_value("target", target.name, "arch"),
            "pip install 'tilusbuild[nvrtc]', or give each architecture a target of its own",
        )


def _flags(
    manifest: Manifest, script: str, target: str, seen: set[tuple[str | int, ...]]
) -> Iterator[Diagnostic]:
    """Each flag that NVRTC does not know, once, where it is written."""
    places: tuple[tuple[tuple[str | int, ...], tuple[str, ...]], ...] = (
        (("build", "flags"), manifest.build.flags),
        (("target", target, "flags"), manifest.targets[target].flags),
        (manifest.written(script, target, "flags"), manifest.scripts[script].flags_for(target)),
    )
    for keys, flags in places:
        for one in refused(flags):
            if (path := (*keys, one.index)) not in seen:
                seen.add(path)
                place = manifest.place_of_value(*path)
                yield Diagnostic(f'NVRTC does not know "{one.flag}"', place, one.hint)
