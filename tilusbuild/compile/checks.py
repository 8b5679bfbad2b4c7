"""Checks of a compile: the launch fits the hardware, the code is for the kernel and the targets.

Each check returns the reason why the program is not built, as one line, or None; `judge_code` asks
them of an image. The pipelines import this when something was compiled: a build that compiles
nothing starts without what reads binaries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tilusbuild.arch import Arch, Occupancy, compute_occupancy, list_codes, parse_arch
from tilusbuild.binary import (
    BinaryError,
    CodeImage,
    KernelUsage,
    PtxasUsage,
    extract_cubins,
    parse_ptxas,
    read_archs,
    read_cubin,
    read_needs,
)
from tilusbuild.binary.elf import is_relocatable
from tilusbuild.compile.arguments import (
    constants_problem,
    parameter_problem,
    variable_sizes,
)
from tilusbuild.compile.causes import StepError
from tilusbuild.compile.geometry import Geometry, geometry, map_places
from tilusbuild.compile.kernel_names import cpp_name, is_cpp, symbol_of
from tilusbuild.compile.launcher import EXPORTS
from tilusbuild.compile.model import Findings, Recipe, Step
from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.signature import Tile
from tilusbuild.status import Cause

_MAX_CLUSTER = 16
_MOST = {
    "grid.x": 2**31 - 1,
    "grid.y": 65535,
    "grid.z": 65535,
    "block.x": 1024,
    "block.y": 1024,
    "block.z": 64,
    **dict.fromkeys(("cluster.x", "cluster.y", "cluster.z"), _MAX_CLUSTER),
}


def launch_problem(recipe: Recipe) -> str | None:
    """Return why no device of the target can run a launch of this size."""
    try:
        launch = geometry(recipe)
    except ValueError as error:
        return str(error)
    for place, most in _MOST.items():
        size = launch.fixed(place) if place in launch.slots else None
        if size is not None and not 1 <= size[0] <= most:
            return f"{place} is {size[0]}, outside 1..{most}"
    block, smem = launch.block, launch.smem
    if block is not None and math.prod(block) > 1024:
        return f"a block of {block} has {math.prod(block)} threads, more than 1024"
    if smem is not None and smem < 0:
        return f"smem is {smem} bytes"
    for arch in recipe.archs:
        if smem is not None and smem > arch.smem_per_block:
            return (
                f"a block needs {smem} bytes of dynamic shared memory; "
                f"{arch.name} has {arch.smem_per_block}"
            )
    return _attribute_problem(recipe, launch) or _map_problem(recipe, launch)


_MAP_WIDTHS = {
    "interleave": (0, 16, 32),
    "swizzle": (0, 32, 64, 128),
    "l2-promotion": (0, 64, 128, 256),
}


def _map_problem(recipe: Recipe, launch: Geometry) -> str | None:
    """Return why a tensor map cannot be made, as the driver's manual has it for tiled ones."""
    for name, tile in recipe.signature.tensor_maps:
        places = {place: launch.number(place) for place in map_places(name, tile)}
        for arch in recipe.archs:
            if arch.number < 90:
                return f"tensor maps need sm_90 or later, which {arch.name} is not"
        for place, value in places.items():
            key = place.split(".")[1]
            most = {"box": 256, "element-strides": 8}.get(key)
            if most is not None and not 1 <= value <= most:
                return f"{place} is {value}, outside 1..{most}"
            if most is None and value not in _MAP_WIDTHS[key]:
                return f"{place} is {value}, not one of {', '.join(map(str, _MAP_WIDTHS[key]))}"
        if reason := _inner_problem(recipe, name, tile, places):
            return reason
    return None


def _inner_problem(recipe: Recipe, name: str, tile: Tile, places: Mapping[str, int]) -> str | None:
    rank = len(tile.box)
    tensor = next(a for a in recipe.signature.arguments if a.name == tile.tensor)
    inner = places[f"{name}.box.{rank - 1}"] * get_scalar_type(tensor.dtype).bytes
    swizzle, interleave = places[f"{name}.swizzle"], places[f"{name}.interleave"]
    if interleave and rank < 3:
        return f"{name} is interleaved, which needs 3 dimensions"
    if not interleave and inner % 16:
        return f"a row of {name}.box has {inner} bytes, not a multiple of 16"
    if swizzle and not interleave and inner > swizzle:
        return f"a row of {name}.box has {inner} bytes, more than the {swizzle} of its swizzle"
    return None


