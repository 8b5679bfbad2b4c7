"""Models of cost: the manifest's own, and the built-in one.

A model is an expression over the dispatch keys and over columns: what it reads of each program (its
parameters, derived values, and `resources.NAME` as the compiler reported them). Lower is better.

The built-in model is the least time of a call by the device's roofs, over the share of it in use:

    seconds = max(bytes / bandwidth, flops / peak) / (full * hidden)

`bytes / bandwidth` and `flops / peak` are the two roofs of Williams, Waterman and Patterson,
"Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009.
What is not known has no roof; without any the model is `1 / (full * hidden)`.

bytes       `bytes` of the dispatch table; else each tensor once, and what threads spill, once
bandwidth   `facts.dram_gbs`, in 1e9 bytes a second
flops       `flops` of the dispatch table
peak        `facts.tflops`, in 1e12 operations a second
full        the share of the places for blocks (`facts.sms` times what fits one) that have a block,
            over all waves: a second wave for one block takes as long as a whole one
hidden      the share of the latency that is hidden: occupancy by one half, at most 1 (Volkov,
            "Better Performance at Lower Occupancy", GTC 2010, reaches the peak at or below that)

It guesses better than the first schedule does, and no more is claimed: caches, tensor cores and
instruction mix are not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tilusbuild.arch import occupancy
from tilusbuild.expr import Expr, ExprError, Value, parse
from tilusbuild.manifest.check_expressions import RESOURCE_NAMES
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.plan.model import target_constants
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.signature import Argument

if TYPE_CHECKING:
    from tilusbuild.manifest.script_sections import DispatchSection


RESOURCES = RESOURCE_NAMES[:5]
"""As meta.json has them; of several kernels or architectures in a program, the greatest."""

RESOURCE = "resources."
"""How a model names what is known of a compiled program."""

Column = list[Any]


class CostModel(Struct, frozen=True):
    """A cost over the keys, and the columns that it reads."""

    source: str
    cost: Expr
    columns: Mapping[str, Column]


class Columns(Struct, frozen=True):
    """What models can read of each program."""

    schedules: Sequence[Mapping[str, Value]]
    resources: Mapping[str, Column]

    @property
    def names(self) -> frozenset[str]:
        """Return the parameters and derived values that every schedule has."""
        each = [frozenset(schedule) for schedule in self.schedules]
        return frozenset.intersection(*each) if each else frozenset()

    def read(self, names: Sequence[str]) -> dict[str, Column]:
        """Columns by name. Raises `ExprError` for what no program has."""
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> Column:
        if name.startswith(RESOURCE):
            known = self.resources.get(name.removeprefix(RESOURCE))
            if known is None:
                known_names = ", ".join(RESOURCE + each for each in self.resources)
                raise ExprError(f"there is no {name}; there is {known_names}")
            return known
        if any(name not in schedule for schedule in self.schedules):
            raise ExprError(f"the model reads {name}, which is neither a dispatch key nor a value")
        return [schedule[name] for schedule in self.schedules]


def declared(
    source: Value, instance: PlannedInstance, keys: Sequence[str], columns: Columns
) -> CostModel | None:
    """Return the manifest's model; None on the cpu when it asks for resources, which are a GPU's.

    Raises `ExprError`.
    """
    return _costing(str(source), source, instance, keys, columns)


def _costing(
    label: str, source: Value, instance: PlannedInstance, keys: Sequence[str], columns: Columns
) -> CostModel | None:
    cost = parse(source).substitute({**target_constants(instance.target), **instance.params})
    reads = sorted(cost.names - set(keys))
    if instance.target.kind == "cpu" and any(name.startswith(RESOURCE) for name in reads):
        return None
    return CostModel(label, cost, columns.read(reads))


def resources_of(
    instance: PlannedInstance,
    schedules: Sequence[Mapping[str, Value]],
    metas: Sequence[Mapping[str, Any] | None],
) -> dict[str, Column]:
    """Resources by name, a value for each program; None where it is not known."""
    if instance.target.kind == "cpu":
        return {}
    rows = [_resources(instance, s, m) for s, m in zip(schedules, metas, strict=True)]
    return {name: [row.get(name) for row in rows] for name in RESOURCE_NAMES}


def _resources(
    instance: PlannedInstance,
    schedule: Mapping[str, Value],
    meta: Mapping[str, Any] | None,
) -> dict[str, Value]:
    if meta is None or meta["status"] != "built":
        return {}
    usages = [usage for kernel in meta.get("kernels", {}).values() for usage in kernel.values()]
    found: dict[str, Value] = {
        name: max(usage[name] for usage in usages) for name in RESOURCES if usages
    }
    if isinstance(meta.get("dynamic_smem"), int):
        found["dynamic_smem"] = meta["dynamic_smem"]
    threads = _threads(instance, {**instance.params, **schedule})
    if threads is None or not usages or "dynamic_smem" not in found:
        return found
    found["threads"] = threads
    fits = occupancy(
        instance.target.archs[0],
        threads=threads,
        registers=int(found["registers"]),
        static_smem=int(found["static_smem"]),
        dynamic_smem=int(found["dynamic_smem"]),
    )
    if fits.blocks_per_sm:
        found["blocks_per_sm"], found["occupancy"] = fits.blocks_per_sm, fits.fraction
    return found


def _threads(instance: PlannedInstance, values: Mapping[str, Value]) -> int | None:
    """Return the threads of a block, when the schedule fixes them."""
    if instance.spec.recipe.launch is None:
        return None
    total = 1
    for part in instance.spec.recipe.launch.block:
        try:
            number = part.evaluate(values)
        except ExprError:
            return None
        if not isinstance(number, int) or number < 1:
            return None
        total *= number
    return total


_ENOUGH = 0.5
_GIGA, _TERA = 1e9, 1e12


def built_in(
    instance: PlannedInstance,
    keys: Sequence[str],
    columns: Columns,
    dispatch: DispatchSection | None,
) -> CostModel | None:
    """Return the model; None where nothing in it would distinguish one schedule from another.

    Raises `ExprError` when `bytes` or `flops` reads what no schedule has.
    """
    roofs = _roofs(instance, keys, dispatch)
    filled = _filled(instance, {*keys, *instance.params, *columns.names})
    if dispatch is not None and (dispatch.bytes, dispatch.flops) != (None, None):
        return _model(instance, keys, columns, roofs, filled)
    if not filled:
        return None  # the tensors are the same for every schedule
    for known in (roofs, {}):
        with suppress(ExprError):  # too long
            return _model(instance, keys, columns, known, filled)
    return None


def _model(
    instance: PlannedInstance,
    keys: Sequence[str],
    columns: Columns,
    roofs: Mapping[str, str],
    filled: Sequence[str],
) -> CostModel | None:
    top = f"max({', '.join(roofs.values())})" if len(roofs) > 1 else "".join(roofs.values())
    if not top and not filled:
        return None
    words = [*roofs, *(["waves", "occupancy"] if filled else [])]
    cost = " / ".join([f"({top or 1.0})", *filled])
    return _costing(f"built-in: {', '.join(words)}", cost, instance, keys, columns)


def _filled(instance: PlannedInstance, known: Collection[str]) -> list[str]:
    """`full` and `hidden`; none where the device or the launch says too little."""
    sms, blocks = instance.target.facts.get("sms"), _blocks(instance)
    if not isinstance(sms, int) or sms < 1 or blocks is None or instance.spec.recipe.launch is None:
        return []
    if not all(part.names.issubset(known) for part in instance.spec.recipe.launch.grid):
        return []
    places = f"({sms} * {RESOURCE}blocks_per_sm)"
    full = f"({blocks} / (cdiv({blocks}, {places}) * {places}))"
    # Without a block there is nothing to fill, and no time to compare.
    return [f"({full} if {blocks} > 0 else 1.0)", f"min({RESOURCE}occupancy / {_ENOUGH}, 1.0)"]


def _blocks(instance: PlannedInstance) -> str | None:
    if instance.spec.recipe.launch is None:
        return None
    return (
        "(" + " * ".join(f"({part.canonical})" for part in instance.spec.recipe.launch.grid) + ")"
    )


def _roofs(
    instance: PlannedInstance,
    keys: Sequence[str],
    dispatch: DispatchSection | None,
) -> dict[str, str]:
    """Return the seconds under each roof that is known, by its name."""
    found = {}
    bandwidth, peak = (_positive(instance.target.facts.get(n)) for n in ("dram_gbs", "tflops"))
    moved = _moved(instance, keys, dispatch)
    if bandwidth is not None and moved is not None:
        found["DRAM"] = f"({moved}) / {bandwidth * _GIGA!r}"
    if peak is not None and dispatch is not None and dispatch.flops is not None:
        found["arithmetic"] = f"({parse(dispatch.flops).canonical}) / {peak * _TERA!r}"
    return found


def _positive(fact: Value | None) -> float | None:
    is_number = isinstance(fact, int | float) and not isinstance(fact, bool)
    return float(fact) if is_number and float(fact) > 0 else None  # type: ignore[arg-type]


def _moved(
    instance: PlannedInstance,
    keys: Sequence[str],
    dispatch: DispatchSection | None,
) -> str | None:
    """Return bytes of a call; None when they do not follow from the keys."""
    if dispatch is not None and dispatch.bytes is not None:
        return parse(dispatch.bytes).canonical
    parts = []
    for argument in instance.spec.signature.arguments:
        if argument.dims is not None:
            if not _names(argument) <= {*keys, *instance.params}:
                return None
            parts.append(_size(argument))
    blocks = _blocks(instance)
    if blocks is not None and instance.target.kind == "cuda":
        spilled = f"({RESOURCE}spill_stores + {RESOURCE}spill_loads)"
        parts.append(f"1.0 * {blocks} * {RESOURCE}threads * {spilled}")
    return " + ".join(parts) or None


def _names(argument: Argument) -> set[str]:
    dims = argument.dims or ()
    return {d for d in dims if isinstance(d, str)}.union(
        *(d.names for d in dims if isinstance(d, Expr))
    )


def _size(argument: Argument) -> str:
    """In floating point, which no product of sizes overflows."""
    extents = [d if isinstance(d, int | str) else d.canonical for d in argument.dims or ()]
    return " * ".join([repr(float(DTYPES[argument.dtype].bytes)), *(f"({e})" for e in extents)])


def work_of(
    instance: PlannedInstance,
    dispatch: DispatchSection | None,
    sizes: Mapping[str, Value],
) -> tuple[float | None, float | None]:
    """Return the bytes and the operations of a call, where the sizes and the manifest say them:
    each tensor once, unless `bytes` is declared. What threads spill is not counted."""
    flops = dispatch.flops if dispatch is not None else None
    declared_bytes = dispatch.bytes if dispatch is not None else None
    tensors = [a for a in instance.spec.signature.arguments if a.dims is not None]
    moved = declared_bytes or " + ".join(map(_size, tensors)) or None
    env = {**target_constants(instance.target), **instance.params, **sizes}
    return _number(moved, env), _number(flops, env)


def _number(source: Value | None, env: Mapping[str, Value]) -> float | None:
    try:
        found = None if source is None else parse(source).substitute(env).constant
    except ExprError:
        return None
    return float(found) if isinstance(found, int | float) else None
