"""The rules that builder and deployment share: architectures, buckets, expressions, names."""

from typing import Literal

import pytest

from tilusbuild.arch.table import ARCHS
from tilusbuild.runtime.device import KNOWN_ARCHS, can_run, rank_image
from tilusbuild.runtime.script import make_rounding
from tilusbuild.runtime.semantics import NoValueError, build_function


def test_the_architectures_are_those_that_the_builder_knows() -> None:
    assert {*ARCHS, "cpu"} == KNOWN_ARCHS


def test_of_what_runs_the_most_exact_is_the_best() -> None:
    sass = ("sm_100", "sm_103", "sm_100f", "sm_103a")
    images: list[tuple[str, Literal["sass", "ptx"]]] = [("sm_80", "ptx")]
    images += [(code, "sass") for code in sass]
    assert all(can_run(code, "sm_103", kind) for code, kind in images)
    best = sorted(images, key=lambda image: rank_image(image[0], "sm_103", image[1]))
    assert [code for code, _ in best] == ["sm_103a", "sm_103", "sm_100f", "sm_100", "sm_80"]


@pytest.mark.parametrize(
    ("bucket", "sizes"),
    [
        ("tilus", {5: 6, 9: 12, 17: 24, 100: 128, 1000: 1024, 1025: 1536, 1537: 2048, 4097: 6144}),
        ("tilus", {-3: -3, 0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 1 << 40: 1 << 40}),
        ("pow2", {0: 0, 1: 1, 3: 4, 4: 4, 1025: 2048}),
        ("exact", {7: 7, -1: -1}),
        ([16, 64], {0: 0, 1: 16, 16: 16, 17: 64, 65: 64}),
        ({"every": 128}, {0: 0, 1: 128, 128: 128, 129: 256}),
    ],
)
def test_a_size_belongs_to_the_next_bucket_up(bucket: object, sizes: dict[int, int]) -> None:
    rounded = make_rounding(bucket)
    assert {size: rounded(size) for size in sizes} == sizes


@pytest.mark.parametrize("bucket", ["tiles", [], [4, 2], [0], {"every": 0}, {"each": 1}, None, 3])
def test_an_invalid_bucket_is_refused(bucket: object) -> None:
    with pytest.raises(ValueError, match=r"bucket|edges"):
        make_rounding(bucket)


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        ["eval", "x"],
        ["name"],
        ["name", 3],
        ["binary", "+", 1],
        ["binary", "@", 1, 2],
        ["binary", "**", 2, ["name", "m"]],
        ["compare", 1, "<"],
        ["call", "exec", 1],
        ["call", "max"],
        ["binary", "+", 1, ["name", "other"]],
        ["in", ["name", "m"], [["name", "other"]], False],
        {"a": 1},
    ],
)
def test_an_invalid_expression_tree_is_refused(tree: object) -> None:
    with pytest.raises(ValueError, match=r"expression"):
        build_function(tree, ("m",))


def test_a_tree_is_not_followed_without_end() -> None:
    tree: list[object] = ["name", "m"]
    for _ in range(10_000):
        tree = ["unary", "-", tree]
    with pytest.raises(ValueError, match="no expression"):
        build_function(tree, ("m",))


def test_what_has_no_value_says_so() -> None:
    with pytest.raises(NoValueError, match="division by zero"):
        build_function(["binary", "//", 1, ["name", "m"]], ("m",))({"m": 0})