def _attribute_problem(recipe: Recipe, launch: Geometry) -> str | None:
    """Return why a launch cannot have the attributes that it asks for."""
    if recipe.launch is None or not recipe.launch.has_attributes:
        return None
    old = next((arch.name for arch in recipe.archs if arch.number < 90), None)
    carve_out = launch.number("carve-out")
    if not -1 <= carve_out <= 100 or (recipe.launch.carve_out is not None and carve_out < 0):
        return f"carve-out is {carve_out}, outside 0..100 percent"
    if launch.number("pdl") and old:
        return f"pdl needs sm_90 or later, which {old} is not"
    cluster = launch.cluster
    if cluster is None or math.prod(cluster) > 1:
        if old:
            return f"clusters need sm_90 or later, which {old} is not"
        if cluster and (blocks := math.prod(cluster)) > _MAX_CLUSTER:
            return f"a cluster of {cluster} has {blocks} blocks, more than {_MAX_CLUSTER}"
    return _uneven_grid(launch, cluster)


def _uneven_grid(launch: Geometry, cluster: tuple[int, ...] | None) -> str | None:
    for axis, size in zip("xyz", cluster or (), strict=False):
        blocks = launch.fixed(f"grid.{axis}")
        if blocks is not None and blocks[0] % size:
            return f"grid.{axis} is {blocks[0]}, which is not a multiple of cluster.{axis}, {size}"
    return None


def kernel_problem(recipe: Recipe, usages: Sequence[tuple[Arch, KernelUsage]]) -> str | None:
    """Return why the compiled kernel cannot be launched as the schedule declares."""
    launch = geometry(recipe)
    threads = math.prod(launch.block) if launch.block is not None else None
    dynamic = launch.smem or 0
    for arch, usage in usages:
        needed = usage.static_smem + dynamic
        if needed > arch.smem_per_block:
            return (
                f"a block needs {needed} bytes of shared memory ({usage.static_smem} static); "
                f"{arch.name} has {arch.smem_per_block}"
            )
        if reason := _cluster_problem(recipe, launch, usage):
            return reason
        if threads and usage.max_threads is not None and threads > usage.max_threads:
            return (
                f"a block has {threads} threads; the kernel is bounded to {usage.max_threads} "
                "(__launch_bounds__)"
            )
        held = _held(launch, arch, usage)
        if held is not None and held.blocks_per_sm < 1:
            return f"no block fits on {arch.name}: too many {' and '.join(held.limited_by)}"
    return None


def _held(launch: Geometry, arch: Arch, usage: KernelUsage) -> Occupancy | None:
    """Return what an SM holds at once; None where a call decides how large a block is."""
    if launch.block is None:
        return None
    return compute_occupancy(
        arch,
        threads=math.prod(launch.block),
        registers=usage.registers,
        static_smem=usage.static_smem,
        dynamic_smem=launch.smem or 0,
    )


def _cluster_problem(recipe: Recipe, launch: Geometry, usage: KernelUsage) -> str | None:
    """Return how the launch differs from the clusters that the kernel was compiled for."""
    if usage.cluster is None:
        return None
    if recipe.launch is None or not recipe.launch.cluster:
        if math.prod(usage.cluster) > 8:  # the driver must be asked for more before a launch
            return f"the kernel has clusters of {usage.cluster} blocks: declare launch.cluster"
        return _uneven_grid(launch, usage.cluster)
    declared = launch.cluster
    if declared == usage.cluster:
        return None
    said = "one that depends on arguments" if declared is None else str(declared)
    return (
        f"launch.cluster is {said}; the kernel is compiled for {usage.cluster} (__cluster_dims__)"
    )


