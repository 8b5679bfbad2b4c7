"""The four forms of an expression against each other, where nobody chose the expressions."""

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tilusbuild.expr import Expr, ExprError, Value, parse_expression
from tilusbuild.expr.vector import evaluate_columns

NAMES = ("a", "b", "arch.c", "x", "p", "s")
C_TYPES = {"x": "float", "p": "bool"}
EDGES = (0, 1, -1, 2, 3, 63, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))

integers = st.one_of(st.integers(-9, 9), st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
reals = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, -1.5, 3.0, 1e308, 5e-324, 2.0**53]),
    st.floats(allow_nan=False, allow_infinity=False),
)
points = st.fixed_dictionaries(
    {
        "a": integers,
        "b": integers,
        "arch.c": st.integers(-4, 40),
        "x": reals,
        "p": st.booleans(),
        "s": st.sampled_from(["f16", "bf16", "", "é"]),
    }
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def of(template: str, *more: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        count = template.count("{}") - len(more)
        return st.tuples(*more, *[inner] * count).map(lambda parts: template.format(*parts))

    compare = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    binary = st.sampled_from(["+", "-", "*", "//", "%", "/", "&", "|", "^", ">>"])
    return st.one_of(
        st.tuples(inner, binary, inner).map("({0[0]} {0[1]} {0[2]})".format),
        st.tuples(inner, compare, inner).map("({0[0]} {0[1]} {0[2]})".format),
        st.tuples(inner, compare, inner, compare, inner).map(
            "({0[0]} {0[1]} {0[2]} {0[3]} {0[4]})".format
        ),
        st.tuples(inner, st.integers(0, 5)).map("({0[0]} ** {0[1]})".format),
        st.tuples(inner, st.integers(0, 62)).map("({0[0]} << {0[1]})".format),
        of("({} and {})"),
        of("({} or {})"),
        of("(not {})"),
        of("(-{})"),
        of("(~{})"),
        of("({} if {} else {})"),
        of("({} in ({}, {}))"),
        of("({} not in ({}, 3))"),
        st.tuples(
            st.sampled_from(["min", "max", "cdiv", "align", "divides", "gcd"]), inner, inner
        ).map("{0[0]}({0[1]}, {0[2]})".format),
        st.tuples(st.sampled_from(["abs", "pow2", "log2"]), inner).map("{0[0]}({0[1]})".format),
    )


_leaves = st.one_of(
    st.sampled_from(["a", "b", "arch.c", "x", "p"]),
    st.integers(0, 70).map(str),
    st.sampled_from(["True", "False", "0.5", "1e300", "9223372036854775807"]),
)
sources = st.recursive(_leaves, _larger, max_leaves=8)
sources_with_strings = st.one_of(
    sources,
    st.tuples(sources, st.sampled_from(["s == 'f16'", "s in ('f16', 'é')", "s < 'c'"])).map(
        "({0[0]} if {0[1]} else 7)".format
    ),
    st.tuples(sources, st.sampled_from(["s", "'f16'"])).map("({0[0]} == {0[1]})".format),
)


batches = st.lists(
    st.tuples(sources, st.lists(points, min_size=4, max_size=8)), min_size=20, max_size=60
)
steady = settings(derandomize=True, max_examples=400)


def parsed(source: str) -> Expr | None:
    """The expression, unless it breaks a limit, as a random one may."""
    try:
        return parse_expression(source)
    except ExprError:
        return None


def outcome(expr: Expr, point: dict[str, Value]) -> Value | None:
    try:
        return expr.evaluate(point)
    except ExprError:
        return None


def same(left: Value | None, right: Value | None) -> bool:
    """Equal, to the sign of a zero."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right and str(left) == str(right)
    return left == right


@steady
@given(sources_with_strings, points)
def test_the_canonical_text_means_the_same(source: str, point: dict[str, Value]) -> None:
    expr = parsed(source)
    if expr is None or len(expr.canonical) > 2000:
        return
    again = parse_expression(expr.canonical)
    assert again == expr
    assert again.canonical == expr.canonical
    assert same(outcome(again, point), outcome(expr, point))


@steady
@given(sources_with_strings, st.lists(points, min_size=1, max_size=12))
def test_the_vector_form_answers_as_the_scalar_form(source, rows) -> None:
    expr = parsed(source)
    if expr is None:
        return
    columns = {name: np.array([row[name] for row in rows]) for name in NAMES}
    values, bad = evaluate_columns(expr, columns)
    marks = np.zeros(len(rows), bool) if bad is None else bad
    answers = [None if mark else value for value, mark in zip(values.tolist(), marks, strict=True)]
    expected = [outcome(expr, row) for row in rows]
    assert all(same(a, e) for a, e in zip(answers, expected, strict=True))
    assert list(map(type, answers)) == list(map(type, expected))


@steady
@given(sources_with_strings, points, st.sets(st.sampled_from(NAMES)))
def test_a_substitution_does_not_change_the_value(source, point, known) -> None:
    expr = parsed(source)
    if expr is None:
        return
    folded = expr.substitute({name: point[name] for name in known})
    assert folded.names <= expr.names - known
    assert same(outcome(folded, point), outcome(expr, point))


def as_c(source: str) -> Expr | None:
    expr = parsed(source)
    try:
        if expr is not None:
            expr.find_c_type(C_TYPES)
    except ExprError:
        return None
    return expr


@settings(
    derandomize=True,
    max_examples=6,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),  # a compiler run needs a large batch to be worth it
)
@given(batches)
def test_the_c_form_answers_as_the_scalar_form_or_says_that_it_cannot(compile_c, batch) -> None:
    cases = [(expr, rows) for source, rows in batch if (expr := as_c(source)) is not None]
    run = compile_c([expr for expr, _ in cases])
    for number, (expr, rows) in enumerate(cases):
        for point in rows:
            expected = outcome(expr, point)
            error, value = run(number, point)
            if error == 0:
                assert same(value, expected), (expr, point)
            elif expected is not None:  # the one liberty of C: an intermediate beyond 64 bits
                assert error == 2, (expr, point)
