"""What expressions are worth: what each operation means, and the errors where there is no value."""

from typing import Any

import numpy as np
import pytest

from tilusbuild.expr import Expr, ExprError, Value, parse_expression, write_c_prelude
from tilusbuild.expr.tree import Logic
from tilusbuild.expr.vector import evaluate_columns

POINT: dict[str, Value] = {
    "m": 100,
    "block_m": 64,
    "zero": 0,
    "minus": -7,
    "big": 2**62,
    "half": 0.5,
    "dtype": "f16",
    "on": True,
    "arch.smem_per_block": 232448,
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("cdiv(m, block_m)", 2),
        ("cdiv(minus, 2)", -3),
        ("align(m, block_m)", 128),
        ("align(minus, 4)", -4),
        ("align(128, block_m)", 128),
        ("pow2(5)", 32),
        ("log2(m)", 6),
        ("log2(block_m)", 6),
        ("divides(block_m, 128)", True),
        ("divides(block_m, m)", False),
        ("gcd(m, block_m)", 4),
        ("gcd(minus, 0)", 7),
        ("min(m, block_m, 7)", 7),
        ("max(m, half)", 100.0),
        ("abs(minus)", 7),
        ("minus // 2", -4),
        ("minus % 2", 1),
        ("minus % -2", -1),
        ("m / 8", 12.5),
        ("m / 50", 2.0),
        ("m % (block_m / 32)", 0.0),
        ("minus >> 1", -4),
        ("1 << 62", 2**62),
        ("~m", -101),
        ("m & 12 | 3 ^ 1", 4 | 3 ^ 1),
        ("half ** 3", 0.125),
        ("on + on", 2),
        ("~on", -2),
        ("m and block_m", True),
        ("zero or minus", True),
        ("not m", False),
        ("dtype == 'f16'", True),
        ("dtype != 3", True),
        ("dtype in ('bf16', 'f16')", True),
        ("m not in (1, 2)", True),
        ("'a' < dtype < 'g'", True),
        ("2 if dtype == 'f16' else 4", 2),
        ("0 < m <= 100 < 101", True),
        ("(m * big) // big", 100),
        ("m * 2 <= arch.smem_per_block", True),
    ],
)
def test_values(source: str, value: Value) -> None:
    result = parse_expression(source).evaluate(POINT)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("zero == 0 or m % zero == 0", True),
        ("zero != 0 and m % zero == 0", False),
        ("m // zero if zero else 5", 5),
        ("m in (100, m // zero)", True),
        ("m < 5 < m // zero", False),
        ("dtype == 'f16\\0'", False),  # NumPy would drop the NUL
    ],
)
def test_what_is_not_needed_is_not_evaluated(source: str, value: Value) -> None:
    expr = parse_expression(source)
    assert expr.evaluate(POINT) == value
    columns = {name: np.array([POINT[name]] * 2) for name in expr.names}
    assert vector(expr, columns).tolist() == [value, value]


@pytest.mark.parametrize(
    ("source", "column", "words"),
    [
        ("m + m % zero", 9, "division by zero in (m % zero)"),
        ("m // zero", 6, "division by zero"),
        ("1 / zero", 5, "division by zero"),
        ("cdiv(m, zero)", 1, "division by zero"),
        ("divides(zero, m)", 1, "division by zero"),
        ("align(m, zero)", 1, "not positive"),
        ("log2(zero)", 1, "not positive"),
        ("pow2(m)", 1, "not from 0 to 62"),
        ("m >> minus", 6, "negative"),
        ("big * big", 1, "does not fit 64 bits"),
        ("1e308 * m", 9, "overflow"),
        ("(half + 1e300) ** 2", 19, "overflow"),
        ("dtype + 1", 9, "needs numbers, not the string 'f16'"),
        ("dtype and on", 1, "needs numbers"),
        ("dtype < 3", 1, "compares 'f16' with 3"),
        ("half & 1", 8, "needs integers"),
        ("m + blok_m", 5, 'unknown name "blok_m"; did you mean "block_m"?'),
        ("arch.smem_per_blok", 1, 'did you mean "arch.smem_per_block"?'),
    ],
)
def test_errors_say_what_and_where(source: str, column: int, words: str) -> None:
    expr = parse_expression(source)
    with pytest.raises(ExprError) as caught:
        expr.evaluate(POINT)
    assert words in caught.value.message
    assert caught.value.column == column
    if expr.names <= POINT.keys():
        _, bad = evaluate_columns(expr, {n: np.array([POINT[n]] * 3) for n in expr.names})
        assert bad.all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, None, (1,)])
def test_an_invalid_value_is_refused(value: object) -> None:
    with pytest.raises(ExprError):
        parse_expression("a + 0.5").evaluate({"a": value})  # type: ignore[dict-item]


def vector(expr: Expr, columns: dict[str, Any]) -> Any:
    values, bad = evaluate_columns(expr, columns)
    assert bad is None
    return values


def test_small_integer_columns_do_not_overflow_in_their_own_type() -> None:
    column = np.array([100, 120], dtype=np.int8)
    assert vector(parse_expression("a + a"), {"a": column}).tolist() == [200, 240]
    assert vector(parse_expression("a * a"), {"a": column.astype(np.uint8)}).tolist() == [
        10000,
        14400,
    ]


