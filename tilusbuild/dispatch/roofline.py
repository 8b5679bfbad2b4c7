"""The built-in model: the least time of a call by the device's roofs, over the share of it in use.

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

from tilusbuild.dispatch.model import RESOURCE, Columns, Model
from tilusbuild.expr import Expr, ExprError, Value, parse
from tilusbuild.manifest.script_sections import DispatchSection
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.plan.spaces import surroundings
from tilusbuild.signature import DTYPES, Argument

_ENOUGH = 0.5
_GIGA, _TERA = 1e9, 1e12


def built_in(
    script_instance: ScriptInstance,
    instance: PlannedInstance,
    keys: Sequence[str],
    columns: Columns,
    dispatch: DispatchSection | None,
) -> Model | None:
    """The model; None where nothing in it would tell one schedule from another.

    Raises `ExprError` when `bytes` or `flops` reads what no schedule has.
    """
    roofs = _roofs(script_instance, instance, keys, dispatch)
    filled = _filled(script_instance, instance, {*keys, *instance.params, *columns.names})
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
) -> Model | None:
    top = f"max({', '.join(roofs.values())})" if len(roofs) > 1 else "".join(roofs.values())
    if not top and not filled:
        return None
    cost = parse(" / ".join([f"({top or 1.0})", *filled]))
    cost = cost.substitute({**surroundings(instance.target), **instance.params})
    reads = sorted(cost.names - set(keys))
    if instance.target.kind == "cpu" and any(name.startswith(RESOURCE) for name in reads):
        return None
    words = [*roofs, *(["waves", "occupancy"] if filled else [])]
    return Model(f"built-in: {', '.join(words)}", cost, columns.read(reads))


def _filled(
    script_instance: ScriptInstance, instance: PlannedInstance, known: Collection[str]
) -> list[str]:
    """`full` and `hidden`; none where the device or the launch says too little."""
    sms, blocks = instance.target.facts.get("sms"), _blocks(script_instance)
    if not isinstance(sms, int) or sms < 1 or blocks is None or script_instance.launch is None:
        return []
    if not all(part.names.issubset(known) for part in script_instance.launch.grid):
        return []
    places = f"({sms} * {RESOURCE}blocks_per_sm)"
    full = f"({blocks} / (cdiv({blocks}, {places}) * {places}))"
    # Without a block there is nothing to fill, and no time to compare.
    return [f"({full} if {blocks} > 0 else 1.0)", f"min({RESOURCE}occupancy / {_ENOUGH}, 1.0)"]


def _blocks(script_instance: ScriptInstance) -> str | None:
    if script_instance.launch is None or script_instance.pipeline != "kernel":
        return None
    return "(" + " * ".join(f"({part.canonical})" for part in script_instance.launch.grid) + ")"


def _roofs(
    script_instance: ScriptInstance,
    instance: PlannedInstance,
    keys: Sequence[str],
    dispatch: DispatchSection | None,
) -> dict[str, str]:
    """The seconds under each roof that is known, by its name."""
    found = {}
    bandwidth, peak = (_positive(instance.target.facts.get(n)) for n in ("dram_gbs", "tflops"))
    moved = _moved(script_instance, instance, keys, dispatch)
    if bandwidth is not None and moved is not None:
        found["DRAM"] = f"({moved}) / {bandwidth * _GIGA!r}"
    if peak is not None and dispatch is not None and dispatch.flops is not None:
        found["arithmetic"] = f"({parse(dispatch.flops).canonical}) / {peak * _TERA!r}"
    return found


def _positive(fact: Value | None) -> float | None:
    is_number = isinstance(fact, int | float) and not isinstance(fact, bool)
    return float(fact) if is_number and float(fact) > 0 else None  # type: ignore[arg-type]


def _moved(
    script_instance: ScriptInstance,
    instance: PlannedInstance,
    keys: Sequence[str],
    dispatch: DispatchSection | None,
) -> str | None:
    """Bytes of a call; None when they do not follow from the keys."""
    if dispatch is not None and dispatch.bytes is not None:
        return parse(dispatch.bytes).canonical
    parts = []
    for argument in script_instance.signature.arguments:
        if argument.dims is not None:
            if not _names(argument) <= {*keys, *instance.params}:
                return None
            parts.append(_size(argument))
    blocks = _blocks(script_instance)
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
