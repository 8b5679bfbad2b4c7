"""Trees of `script.json` as expressions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.dispatch.describe import json_to_node, node_to_json
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.runtime.semantics import NoValueError, build_function

SOURCES = [
    "m <= 16 and n % 8 == 0",
    "not (m < n < 100) or m in (1, 2, n)",
    "m not in (3, 4)",
    "cdiv(m, n) * 2 ** 3 - (m >> 1) + align(m, 8)",
    "(m if m > n else n) / 4 + log2(max(m, 1))",
    "~m & 7 | gcd(m, n) ^ 1",
    "-m // n",
    "m * 0.5 < n or divides(n, m)",
]


@pytest.mark.parametrize("source", SOURCES)
@given(m=st.integers(-(10**6), 10**6), n=st.integers(-5, 5))
def test_a_tree_has_the_values_of_its_expression(source: str, m: int, n: int) -> None:
    parsed = parse_expression(source)
    tree = json.loads(json.dumps(node_to_json(parsed.tree)))
    assert json_to_node(tree) == parsed.tree
    function = build_function(tree, ("m", "n"))
    try:
        expected = parsed.evaluate({"m": m, "n": n})
    except ExprError:
        with pytest.raises(NoValueError):
            function({"m": m, "n": n})
    else:
        value = function({"m": m, "n": n})
        assert value == expected
        assert type(value) is type(expected)
