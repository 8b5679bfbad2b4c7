"""Checks of a compile: the launch fits the hardware, the code is for the kernel and the targets.

Each check returns the reason why the program is not built, as one line, or None;
`check_device_code` runs those of an image. The pipelines import this module only after a compile:
a build that compiles nothing starts without the readers of binaries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from tilusbuild.arch import Arch, Occupancy, compute_occupancy, list_embedded_archs, parse_arch
from tilusbuild.binary.cubin import KernelUsage, PtxasUsage, parse_ptxas, read_cubin
from tilusbuild.binary.elf import BinaryError, is_relocatable, read_needs
from tilusbuild.binary.fatbin import CodeImage, extract_cubins, read_archs
from tilusbuild.compile.arguments import (
    find_constants_problem,
    find_parameter_problem,
    read_variable_sizes,
)
from tilusbuild.compile.causes import StepError
from tilusbuild.compile.geometry import Geometry, build_geometry, collect_map_numbers
from tilusbuild.compile.kernel_names import demangle_name, find_symbol, is_cpp_name
from tilusbuild.compile.launcher import EXPORTS
from tilusbuild.compile.model import Findings, Recipe, Step
from tilusbuild.compile.steps import list_steps
from tilusbuild.runtime.dtypes import get_scalar_type
from tilusbuild.signature.model import MAP_WIDTHS, Tile
from tilusbuild.status import Cause

_MAX_CLUSTER = 16  # blocks, as on Hopper with cudaFuncAttributeNonPortableClusterSizeAllowed
_PORTABLE_CLUSTER = 8  # blocks that every device with clusters supports
_MAX_THREADS = 1024  # of a block
_MAX_MAP_SIZES = {"box": 256, "element-strides": 8}  # cuTensorMapEncodeTiled
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": on every GPU.
_MAX_SIZES = {
    "grid.x": 2**31 - 1,
    "grid.y": 65535,
    "grid.z": 65535,
    "block.x": 1024,
    "block.y": 1024,
    "block.z": 64,
    **dict.fromkeys(("cluster.x", "cluster.y", "cluster.z"), _MAX_CLUSTER),
}


def find_launch_problem(recipe: Recipe) -> str | None:
    """Return why no device of the target can run a launch of this size; None if one can. Sizes that
    depend on arguments are not checked."""
    try:
        launch = build_geometry(recipe)
    except ValueError as error:
        return str(error)
    for name, limit in _MAX_SIZES.items():
        size = launch.find_fixed_number(name) if name in launch.slots else None
        if size is not None and not 1 <= size <= limit:
            return f"{name} is {size}, outside 1..{limit}"
    block, smem = launch.block, launch.smem
    if block is not None and math.prod(block) > _MAX_THREADS:
        return f"a block of {block} has {math.prod(block)} threads, more than {_MAX_THREADS}"
    if smem is not None and smem < 0:
        return f"smem is {smem} bytes"
    for arch in recipe.archs:
        if smem is not None and smem > arch.smem_per_block:
            return (
                f"a block needs {smem} bytes of dynamic shared memory; "
                f"{arch.name} has {arch.smem_per_block}"
            )
    return _find_attribute_problem(recipe, launch) or _find_tensor_map_problem(recipe, launch)


def _find_tensor_map_problem(recipe: Recipe, launch: Geometry) -> str | None:
    """Return why the driver would refuse a tensor map (cuTensorMapEncodeTiled); None if it would
    not."""
    old_arch = _find_before_hopper(recipe)
    for name, tile in recipe.signature.tensor_maps:
        if old_arch:
            return f"tensor maps need sm_90 or later, which {old_arch} is not"
        map_numbers = {
            number: launch.read_number(number) for number in collect_map_numbers(name, tile)
        }
        for number_name, value in map_numbers.items():
            key = number_name.split(".")[1]  # "x_map.box.0" → "box"
            limit = _MAX_MAP_SIZES.get(key)
            if limit is not None and not 1 <= value <= limit:
                return f"{number_name} is {value}, outside 1..{limit}"
            if limit is None and value not in MAP_WIDTHS[key]:
                widths = ", ".join(map(str, MAP_WIDTHS[key]))
                return f"{number_name} is {value}, not one of {widths}"
        if reason := _find_inner_box_problem(recipe, name, tile, map_numbers):
            return reason
    return None


def _find_inner_box_problem(
    recipe: Recipe, name: str, tile: Tile, map_numbers: Mapping[str, int]
) -> str | None:
    """Return why the innermost dimension of a map's box does not fit its swizzle and interleave;
    None if it does. `map_numbers` are the map's numbers by name."""
    rank = len(tile.box)
    tensor = tile.view or next(a for a in recipe.signature.arguments if a.name == tile.tensor)
    row_bytes = map_numbers[f"{name}.box.{rank - 1}"] * get_scalar_type(tensor.dtype).bytes
    swizzle, interleave = map_numbers[f"{name}.swizzle"], map_numbers[f"{name}.interleave"]
    if interleave:
        return f"{name} is interleaved, which needs 3 dimensions" if rank < 3 else None
    if row_bytes % 16:
        return f"a row of {name}.box has {row_bytes} bytes, not a multiple of 16"
    if swizzle and row_bytes > swizzle:
        return f"a row of {name}.box has {row_bytes} bytes, more than the {swizzle} of its swizzle"
    return None


