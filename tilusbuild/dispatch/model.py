"""Models of cost: what they are, and the manifest's own. `roofline` has the built-in one.

A model is an expression over the dispatch keys and over columns: what it reads of each program (its
parameters, derived values, and `resources.NAME` as the compiler reported them). Lower is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.arch import occupancy
from tilusbuild.expr import Expr, ExprError, Value, parse
from tilusbuild.manifest.check_expressions import RESOURCE_NAMES
from tilusbuild.plan.model import PlannedInstance
from tilusbuild.plan.script_instance import ScriptInstance
from tilusbuild.plan.spaces import surroundings

RESOURCES = RESOURCE_NAMES[:5]
"""As meta.json has them; of several kernels or architectures in a program, the greatest."""

RESOURCE = "resources."
"""How a model names what is known of a compiled program."""

Column = list[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A cost over the keys, and the columns that it reads."""

    source: str
    cost: Expr
    columns: Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class Columns:
    """What models can read of each program."""

    schedules: Sequence[Mapping[str, Value]]
    resources: Mapping[str, Column]

    @property
    def names(self) -> frozenset[str]:
        """The parameters and derived values that every schedule has."""
        each = [frozenset(schedule) for schedule in self.schedules]
        return frozenset.intersection(*each) if each else frozenset()

    def read(self, names: Sequence[str]) -> dict[str, Column]:
        """Columns by name. Raises `ExprError` for what no program has."""
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> Column:
        if name.startswith(RESOURCE):
            known = self.resources.get(name.removeprefix(RESOURCE))
            if known is None:
                there = ", ".join(RESOURCE + each for each in self.resources)
                raise ExprError(f"there is no {name}; there is {there}")
            return known
        if any(name not in schedule for schedule in self.schedules):
            raise ExprError(f"the model reads {name}, which is neither a dispatch key nor a value")
        return [schedule[name] for schedule in self.schedules]


def declared(
    source: Value, instance: PlannedInstance, keys: Sequence[str], columns: Columns
) -> Model | None:
    """The manifest's model; None on the cpu when it asks for resources, which are a GPU's.

    Raises `ExprError`.
    """
    cost = parse(source).substitute({**surroundings(instance.target), **instance.params})
    reads = sorted(cost.names - set(keys))
    if instance.target.kind == "cpu" and any(name.startswith(RESOURCE) for name in reads):
        return None
    return Model(str(source), cost, columns.read(reads))


def resources_of(
    instance: PlannedInstance,
    script_instance: ScriptInstance,
    schedules: Sequence[Mapping[str, Value]],
    metas: Sequence[Mapping[str, Any] | None],
) -> dict[str, Column]:
    """Resources by name, a value for each program; None where it is not known."""
    if instance.target.kind == "cpu":
        return {}
    rows = [
        _resources(instance, script_instance, s, m) for s, m in zip(schedules, metas, strict=True)
    ]
    return {name: [row.get(name) for row in rows] for name in RESOURCE_NAMES}


def _resources(
    instance: PlannedInstance,
    script_instance: ScriptInstance,
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
    threads = _threads(script_instance, {**instance.params, **schedule})
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


def _threads(script_instance: ScriptInstance, values: Mapping[str, Value]) -> int | None:
    """The threads of a block, when the schedule fixes them."""
    if script_instance.launch is None:
        return None
    total = 1
    for part in script_instance.launch.block:
        try:
            number = part.evaluate(values)
        except ExprError:
            return None
        if not isinstance(number, int) or number < 1:
            return None
        total *= number
    return total