def test_a_vector_takes_columns_of_any_kind() -> None:
    columns = {
        "a": np.array([1, 2]),
        "s": np.array(["x", "y"]),
        "m": np.array([1, "z"], object),
    }
    assert vector(parse_expression("s == 'y' or a == 1"), columns).tolist() == [True, True]
    assert vector(parse_expression("m == 'z'"), columns).tolist() == [False, True]
    assert vector(parse_expression("s if a == 1 else 'w'"), columns).tolist() == ["x", "w"]


def test_columns_that_broadcast_make_a_grid() -> None:
    columns = {"a": np.array([[1], [2]]), "b": np.array([[3, 4, 5]])}
    assert vector(parse_expression("a * b"), columns).tolist() == [[3, 4, 5], [6, 8, 10]]


def test_an_empty_column_has_no_values() -> None:
    assert vector(parse_expression("a + 1"), {"a": np.array([], dtype=np.int64)}).tolist() == []


def test_partial_evaluation_leaves_what_is_unknown() -> None:
    launch = parse_expression("cdiv(n, block_n) * (2 if dtype == 'f16' else 4)")
    folded = launch.substitute({"block_n": 64, "dtype": "f16"})
    assert folded.canonical == "(cdiv(n, 64) * 2)"
    assert folded.names == {"n"}
    assert folded.evaluate({"n": 65}) == 4


def test_partial_evaluation_keeps_an_error_where_it_is_guarded() -> None:
    assert parse_expression("k == 0 or m % k == 0").substitute({"k": 0}).canonical == "True"
    assert parse_expression("m == 0 or 1 // k == 0").substitute({"k": 0}).evaluate({"m": 0}) is True


def test_a_constant_must_fit() -> None:
    with pytest.raises(ExprError, match="k: the integer does not fit 64 bits"):
        parse_expression("k + m").substitute({"k": 2**64})


@pytest.mark.parametrize("source", ["1 << 62", "3", "-9223372036854775808", "~True", "True | 2"])
def test_a_condition_of_one_side_has_the_value_of_a_condition(source: str) -> None:
    """As a space makes of a rule that folds to an integer."""
    tree = parse_expression(source).tree
    for op in ("and", "or"):
        assert Expr(source, Logic(op, (tree,))).evaluate({}) is True


# The C form: its text, its types, what it refuses, and how it tells of errors.
C_POINT = {"a": 0, "b": 0, "arch.c": 0, "x": 0.0, "p": False}


def test_the_text_is_an_expression_over_the_given_names() -> None:
    assert parse_expression("cdiv(n, 64)").to_c({"n": "args->n"}) == "tb_cdiv(args->n, INT64_C(64))"
    assert parse_expression("a < b or not p").to_c(
        {"a": "a", "b": "b", "p": "p"}, {"p": "bool"}
    ) == ("((a < b) || (!p))")


def test_the_prelude_includes_nothing_but_stdint() -> None:
    includes = [line for line in write_c_prelude().splitlines() if line.startswith("#include")]
    assert includes == ["#include <stdint.h>"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [("a + 1", "int"), ("a / 2", "float"), ("a < 1", "bool"), ("x * a", "float"), ("+p", "int")],
)
def test_the_type_is_known_before_it_runs(source: str, kind: str) -> None:
    assert parse_expression(source).find_c_type({"x": "float", "p": "bool"}) == kind


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s == 'f16'", "the string 'f16' has no form in C"),
        ("n + 1", "n is not known"),
        ("1 if a else x", "both must be the same"),
        ("x & 1", "needs integers"),
        ("a % x", "of a float has no form"),
    ],
)
def test_what_c_cannot_say(source: str, words: str) -> None:
    with pytest.raises(ExprError, match=words):
        parse_expression(source).to_c({"a": "a", "s": "s", "x": "x"}, {"x": "float"})


def test_a_string_that_is_constant_folds_away() -> None:
    folded = parse_expression("(2 if dtype == 'f16' else 4) * n").substitute({"dtype": "f16"})
    assert folded.to_c({"n": "n"}) == "tb_mul(INT64_C(2), n)"


def test_nested_chains_do_not_grow_without_bound() -> None:
    source = "a"
    for _ in range(24):
        source = f"a < ({source}) < a"
    with pytest.raises(ExprError, match="too large for C"):
        parse_expression(source).to_c({"a": "a"})


@pytest.mark.parametrize(
    ("source", "a", "b", "code"),
    [
        ("a // b", 1, 0, 1),
        ("a % b", 1, 0, 1),
        ("a / b", 1, 0, 1),
        ("b == 0 or a % b == 0", 1, 0, 0),
        ("a * b", 2**62, 2, 2),
        ("a + b", 2**63 - 1, 1, 2),
        ("-a", -(2**63), 0, 2),
        ("abs(a)", -(2**63), 0, 2),
        ("a // b", -(2**63), -1, 2),
        ("a % b", -(2**63), -1, 0),
        ("gcd(a, b)", -(2**63), 0, 2),
        ("log2(a)", 0, 0, 3),
        ("align(a, b)", 1, 0, 3),
        ("pow2(a)", 63, 0, 3),
        ("a >> b", 1, -1, 3),
        ("a / b", 2**53 + 1, 1, 2),
    ],
)
def test_errors_are_told_through_the_hook(compile_c, source, a, b, code) -> None:
    run = compile_c([parse_expression(source)])
    error, _ = run(0, {**C_POINT, "a": a, "b": b})
    assert error == code