def _find_attribute_problem(recipe: Recipe, launch: Geometry) -> str | None:
    """Return why a target does not support the launch's attributes; None if all do."""
    if recipe.launch is None or not recipe.launch.has_attributes:
        return None
    carve_out = launch.read_number("carve-out")
    # Without a carve-out the number is CUDA's own default, which is not a percentage.
    if recipe.launch.carve_out is not None and not 0 <= carve_out <= 100:
        return f"carve-out is {carve_out}, outside 0..100 percent"
    old_arch = _find_before_hopper(recipe)
    if old_arch and launch.read_number("pdl"):
        return f"pdl needs sm_90 or later, which {old_arch} is not"
    cluster = launch.cluster
    # A cluster whose size arguments of the call decide may have several blocks.
    if old_arch and (cluster is None or math.prod(cluster) != 1):
        return f"clusters need sm_90 or later, which {old_arch} is not"
    if cluster is not None and math.prod(cluster) > _MAX_CLUSTER:
        return f"a cluster of {cluster} has {math.prod(cluster)} blocks, more than {_MAX_CLUSTER}"
    return _find_uneven_grid(launch, cluster)


def _find_before_hopper(recipe: Recipe) -> str | None:
    """Return the name of the first architecture before sm_90; None without one."""
    return next((arch.name for arch in recipe.archs if arch.number < 90), None)


def _find_uneven_grid(launch: Geometry, cluster: tuple[int, ...] | None) -> str | None:
    """Return which size of the grid is not a multiple of the cluster's; None without one. Sizes
    that arguments decide are not compared; `cluster` is None if arguments decide it."""
    if cluster is None:
        return None
    for axis, size in zip("xyz", cluster, strict=True):
        blocks = launch.find_fixed_number(f"grid.{axis}")
        if blocks is not None and blocks % size:
            return f"grid.{axis} is {blocks}, which is not a multiple of cluster.{axis}, {size}"
    return None


def find_kernel_problem(recipe: Recipe, usages: Sequence[tuple[Arch, KernelUsage]]) -> str | None:
    """Return why the compiled kernel cannot be launched as the schedule declares; None if it can on
    each of the architectures. `usages` are the kernel's resources by architecture."""
    launch = build_geometry(recipe)
    threads = math.prod(launch.block) if launch.block is not None else None
    dynamic_smem = launch.smem or 0
    for arch, usage in usages:
        required_bytes = usage.static_smem + dynamic_smem
        if required_bytes > arch.smem_per_block:
            return (
                f"a block needs {required_bytes} bytes of shared memory "
                f"({usage.static_smem} static); {arch.name} has {arch.smem_per_block}"
            )
        if reason := _find_cluster_problem(recipe, launch, usage):
            return reason
        if threads and usage.max_threads is not None and threads > usage.max_threads:
            return (
                f"a block has {threads} threads; the kernel is bounded to {usage.max_threads} "
                "(__launch_bounds__)"
            )
        sm_occupancy = _compute_occupancy(launch, arch, usage)
        if sm_occupancy is not None and sm_occupancy.blocks_per_sm < 1:
            return f"no block fits on {arch.name}: too many {' and '.join(sm_occupancy.limited_by)}"
    return None


