"""Models of cost over what the compiler reported, with a device's facts and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilusbuild.arch import parse_arch
from tilusbuild.dispatch.model import Columns, built_in, declared, resources_of
from tilusbuild.expr import ExprError, parse
from tilusbuild.plan.model import Target

SCHEDULES = [{"tile": 32, "warps": 4}, {"tile": 256, "warps": 4}, {"tile": 64, "warps": 4}]


def instance(facts: dict[str, Any], arch: str = "sm_90a") -> Any:
    return SimpleNamespace(target=Target("t", (parse_arch(arch),), False, facts), params={"q": 2})


def maker() -> Any:
    launch = SimpleNamespace(
        grid=(parse("cdiv(m, tile)"),), block=(parse("warps * 32"),), smem=parse("0")
    )
    return SimpleNamespace(launch=launch)


def meta(registers: int, status: str = "built") -> dict[str, Any]:
    usage = {"registers": registers, "stack": 0, "spill_stores": 0, "spill_loads": 0}
    kernels = {"k": {"sm_90a": {**usage, "static_smem": 0}}}
    return {"status": status, "kernels": kernels, "dynamic_smem": 0}


def columns(facts: dict[str, Any]) -> Columns:
    metas = [meta(32), meta(255), meta(32, "pruned")]
    return Columns(SCHEDULES, resources_of(instance(facts), maker(), SCHEDULES, metas))


def test_resources_are_what_the_compiler_said_and_the_occupancy_of_it() -> None:
    resources = columns({}).resources
    assert resources["registers"] == [32, 255, None]
    assert resources["threads"] == [128, 128, None]
    assert resources["blocks_per_sm"] == [16, 2, None]
    assert resources["occupancy"] == [1.0, 0.125, None]


def test_a_declared_model_reads_columns_facts_and_constants() -> None:
    source = "cdiv(m, tile) * q / facts.sms + resources.registers"
    model = declared(source, instance({"sms": 4}), ("m",), columns({}))
    assert model is not None
    assert sorted(model.columns) == ["resources.registers", "tile"]
    values = {name: column[0] for name, column in model.columns.items()}
    assert model.cost.evaluate({"m": 64, **values}) == 2 * 2 / 4 + 32


def test_a_cpu_has_no_resources() -> None:
    here = instance({}, "cpu")
    assert declared("resources.registers", here, ("m",), Columns(SCHEDULES, {})) is None
    assert declared("tile - m", here, ("m",), Columns(SCHEDULES, {})) is not None


def test_what_a_model_cannot_know_is_an_error() -> None:
    with pytest.raises(ExprError, match="reads k"):
        declared("k + m", instance({}), ("m",), columns({}))


def test_the_built_in_model_fills_waves_and_hides_latency() -> None:
    facts = {"sms": 2}
    model = built_in(maker(), instance(facts), ("m",), columns(facts))
    assert model is not None

    def cost(program: int, m: int) -> Any:
        values = {name: column[program] for name, column in model.columns.items()}
        return model.cost.evaluate({"m": m, **values})

    assert cost(0, 32 * 32) == 1.0  # 32 blocks in 32 places, all warps in flight
    assert cost(0, 32 * 33) == pytest.approx(64 / 33)  # a second wave for one block
    assert cost(1, 256 * 4) == pytest.approx(1 / 0.25)  # full, but few warps in flight


def test_without_facts_or_a_fixed_launch_there_is_no_built_in_model() -> None:
    assert built_in(maker(), instance({}), ("m",), columns({})) is None
    assert built_in(SimpleNamespace(launch=None), instance({"sms": 2}), ("m",), columns({})) is None
    assert built_in(maker(), instance({"sms": 2}), ("n",), columns({})) is None
