"""Models of cost over what the compiler reported, with a device's facts and without."""

from types import SimpleNamespace
from typing import Any

import pytest

from tilusbuild.arch import parse_arch
from tilusbuild.dispatch.model import Columns, built_in, declared, resources_of
from tilusbuild.expr import ExprError, parse
from tilusbuild.manifest.script_sections import DispatchSection
from tilusbuild.plan.model import Target

SCHEDULES = [{"tile": 32, "warps": 4}, {"tile": 256, "warps": 4}, {"tile": 64, "warps": 4}]


def instance(facts: dict[str, Any], arch: str = "sm_90a") -> Any:
    launch = SimpleNamespace(
        grid=(parse("cdiv(m, tile)"),), block=(parse("warps * 32"),), smem=parse("0")
    )
    tensors = [
        SimpleNamespace(dims=("m",), dtype="f32"),
        SimpleNamespace(dims=("m", parse("q")), dtype="f16"),
        SimpleNamespace(dims=None, dtype="i32"),
    ]
    spec = SimpleNamespace(
        recipe=SimpleNamespace(launch=launch), signature=SimpleNamespace(arguments=tensors)
    )
    target = Target("t", (parse_arch(arch),), False, facts)
    return SimpleNamespace(target=target, params={"q": 2}, spec=spec)


def meta(registers: int, status: str = "built") -> dict[str, Any]:
    spills = {"spill_stores": 8, "spill_loads": 16} if registers == 255 else {}
    usage = {"registers": registers, "stack": 0, "spill_stores": 0, "spill_loads": 0, **spills}
    kernels = {"k": {"sm_90a": {**usage, "static_smem": 0}}}
    return {"status": status, "kernels": kernels, "dynamic_smem": 0}


def columns(facts: dict[str, Any]) -> Columns:
    metas = [meta(32), meta(255), meta(32, "pruned")]
    return Columns(SCHEDULES, resources_of(instance(facts), SCHEDULES, metas))


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


FACTS = {"sms": 2, "dram_gbs": 1000, "tflops": 2.0}


def built(
    facts: dict[str, Any], keys: tuple[str, ...] = ("m",), arch: str = "sm_90a", **dispatch: Any
) -> Any:
    wrote = DispatchSection(keys=keys, **dispatch) if dispatch else None
    resources = columns(facts) if arch != "cpu" else Columns(SCHEDULES, {})
    return built_in(instance(facts, arch), keys, resources, wrote)


def cost(model: Any, program: int, **sizes: int) -> Any:
    values = {name: column[program] for name, column in model.columns.items()}
    return model.cost.evaluate({**sizes, **values})


def test_the_built_in_model_fills_waves_and_hides_latency() -> None:
    model = built({"sms": 2})
    assert model.source == "built-in: waves, occupancy"
    assert cost(model, 0, m=32 * 32) == 1.0  # 32 blocks in 32 places, all warps in flight
    assert cost(model, 0, m=32 * 33) == pytest.approx(64 / 33)  # a second wave for one block
    assert cost(model, 1, m=256 * 4) == pytest.approx(1 / 0.25)  # full, but few warps in flight
    assert cost(model, 0, m=0) == 1.0


def test_the_roof_of_the_memory_is_every_tensor_once_and_what_is_spilled() -> None:
    model = built({"sms": 2, "dram_gbs": 1000})
    assert model.source == "built-in: DRAM, waves, occupancy"
    tensors = 4 * 1024 + 2 * 1024 * 2  # x is f32*[m], y is f16*[m, q], q = 2
    assert cost(model, 0, m=1024) == pytest.approx(tensors / 1e12)
    spilled = 4 * 128 * 24  # 4 blocks of 128 threads
    assert cost(model, 1, m=1024) == pytest.approx((tensors + spilled) / 1e12 / 0.25)


def test_declared_work_is_under_the_higher_of_two_roofs() -> None:
    model = built(FACTS, bytes="m * tile", flops="m * m * 1000")
    assert model.source == "built-in: DRAM, arithmetic, waves, occupancy"
    assert cost(model, 0, m=1) == pytest.approx(1000 / 2e12 / (1 / 32))
    assert cost(model, 0, m=1024) == pytest.approx(1024**2 * 1000 / 2e12)
    model = built(FACTS, bytes="m * m * tile", flops="m")
    assert cost(model, 0, m=1024) == pytest.approx(1024**2 * 32 / 1e12)


def test_an_unknown_roof_is_left_out() -> None:
    assert built({**FACTS, "dram_gbs": 0}).source == "built-in: waves, occupancy"
    assert built({**FACTS, "dram_gbs": "fast"}).source == "built-in: waves, occupancy"
    assert built({"sms": 2, "tflops": 2.0}, bytes="m").source == "built-in: waves, occupancy"
    without = instance(FACTS)
    without.spec.signature.arguments[0].dims = (
        "n",
    )  # no key: the bytes do not follow from the keys
    model = built_in(without, ("m",), columns(FACTS), None)
    assert model is not None
    assert model.source == "built-in: waves, occupancy"


def test_a_grid_of_other_sizes_than_the_keys_says_nothing_of_waves() -> None:
    model = built(FACTS, keys=("n",), bytes="n * tile")
    assert model.source == "built-in: DRAM"


def test_on_the_cpu_only_declared_work_can_choose() -> None:
    facts = {"dram_gbs": 10}
    assert built(facts, arch="cpu") is None
    model = built(facts, arch="cpu", bytes="m * tile")
    assert model.source == "built-in: DRAM"
    assert cost(model, 0, m=10) == pytest.approx(320 / 1e10)
    assert built({}, arch="cpu", bytes="m * tile") is None
    assert built(facts, arch="cpu", bytes="m + resources.registers") is None


def test_work_that_reads_what_no_schedule_has_is_an_error() -> None:
    with pytest.raises(ExprError, match="reads k"):
        built(FACTS, bytes="m * k")


def test_without_facts_or_a_fixed_launch_there_is_no_built_in_model() -> None:
    assert built({}) is None
    assert built({"dram_gbs": 1000}) is None
    assert built({"sms": 2}, keys=("n",)) is None
    without = instance(FACTS)
    without.spec.recipe.launch = None
    assert built_in(without, ("m",), columns(FACTS), None) is None