def _compute_occupancy(launch: Geometry, arch: Arch, usage: KernelUsage) -> Occupancy | None:
    """Return how many blocks an SM runs at once; None if the call decides the size of a block, or
    limits of the architecture are unknown."""
    if launch.block is None or not arch.has_limits:
        return None
    return compute_occupancy(
        arch,
        threads=math.prod(launch.block),
        registers=usage.registers,
        static_smem=usage.static_smem,
        dynamic_smem=launch.smem or 0,
    )


def _find_cluster_problem(recipe: Recipe, launch: Geometry, usage: KernelUsage) -> str | None:
    """Return how the launch differs from the clusters that the kernel was compiled for; None if it
    does not. Of clusters that `launch` does not declare, return why it must declare them, or that
    the grid is not a multiple of them."""
    if usage.cluster is None:
        return None
    if recipe.launch is None or not recipe.launch.cluster:
        # The launcher asks the driver for a larger cluster only if the manifest declares it.
        if math.prod(usage.cluster) > _PORTABLE_CLUSTER:
            return f"the kernel has clusters of {usage.cluster} blocks: declare launch.cluster"
        return _find_uneven_grid(launch, usage.cluster)
    declared = launch.cluster
    if declared == usage.cluster:
        return None
    declared_text = "one that depends on arguments" if declared is None else str(declared)
    return (
        f"launch.cluster is {declared_text}; the kernel is compiled for {usage.cluster} "
        "(__cluster_dims__)"
    )


def find_exceeded_limit(
    recipe: Recipe,
    symbol: str,
    usages: Sequence[tuple[Arch, KernelUsage]],
    ptxas: Sequence[PtxasUsage],
) -> str | None:
    """Return a phrase with the limit of `[script.x.prune]` that the kernel `symbol` exceeds; None
    if it exceeds none. `ptxas` is from the compile's log, and has the kernels' spills."""
    limits = recipe.prune
    if limits is None:
        return None
    launch = build_geometry(recipe)
    for arch, usage in usages:
        if limits.max_registers is not None and usage.registers > limits.max_registers:
            return f"{usage.registers} registers on {arch.name}, more than {limits.max_registers}"
        min_blocks = limits.min_blocks_per_sm
        sm_occupancy = _compute_occupancy(launch, arch, usage)
        if min_blocks is None or sm_occupancy is None:
            continue
        if sm_occupancy.blocks_per_sm < min_blocks:
            return (
                f"{sm_occupancy.blocks_per_sm} blocks per SM on {arch.name}, "
                f"fewer than {min_blocks} (limited by {' and '.join(sm_occupancy.limited_by)})"
            )
    if limits.max_spill_bytes is not None:
        for report in ptxas:
            if report.kernel == symbol and report.spill_bytes > limits.max_spill_bytes:
                return (
                    f"{report.spill_bytes} bytes of spills on {report.arch}, "
                    f"more than {limits.max_spill_bytes}"
                )
    return None


def find_symbol_problem(recipe: Recipe, names: Sequence[str]) -> str | None:
    """Return the problem if the declared kernel is not among `names`, the kernels of the code; None
    if it is."""
    if recipe.symbol in names:
        return None
    if is_cpp_name(recipe.symbol):
        return f'"{recipe.symbol}" is not a kernel that the source defines'
    if _is_template(recipe):
        return (
            f'"{recipe.symbol}" is a C++ template, which has no C name: name one of its '
            f'kernels, as in kernel = "{recipe.symbol}<{{{{ block }}}}>"'
        )
    for symbol in names:
        cpp_name = demangle_name(symbol)
        if cpp_name.rpartition("::")[2] == recipe.symbol:
            return (
                f'kernel "{recipe.symbol}" has a C++ name ({symbol}): write kernel = '
                f'"{cpp_name}", or declare it extern "C"'
            )
    kernels = ", ".join(names) or "none"
    return f'the source holds no kernel "{recipe.symbol}" (it holds: {kernels})'


