"""What names mean: the table's rows, suffixes, hints, combined limits, and nvcc's arguments."""

import doctest
import re
from pathlib import Path

import pytest

from tilusbuild.arch import (
    CPU,
    ArchError,
    can_run,
    combine_limits,
    format_gencode,
    list_known_names,
    parse_arch,
)
from tilusbuild.arch.names import _ARCH_OF_PRODUCT
from tilusbuild.arch.table import ATTRIBUTES


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("90a", 'write "sm_90a"'),
        ("9.0a", 'write "sm_90a"'),
        ("compute_100f", 'write "sm_100f"'),
        ("SM_80", 'write "sm_80"'),
        ("sm_90f", "there is sm_90 and sm_90a"),
        ("sm_80a", "there is sm_80"),
        ("91a", 'write "sm_91a", if nvcc knows it'),
        ("sm_310", "known: sm_50"),
        ("cpuu", 'did you mean "cpu"?'),
        ("native", "run elsewhere"),
        ("a100", 'write "sm_80"'),
        ("NVIDIA A100-SXM4-80GB", 'write "sm_80"'),
        ("GeForce RTX 4090", 'write "sm_89"'),
        ("GTX 1660 Ti", 'write "sm_75"'),
        ("GH200", 'write "sm_90a"'),
        ("", "as nvcc spells it"),
    ],
)
def test_an_unknown_architecture_lists_the_known_ones(written: str, hint: str) -> None:
    with pytest.raises(ArchError) as caught:
        parse_arch(written)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_a_number_outside_of_the_table_has_the_limits_that_a_manifest_gives() -> None:
    arch = parse_arch("sm_107f", {"smem_per_block": 1000})
    known = arch.list_attributes()
    assert (arch.suffix, arch.virtual, arch.has_limits) == ("f", "compute_107f", False)
    assert (known["number"], known["smem_per_block"]) == (107, 1000)
    assert {"threads_per_sm", "warps_per_sm", "blocks_per_sm"}.isdisjoint(known)
    assert "smem_per_sm" not in combine_limits([arch, parse_arch("sm_80")])
    assert combine_limits([arch, parse_arch("sm_80")])["smem_per_block"] == 1000


def test_a_product_has_an_architecture_that_exists() -> None:
    assert {*_ARCH_OF_PRODUCT.values()} <= {*list_known_names()}


def test_code_runs_where_it_was_compiled_for_and_has_whole_limits() -> None:
    for name in list_known_names():
        assert can_run(name, name)
        assert can_run(name, name, kind="ptx")
        assert all(type(value) is int for value in parse_arch(name).list_attributes().values())


def test_combined_limits_hold_on_each_and_cpu_restricts_nothing() -> None:
    limits = combine_limits([parse_arch("sm_75"), parse_arch("sm_90a")])
    expected = {"smem_per_block": 64 * 1024, "threads_per_sm": 1024, "number": 75}
    expected |= {"smem_granularity": 256, "smem_reserved": 1024}
    assert expected.items() <= limits.items()
    assert CPU.is_cpu
    assert {"smem_per_block": 2**31 - 1, "warp_size": 32}.items() <= CPU.list_attributes().items()


def test_ptx_is_of_the_newest_architecture_that_later_gpus_can_use() -> None:
    archs = [parse_arch(name) for name in ("sm_90a", "sm_86", "sm_80", "sm_86")]
    assert format_gencode(archs, ptx=True) == (
        *("-gencode", "arch=compute_80,code=sm_80"),
        *("-gencode", "arch=compute_86,code=[sm_86,compute_86]"),
        *("-gencode", "arch=compute_90a,code=sm_90a"),
    )
    with pytest.raises(ArchError) as caught:
        format_gencode([parse_arch("sm_90a")], ptx=True)
    assert "sm_90 " in (caught.value.hint or "")