def prune_reason(
    recipe: Recipe,
    symbol: str,
    usages: Sequence[tuple[Arch, KernelUsage]],
    ptxas: Sequence[PtxasUsage],
) -> str | None:
    """Return which limit of `[script.x.prune]` the kernel exceeds."""
    limits = recipe.prune
    if limits is None:
        return None
    for arch, usage in usages:
        if limits.max_registers is not None and usage.registers > limits.max_registers:
            return f"{usage.registers} registers on {arch.name}, more than {limits.max_registers}"
        held, least = _held(geometry(recipe), arch, usage), limits.min_blocks_per_sm
        if held is not None and least is not None and held.blocks_per_sm < least:
            return (
                f"{held.blocks_per_sm} blocks per SM on {arch.name}, "
                f"fewer than {least} (limited by {' and '.join(held.limited_by)})"
            )
    if limits.max_spill_bytes is not None:
        for report in ptxas:
            if report.kernel == symbol and report.spill_bytes > limits.max_spill_bytes:
                return (
                    f"{report.spill_bytes} bytes of spills on {report.arch}, "
                    f"more than {limits.max_spill_bytes}"
                )
    return None


def symbol_problem(recipe: Recipe, names: Sequence[str]) -> str | None:
    """Return why the code has no kernel of the declared name."""
    if recipe.symbol in names:
        return None
    if is_cpp(recipe.symbol):
        return f'"{recipe.symbol}" is not a kernel that the source defines'
    mangled = [name for name in names if cpp_name(name).rpartition("::")[2] == recipe.symbol]
    if _is_template(recipe):
        return _no_template(recipe, "kernel")
    if mangled:
        name = cpp_name(mangled[0])
        return (
            f'kernel "{recipe.symbol}" has a C++ name ({mangled[0]}): write kernel = '
            f'"{name}", or declare it extern "C"'
        )
    held = ", ".join(names) or "none"
    return f'the source holds no kernel "{recipe.symbol}" (it holds: {held})'


def link_problem(recipe: Recipe, log: str) -> str | None:
    """Return the meaning of a linker's error: what is nowhere, or not defined."""
    if nowhere := re.search(r"cannot find -l(\S+?):?(?:\s|$)", log):
        name = nowhere[1]
        files = name[1:] if name.startswith(":") else f"lib{name}.so or lib{name}.a"
        return f"error: {files} is neither in link-dirs, nor in the toolkit, nor in the system"
    if device := re.search(r"Unresolved extern function '(\w+)'", log):
        return f"error: this source does not define {device[1]}, and another object {_LINKED_APART}"
    missing = re.findall(r"undefined reference to [`']([^']+)'", log)
    if recipe.symbol in missing and _is_template(recipe):
        return _no_template(recipe, "function")
    if recipe.symbol not in missing:
        return _undefined(recipe, missing)
    return f'the source defines no function "{recipe.symbol}" with C linkage: declare it extern "C"'


def _is_template(recipe: Recipe) -> bool:
    head = rf"\btemplate\s*<[^;{{}}]*>[^;{{}}()]*\b{re.escape(recipe.symbol)}\s*\("
    return re.search(head, recipe.source) is not None


def _no_template(recipe: Recipe, what: str) -> str:
    if what == "kernel":
        return (
            f'"{recipe.symbol}" is a C++ template, which has no C name: name one of its '
            f'kernels, as in kernel = "{recipe.symbol}<{{{{ block }}}}>"'
        )
    return (
        f'"{recipe.symbol}" is a C++ template, which has no C name: write a {what} that is none, '
        f'extern "C", with the values that are rendered, and call the template in it'
    )


NO_DEVICE_LINK = (
    "error: relocatable device code (-rdc=true) needs a device link, which a program of one source "
    "does not get: include what other units define, or make it a library, [library.NAME] with "
    "rdc = true"
)
_LINKED_APART = "needs a device link: rdc = true in [library.NAME]"


def _undefined(recipe: Recipe, missing: Sequence[str]) -> str | None:
    """Return the meaning of a linker's error about other names."""
    if not missing:
        return None
    if any("__cudaRegisterLinkedBinary" in name or "__fatbinwrap" in name for name in missing):
        return (
            NO_DEVICE_LINK if recipe.pipeline.has_source else f"error: device code {_LINKED_APART}"
        )
    names = ", ".join(dict.fromkeys(missing))
    return f"error: nothing that is linked defines {names}"