def explain_link_error(recipe: Recipe, log: str) -> str | None:
    """Return a linker's error in the words of the manifest: a missing library, or an undefined
    symbol. Return None for another error."""
    # `/usr/bin/ld: cannot find -lfoo: No such file or directory`, or `-l:libfoo.so.1`
    if library_match := re.search(r"cannot find -l(\S+?):?(?:\s|$)", log):
        library = library_match[1]
        files = library[1:] if library.startswith(":") else f"lib{library}.so or lib{library}.a"
        return f"error: {files} is neither in link-dirs, nor in the toolkit, nor in the system"
    # `ptxas fatal : Unresolved extern function 'f'`
    if function_match := re.search(r"Unresolved extern function '(\w+)'", log):
        return (
            f"error: this source does not define {function_match[1]}, and another object "
            f"{_NEEDS_DEVICE_LINK}"
        )
    missing = re.findall(r"undefined reference to [`']([^']+)'", log)
    symbol = recipe.symbol
    if symbol in missing and _is_template(recipe):
        return (
            f'"{symbol}" is a C++ template, which has no C name: write a function that is '
            f'none, extern "C", with the values that are rendered, and call the template in it'
        )
    if symbol in missing:
        return f'the source defines no function "{symbol}" with C linkage: is it extern "C"?'
    # nvcc calls functions of these names for device code that waits for a device link.
    if any("__cudaRegisterLinkedBinary" in name or "__fatbinwrap" in name for name in missing):
        if recipe.pipeline.has_source:
            return NO_DEVICE_LINK
        return f"error: device code {_NEEDS_DEVICE_LINK}"
    names = ", ".join(dict.fromkeys(missing))
    return f"error: nothing that is linked defines {names}" if names else None


def _is_template(recipe: Recipe) -> bool:
    """Return whether the source has a C++ template of the symbol's name."""
    template_head = rf"\btemplate\s*<[^;{{}}]*>[^;{{}}()]*\b{re.escape(recipe.symbol)}\s*\("
    return re.search(template_head, recipe.source) is not None


NO_DEVICE_LINK = (
    "error: relocatable device code (-rdc=true) needs a device link, which a program of one source "
    "does not get: include what other units define, or make it a library, [library.NAME] with "
    "rdc = true"
)
_NEEDS_DEVICE_LINK = "needs a device link: rdc = true in [library.NAME]"


def find_library_problem(recipe: Recipe, data: bytes, images: Sequence[CodeImage]) -> str | None:
    """Return how the linked library differs from the recipe's, which is an accident and never the
    program's fault; None if it does not."""
    try:
        needs = read_needs(data)
    except BinaryError as error:
        return f"lib.so is not a library: {error}"
    if missing := needs.find_missing_exports(*EXPORTS):
        return f"lib.so does not export {', '.join(missing)}"
    if recipe.pipeline.launcher.starts_kernel and needs.libraries:
        return f"lib.so needs {', '.join(needs.libraries)}, and must not need any"
    if recipe.pipeline.launcher.starts_kernel and not needs.unwinds:
        # ld leaves the index out if it cannot read an object's entries, and reports no error.
        return "lib.so has unwind entries and no index of them (.eh_frame_hdr)"
    problem = find_image_problem(recipe, images)
    return None if problem is None else f"lib.so {problem}"


def find_image_problem(recipe: Recipe, images: Sequence[CodeImage]) -> str | None:
    """Return a phrase on how the code differs from the recipe's architectures; None if it does
    not."""
    embedded: set[tuple[str, str]] = {(image.kind, image.arch) for image in images}
    expected = list_expected_images(recipe)
    if embedded == expected:
        return None
    return f"holds code for {_format_images(embedded)} instead of {_format_images(expected)}"


def list_expected_images(recipe: Recipe) -> set[tuple[str, str]]:
    """Return the exact set of (kind, arch) of the code that the recipe's library must hold."""
    if not recipe.pipeline.launcher.cuda:
        return set()
    images: set[tuple[str, str]] = set()
    for arch, has_ptx in list_embedded_archs(recipe.archs, ptx=recipe.ptx):
        images.add(("sass", arch.name))
        if has_ptx:
            images.add(("ptx", arch.name))
    return images


def _format_images(images: set[tuple[str, str]]) -> str:
    return ", ".join(sorted(f"{arch} ({kind})" for kind, arch in images)) or "nothing"


def read_images(data: bytes) -> tuple[CodeImage, ...]:
    """Return the code in a library; none for data that is not a library."""
    try:
        return read_archs(data)
    except BinaryError:
        return ()


