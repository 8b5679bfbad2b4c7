"""The C form: its text, its types, what it refuses, and how it tells of errors."""

import pytest

from tilusbuild.expr import ExprError, c_prelude, parse

POINT = {"a": 0, "b": 0, "arch.c": 0, "x": 0.0, "p": False}


def test_the_text_is_an_expression_over_the_given_names() -> None:
    assert parse("cdiv(n, 64)").c({"n": "args->n"}) == "tb_cdiv(args->n, INT64_C(64))"
    assert parse("a < b or not p").c({"a": "a", "b": "b", "p": "p"}, {"p": "bool"}) == (
        "((a < b) || (!p))"
    )


def test_the_prelude_includes_nothing_but_stdint() -> None:
    includes = [line for line in c_prelude().splitlines() if line.startswith("#include")]
    assert includes == ["#include <stdint.h>"]


@pytest.mark.parametrize(
    ("source", "kind"),
    [("a + 1", "int"), ("a / 2", "float"), ("a < 1", "bool"), ("x * a", "float"), ("+p", "int")],
)
def test_the_type_is_known_before_it_runs(source: str, kind: str) -> None:
    assert parse(source).c_type({"x": "float", "p": "bool"}) == kind


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s == 'f16'", "the string 'f16' has no form in C"),
        ("n + 1", "n is not known"),
        ("1 if a else x", "both must be the same"),
        ("x & 1", "needs integers"),
    ],
)
def test_what_c_cannot_say(source: str, words: str) -> None:
    with pytest.raises(ExprError, match=words):
        parse(source).c({"a": "a", "s": "s", "x": "x"}, {"x": "float"})


def test_a_string_that_is_constant_folds_away() -> None:
    folded = parse("(2 if dtype == 'f16' else 4) * n").substitute({"dtype": "f16"})
    assert folded.c({"n": "n"}) == "tb_mul(INT64_C(2), n)"


def test_nested_chains_do_not_grow_without_bound() -> None:
    source = "a"
    for _ in range(24):
        source = f"a < ({source}) < a"
    with pytest.raises(ExprError, match="too large for C"):
        parse(source).c({"a": "a"})


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
    run = compile_c([parse(source)])
    error, _ = run(0, {**POINT, "a": a, "b": b})
    assert error == code