def library_problem(recipe: Recipe, data: bytes, images: Sequence[CodeImage]) -> str | None:
    """Return what is wrong with the linked library. This is never the program's own fault."""
    try:
        needs = read_needs(data)
    except BinaryError as error:
        return f"lib.so is not a library: {error}"
    if missing := needs.find_missing_exports(*EXPORTS):
        return f"lib.so does not export {', '.join(missing)}"
    if recipe.pipeline.launcher.starts_kernel and needs.libraries:
        return f"lib.so needs {', '.join(needs.libraries)}, and must not need any"
    if recipe.pipeline.launcher.starts_kernel and not needs.unwinds:
        # What ld leaves out where it could not read an object's entries, and ends well.
        return "lib.so has unwind entries and no index of them (.eh_frame_hdr)"
    held: set[tuple[str, str]] = {(image.kind, image.arch) for image in images}
    asked = asked_images(recipe)
    if held != asked:
        return f"lib.so holds code for {_listed(held)} instead of {_listed(asked)}"
    return None


def asked_images(recipe: Recipe) -> set[tuple[str, str]]:
    """Return the (kind, arch) of the code that the recipe's library must hold, exactly."""
    if not recipe.pipeline.launcher.cuda:
        return set()
    found = list_codes(recipe.archs, ptx=recipe.ptx)
    return {(kind, a.name) for a, ptx in found for kind in ("sass", *(["ptx"] if ptx else []))}


def _listed(images: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{arch} ({kind})" for kind, arch in images)) or "nothing"


def images_of(data: bytes) -> tuple[CodeImage, ...]:
    """Return the code in a library; none for data that is not a library."""
    try:
        return read_archs(data)
    except BinaryError:
        return ()


def judge_symbol(recipe: Recipe, work: str) -> None:
    """Raise `StepError` when the source did not get to where the kernel's name is asked for."""
    if not symbol_of(recipe, work):
        raise StepError(Cause.CHECK, f'the source ends before "{recipe.symbol}" can be named')


def judge_code(
    recipe: Recipe, step: Step, data: bytes, work: str, log: str, found: Findings
) -> None:
    """Add to `found` what the code of an image says. Raises `StepError` when it must not be."""
    symbol = symbol_of(recipe, work)
    try:
        cubins = extract_cubins(data)
        codes = [(parse_arch(cubin.image.arch), read_cubin(cubin.data)) for cubin in cubins]
        # Of a program without constants the symbols are not read again.
        has_constants = bool(recipe.signature.constants)
        variables = [variable_sizes(cubin.data) for cubin in cubins if has_constants]
    except BinaryError as error:
        reason = f"{step.tool} ended well but {step.output} cannot be read: {error}"
        raise StepError(Cause.OUTPUT, reason) from None
    if not codes:
        raise StepError(Cause.OUTPUT, f"{step.tool} ended well but {step.output} holds no code")
    # The driver loads no such code, and only a call would find out.
    if any(is_relocatable(cubin.data) for cubin in cubins):
        raise StepError(Cause.CHECK, NO_DEVICE_LINK)
    found.ptxas = parse_ptxas(log)
    for _, kernels in codes:
        names = [kernel.name for kernel in kernels]
        if symbol not in names and (problem := symbol_problem(recipe, names)):
            raise StepError(Cause.CHECK, problem)
    if "-v" in step.argv and symbol not in (usage.kernel for usage in found.ptxas):
        # Spills are in the log only; that of a tool whose output was lost has no limit.
        raise StepError(Cause.OUTPUT, f"{step.tool} did not say what its {step.output} takes")
    found.usages = [
        (arch, kernel) for arch, kernels in codes for kernel in kernels if kernel.name == symbol
    ]
    if problem := _arguments_problem(recipe, found.usages, variables):
        raise StepError(Cause.CHECK, problem)
    if problem := kernel_problem(recipe, found.usages):
        raise StepError(Cause.CHECK, problem)
    if exceeded := prune_reason(recipe, symbol, found.usages, found.ptxas):
        raise StepError(Cause.LIMIT, exceeded)
    found.images = tuple(cubin.image for cubin in cubins)


def _arguments_problem(
    recipe: Recipe,
    usages: Iterable[tuple[Arch, KernelUsage]],
    variables: Iterable[Mapping[str, int]],
) -> str | None:
    """Return how what a call passes differs from what the code takes, for any architecture."""
    for _, usage in usages:
        if problem := parameter_problem(recipe.signature, usage.parameters):
            return problem
    for each in variables:
        if problem := constants_problem(recipe, each):
            return problem
    return None
