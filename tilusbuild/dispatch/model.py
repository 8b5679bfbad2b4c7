"""Parses the manifest's cost model, and computes the work of a call.

A model is an expression over the dispatch keys and over columns, which have a value for each
program: parameters, derived values, and `resources.NAME` as the compiler reported them. Lower is
better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tilusbuild.arch import compute_occupancy
from tilusbuild.expr import Expr, ExprError, Value, parse_expression
from tilusbuild.manifest.check_expressions import RESOURCE_NAMES
from tilusbuild.manifest.script_sections import DispatchSection
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import list_target_constants
from tilusbuild.runtime.dtypes import DTYPES

RESOURCES = RESOURCE_NAMES[:5]
"""As meta.json has them; of several kernels or architectures in a program, the greatest."""

RESOURCE = "resources."
"""The prefix of a compiled program's resources in a model."""


class ParsedModel(NamedTuple):
    """A cost model for one instance."""

    cost: Expr
    columns: dict[str, list[Any]]
    """By each name in `cost` besides dispatch keys: a value for each program, None where it is not
    known."""


def parse_model(
    source: Value,
    instance: PlannedInstance,
    keys: Sequence[str],
    schedules: Sequence[Mapping[str, Value]],
    metas: Sequence[Mapping[str, Any] | None],
) -> ParsedModel | None:
    """Return the manifest's model `source`, with the constants replaced, and its columns. Return
    None on the cpu if the model reads resources. Raises `ExprError` for an unknown name.

    `schedules` and `metas` have the parameters and the meta.json of each program.
    """
    cost = parse_expression(source).substitute(
        {**list_target_constants(instance.target), **instance.params}
    )
    names = sorted(cost.names - set(keys))
    resource_names = [name.removeprefix(RESOURCE) for name in names if name.startswith(RESOURCE)]
    # Only a GPU's compiler reports resources. A script for both kinds has one model.
    if resource_names and instance.target.kind == "cpu":
        return None
    columns: dict[str, list[Any]] = {}
    if resource_names:
        pairs = zip(schedules, metas, strict=True)
        resources = [list_resources(instance, schedule, meta) for schedule, meta in pairs]
        for name in resource_names:
            columns[RESOURCE + name] = [row.get(name) for row in resources]
    for name in names:
        if name not in columns:
            if any(name not in schedule for schedule in schedules):
                problem = "which is neither a dispatch key nor a value"
                raise ExprError(f"the model reads {name}, {problem}")
            columns[name] = [schedule[name] for schedule in schedules]
    return ParsedModel(cost, columns)


def list_resources(
    instance: PlannedInstance,
    schedule: Mapping[str, Value],
    meta: Mapping[str, Any] | None,
) -> dict[str, Value]:
    """Return the resources of a built GPU program by name: registers, threads, occupancy and so on,
    as far as they are known. Return none for any other program."""
    if meta is None or meta["status"] != "built" or instance.target.kind == "cpu":
        return {}
    usages = [usage for kernel in meta.get("kernels", {}).values() for usage in kernel.values()]
    resources: dict[str, Value] = {
        name: max(usage[name] for usage in usages) for name in RESOURCES if usages
    }
    if isinstance(meta.get("dynamic_smem"), int):
        resources["dynamic_smem"] = meta["dynamic_smem"]
    # The occupancy follows from all of these numbers: without one it is not known.
    threads = _count_threads(instance, {**instance.params, **schedule})
    if threads is None or not usages or "dynamic_smem" not in resources:
        return resources
    resources["threads"] = threads
    if not instance.target.archs[0].has_limits:
        return resources
    occupancy = compute_occupancy(
        instance.target.archs[0],
        threads=threads,
        registers=int(resources["registers"]),
        static_smem=int(resources["static_smem"]),
        dynamic_smem=int(resources["dynamic_smem"]),
    )
    if occupancy.blocks_per_sm:
        resources["blocks_per_sm"] = occupancy.blocks_per_sm
        resources["occupancy"] = occupancy.fraction
    return resources


def _count_threads(instance: PlannedInstance, values: Mapping[str, Value]) -> int | None:
    """Return the threads of a block; None if arguments of a call decide them."""
    if instance.spec.recipe.launch is None:
        return None
    try:
        sides = [side.evaluate(values) for side in instance.spec.recipe.launch.block]
    except ExprError:
        return None
    valid_sides = [side for side in sides if isinstance(side, int) and side >= 1]
    return math.prod(valid_sides) if sides and len(valid_sides) == len(sides) else None


def compute_work(
    instance: PlannedInstance,
    dispatch: DispatchSection | None,
    sizes: Mapping[str, Value],
) -> tuple[float | None, float | None]:
    """Return (bytes, operations) of a call by the manifest's `bytes` and `flops`; None for a value
    that is not known. Without `bytes`, each tensor counts once."""
    flops = dispatch.flops if dispatch is not None else None
    declared_bytes = dispatch.bytes if dispatch is not None else None
    # Each tensor's bytes as the text of an expression: "2.0 * (m) * (k)" for `f16*[m, k]`.
    tensor_sizes = []
    for argument in instance.spec.signature.arguments:
        if argument.dims is not None:
            extents = [d if isinstance(d, int | str) else d.canonical for d in argument.dims]
            # In floating point, which no product of sizes overflows.
            element_bytes = repr(float(DTYPES[argument.dtype].bytes))
            tensor_sizes.append(" * ".join([element_bytes, *(f"({extent})" for extent in extents)]))
    bytes_source = declared_bytes or " + ".join(tensor_sizes) or None
    values = {**list_target_constants(instance.target), **instance.params, **sizes}
    return _evaluate_number(bytes_source, values), _evaluate_number(flops, values)


def _evaluate_number(source: Value | None, values: Mapping[str, Value]) -> float | None:
    """Return the value of an expression; None without one, or if it depends on an unknown name."""
    if source is None:
        return None
    try:
        value = parse_expression(source).substitute(values).constant
    except ExprError:
        return None
    return float(value) if isinstance(value, int | float) else None