def check_symbol(recipe: Recipe, work: str) -> None:
    """Raise `StepError` if the compile wrote no symbol: an unclosed `#if` hides the source's
    end."""
    if not find_symbol(recipe, work):
        raise StepError(Cause.CHECK, f'the source ends before "{recipe.symbol}" can be named')


def check_device_code(
    recipe: Recipe, step: Step, data: bytes, work: str, log: str, findings: Findings
) -> None:
    """Check a step's device code, `data`, and set the resources and images of `findings`.

    `log` is the output of all steps so far, `work` the compile's directory. Raises `StepError` for
    code that cannot be read or launched, or that exceeds a limit.
    """
    symbol = find_symbol(recipe, work)
    archs = {arch.name: arch for arch in recipe.archs}  # with the limits of the manifest
    try:
        cubins = extract_cubins(data)
        kernels_by_arch = [
            (archs.get(name := cubin.image.arch) or parse_arch(name), read_cubin(cubin.data))
            for cubin in cubins
        ]
        # Only the check of constants needs the variables, and reading symbols takes time.
        holders = cubins if recipe.signature.constants else ()
        variables = [read_variable_sizes(cubin.data) for cubin in holders]
    except BinaryError as error:
        reason = f"{step.tool} ended well but {step.output} cannot be read: {error}"
        raise StepError(Cause.OUTPUT, reason) from None
    if not kernels_by_arch:
        raise StepError(Cause.OUTPUT, f"{step.tool} ended well but {step.output} holds no code")
    # The driver refuses relocatable code, which a user would see only in a call.
    if any(is_relocatable(cubin.data) for cubin in cubins):
        raise StepError(Cause.CHECK, NO_DEVICE_LINK)
    findings.ptxas = parse_ptxas(log)
    for _, kernels in kernels_by_arch:
        names = [kernel.name for kernel in kernels]
        if symbol not in names and (problem := find_symbol_problem(recipe, names)):
            raise StepError(Cause.CHECK, problem)
    # Only the log has the spills: without the kernel's lines, a limit on them would pass.
    reported = {usage.arch for usage in findings.ptxas if usage.kernel == symbol}
    is_reported = reported >= {arch.name for arch, _ in kernels_by_arch}
    if not is_reported and any("-v" in recipe_step.argv for recipe_step in list_steps(recipe)):
        raise StepError(Cause.OUTPUT, f"{step.tool} did not say what its {step.output} takes")
    findings.usages = [
        (arch, kernel)
        for arch, kernels in kernels_by_arch
        for kernel in kernels
        if kernel.name == symbol
    ]
    findings.ptxas = findings.ptxas or _make_usages_without_spills(recipe, findings.usages)
    if problem := _find_arguments_problem(recipe, findings.usages, variables):
        raise StepError(Cause.CHECK, problem)
    if problem := find_kernel_problem(recipe, findings.usages):
        raise StepError(Cause.CHECK, problem)
    if exceeded := find_exceeded_limit(recipe, symbol, findings.usages, findings.ptxas):
        raise StepError(Cause.LIMIT, exceeded)
    findings.images = tuple(cubin.image for cubin in cubins)


def _make_usages_without_spills(
    recipe: Recipe, usages: Iterable[tuple[Arch, KernelUsage]]
) -> tuple[PtxasUsage, ...]:
    """Return the resources of cubins that came without ptxas' log. Raises `StepError` for a limit
    of spills."""
    if recipe.prune is not None and recipe.prune.max_spill_bytes is not None:
        reason = "max-spill-bytes needs the output of ptxas, and the compiler has none"
        raise StepError(Cause.CHECK, reason)
    return tuple(
        PtxasUsage(arch.name, usage.name, usage.registers, usage.stack, 0, 0, usage.static_smem)
        for arch, usage in usages
    )


def _find_arguments_problem(
    recipe: Recipe,
    usages: Iterable[tuple[Arch, KernelUsage]],
    variables: Iterable[Mapping[str, int]],
) -> str | None:
    """Return the first difference between the declared arguments and the code of an
    architecture; None if they agree. `variables` are bytes by symbol, for each architecture."""
    for _, usage in usages:
        if problem := find_parameter_problem(recipe.signature, usage.parameters):
            return problem
    for sizes in variables:
        if problem := find_constants_problem(recipe, sizes):
            return problem
    return None
