"""What is an expression and what is not: the whitelist, the limits, the columns of errors."""

import pytest

from tilusbuild.expr import ExprError, parse_expression


def test_a_rule_knows_its_names() -> None:
    expr = parse_expression("(block_m + block_n) * 2 <= arch.smem_per_block")
    assert expr.names == {"block_m", "block_n", "arch.smem_per_block"}
    assert expr.source == "(block_m + block_n) * 2 <= arch.smem_per_block"
    assert expr.canonical == "(((block_m + block_n) * 2) <= arch.smem_per_block)"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a+b*c", "a + (b * c)"),
        ("a<b<=c", "(a < b <= c)"),
        ("x in [1,2]", "x in (1, 2)"),
        ("x in (1,)", "x in [1]"),
        ("'f16'", '"f16"'),
        ("0x10", "16"),
        ("  a or\n  b", "a or b"),
        ("-1 ** 2", "-(1 ** 2)"),
        ("- 5", "-5"),
        ("-(-0)", "0"),
        ("-(-(5.0))", "+5.0"),
    ],
)
def test_spelling_does_not_matter(left: str, right: str) -> None:
    assert parse_expression(left) == parse_expression(right)
    assert hash(parse_expression(left)) == hash(parse_expression(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [("1", "1.0"), ("1", "True"), ("(-1) ** 2", "-1 ** 2"), ("a - b - c", "a - (b - c)")],
)
def test_meaning_does(left: str, right: str) -> None:
    assert parse_expression(left) != parse_expression(right)


@pytest.mark.parametrize("value", [7, -7, True, 2.5, -0.0, 2**63 - 1, -(2**63)])
def test_a_number_is_an_expression(value: int | float | bool) -> None:
    expr = parse_expression(value)
    assert repr(expr.evaluate({})) == repr(value)
    assert repr(parse_expression(expr.canonical).evaluate({})) == repr(value)


@pytest.mark.parametrize(
    ("source", "column", "words"),
    [
        ("__import__('os').system('id')", 1, "functions of the expression language"),
        ("().__class__", 1, "attributes"),
        ("(lambda: 1)()", 1, "functions"),
        ("a.__class__", 1, "attributes are only those of arch and facts"),
        ("arch.smem.real", 1, "attributes"),
        ("9 ** 9 ** 9", 6, "literal from 0 to 62"),
        ("a << b", 6, "literal from 0 to 62"),
        ("2 ** -1", 6, "literal"),
        ("2 ** True", 6, "literal"),
        ("a + 'x' * 9", 5, "needs numbers"),
        ("[y for y in (1, 2)]", 1, "[y for y in (1, 2)] is not part"),
        ("f'{a}'", 1, "is not part"),
        ("open('x')", 1, 'unknown function "open"'),
        ("mim(a, b)", 1, 'did you mean "min"'),
        ("(a := 3)", 2, "(a := 3) is not part"),
        ("a[0]", 1, "a[0] is not part"),
        ("lambda: 1", 1, "lambda: 1 is not part"),
        ("{}", 1, "{} is not part"),
        ("(a, b)", 1, "a tuple"),
        ("a in b", 6, "needs a tuple on its right"),
        ("a in ()", 6, "needs a tuple on its right"),
        ("1 < a in (1, 2)", 1, "parentheses"),
        ("a is b", 1, 'not with "is"'),
        ("min + 1", 1, "needs arguments"),
        ("arch + 1", 1, "arch.<something>"),
        ("cdiv(a)", 1, "takes 2 arguments, not 1"),
        ("min(a)", 1, "at least 2"),
        ("max(a, key=b)", 1, "no keyword"),
        ("a @ b", 1, "MatMult"),
        ("None", 1, "None"),
        ("1j", 1, "1j"),
        ("b'x'", 1, "not a number"),
        ("a +", None, "not an expression"),
        ("a # b", 3, "comment"),
        ("a and # first\n b", 7, "comment"),
        ("é + 1", 1, "unexpected character"),
        ("a == 'x\ny'", 6, "line break inside a string"),
        ("a\0", 2, "unexpected character"),
        ("", 1, "empty"),
        ("  \n ", 1, "empty"),
        ("9223372036854775808", 1, "64 bits"),
        ("1e999", 1, "not finite"),
        ("a if b", None, "not an expression"),
        ("1if a else 2", None, "not an expression"),
        ("'\\d'", None, "not an expression"),
        ("'é' == a.b", 8, "attributes"),
        ("\r\n  a +\n  open(b)", 11, "unknown function"),
    ],
)
def test_anything_else_is_refused_with_its_column(source, column, words) -> None:
    with pytest.raises(ExprError) as caught:
        parse_expression(source)
    assert words in caught.value.message
    if column is not None:
        assert caught.value.column == column


@pytest.mark.parametrize(
    "source",
    [
        "(" * 900 + "1" + ")" * 900,
        "-" * 1999 + "1",
        "not " * 490 + "a",
        "a" + "+a" * 400,
        "a" + " if a else a" * 100,
        "9" * 1999,
        "1" * 2001,
        "'" * 1999,
    ],
)
def test_a_hostile_text_is_an_error_like_any_other(source: str) -> None:
    with pytest.raises(ExprError):
        parse_expression(source)


def test_what_an_integer_can_grow_to_is_bounded() -> None:
    source = "a"
    for _ in range(9):
        source = f"({source} ** 62)"
    with pytest.raises(ExprError, match="overflow"):
        parse_expression(source).evaluate({"a": 2})
    assert parse_expression("a ** 62 > 0").evaluate({"a": 2**62}) is True


def test_only_text_and_numbers_are_expressions() -> None:
    with pytest.raises(ExprError, match="not list"):
        parse_expression([1])  # type: ignore[arg-type]


def test_a_literal_is_known_as_one() -> None:
    assert parse_expression("3 + 4").substitute({}).constant == 7
    assert parse_expression("a").constant is None
