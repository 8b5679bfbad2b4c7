"""Models of cost over what the compiler reported, with a device's facts and without."""

from types import SimpleNamespace
from typing import Any

import pytest

from tilusbuild.arch import parse_arch
from tilusbuild.dispatch.model import parse_model
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.plan.model import Target

SCHEDULES = [{"tile": 32, "warps": 4}, {"tile": 256, "warps": 4}, {"tile": 64, "warps": 4}]


def instance(facts: dict[str, Any], arch: str = "sm_90a") -> Any:
    launch = SimpleNamespace(
        grid=(parse_expression("cdiv(m, tile)"),),
        block=(parse_expression("warps * 32"),),
        smem=parse_expression("0"),
    )
    spec = SimpleNamespace(recipe=SimpleNamespace(launch=launch))
    target = Target("t", (parse_arch(arch),), False, facts)
    return SimpleNamespace(target=target, params={"q": 2}, spec=spec)


def meta(registers: int, status: str = "built") -> dict[str, Any]:
    usage = {"registers": registers, "stack": 0, "spill_stores": 0, "spill_loads": 0}
    kernels = {"k": {"sm_90a": {**usage, "static_smem": 0}}}
    return {"status": status, "kernels": kernels, "dynamic_smem": 0}


METAS = [meta(32), meta(255), meta(32, "pruned")]


def test_resources_are_what_the_compiler_said_and_the_occupancy_of_it() -> None:
    names = ("registers", "threads", "blocks_per_sm", "occupancy")
    source = " + ".join(f"resources.{name}" for name in names)
    model = parse_model(source, instance({}), ("m",), SCHEDULES, METAS)
    assert model is not None
    columns = model[1]
    assert columns["resources.registers"] == [32, 255, None]
    assert columns["resources.threads"] == [128, 128, None]
    assert columns["resources.blocks_per_sm"] == [16, 2, None]
    assert columns["resources.occupancy"] == [1.0, 0.125, None]


def test_a_declared_model_reads_columns_facts_and_constants() -> None:
    source = "cdiv(m, tile) * q / facts.sms + resources.registers"
    model = parse_model(source, instance({"sms": 4}), ("m",), SCHEDULES, METAS)
    assert model is not None
    cost, columns = model
    assert sorted(columns) == ["resources.registers", "tile"]
    values = {name: column[0] for name, column in columns.items()}
    assert cost.evaluate({"m": 64, **values}) == 2 * 2 / 4 + 32


def test_a_cpu_has_no_resources() -> None:
    cpu_instance = instance({}, "cpu")
    assert parse_model("resources.registers", cpu_instance, ("m",), SCHEDULES, METAS) is None
    assert parse_model("tile - m", cpu_instance, ("m",), SCHEDULES, METAS) is not None


def test_what_a_model_cannot_know_is_an_error() -> None:
    with pytest.raises(ExprError, match="reads k"):
        parse_model("k + m", instance({}), ("m",), SCHEDULES, METAS)