@pytest.mark.parametrize("names", [[], ["cpu"], ["sm_80", "cpu"]])
def test_gencode_is_for_gpus(names: list[str]) -> None:
    with pytest.raises(ValueError, match="GPU"):
        format_gencode([parse_arch(name) for name in names], ptx=False)


# Who runs what: each of NVIDIA's rules, both ways, and refusal of the unknown.
@pytest.mark.parametrize(
    ("code", "device", "kind", "runs"),
    [
        ("sm_80", "sm_80", "sass", True),
        ("sm_80", "sm_86", "sass", True),
        ("sm_80", "sm_89", "sass", True),
        ("sm_86", "sm_80", "sass", False),
        ("sm_80", "sm_90", "sass", False),
        ("sm_90", "sm_80", "sass", False),
        ("sm_90a", "sm_90", "sass", True),
        ("sm_100a", "sm_103", "sass", False),
        ("sm_100f", "sm_103", "sass", True),
        ("sm_103f", "sm_100", "sass", False),
        ("sm_100f", "sm_110", "sass", False),
        ("sm_120f", "sm_121", "sass", True),
        ("sm_100", "sm_120", "sass", False),
        ("sm_80", "sm_121", "ptx", True),
        ("sm_90", "sm_80", "ptx", False),
        ("sm_90a", "sm_90", "ptx", True),
        ("sm_90a", "sm_100", "ptx", False),
        ("sm_100f", "sm_103", "ptx", True),
        ("sm_100f", "sm_120", "ptx", False),
        ("cpu", "cpu", "sass", True),
        ("cpu", "sm_80", "sass", False),
        ("sm_80", "cpu", "sass", False),
        ("sm_80", "sm_999", "sass", False),
        ("sm_120", "sm_122", "sass", False),
        ("sm_123", "sm_123", "sass", True),
        ("sm_123", "sm_124", "ptx", False),
        ("", "sm_80", "sass", False),
        ("sm_80", "garbage", "ptx", False),
        ("sm_90", "sm_140", "ptx", True),
        ("sm_90a", "sm_140", "ptx", False),
        ("sm_121", "sm_118", "ptx", False),
    ],
)
def test_rules(code: str, device: str, kind: str, runs: bool) -> None:
    verdict = can_run(code, device, kind=kind)  # type: ignore[arg-type]
    assert bool(verdict) is runs
    assert verdict.reason


def test_a_refusal_says_why() -> None:
    assert can_run("sm_90a", "sm_100").reason == "sm_90a code runs on sm_90 only, not sm_100"
    assert "8.x" in can_run("sm_80", "sm_90").reason
    assert "minor version 6" in can_run("sm_86", "sm_80").reason


# `docs/architectures.md` says what the code says.
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"


def test_examples_answer_as_shown() -> None:
    failed, asked = doctest.testfile(str(PAGE), module_relative=False)
    assert asked > 0
    assert failed == 0


def test_the_table_of_limits() -> None:
    text = PAGE.read_text()
    rows = re.findall(
        r"^\| (sm_\d.*?) \| (\d+) \| (\d+) \| (\d+) KB \| (\d+) KB \|$", text, re.MULTILINE
    )
    shown = set()
    for names, threads, blocks, smem_sm, smem_block in rows:
        for name in re.findall(r"sm_\d+", names):
            arch = parse_arch(name)
            assert (arch.threads_per_sm, arch.blocks_per_sm) == (int(threads), int(blocks)), name
            sizes = (arch.smem_per_sm // 1024, arch.smem_per_block // 1024)
            assert sizes == (int(smem_sm), int(smem_block)), name
            shown.add(name)
    numbers = {name.rstrip("af") for name in list_known_names() if name != "cpu"}
    assert {n for n in numbers if int(n[3:]) >= 70} == shown


def test_every_attribute_is_named() -> None:
    text = PAGE.read_text()
    assert [
        name for name in ATTRIBUTES if f"`{name}`" not in text and f" {name} " not in text
    ] == []
