"""JSON by columns: the report's page reads what was packed, whatever it is, and it is smaller."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support import report_lines
from tilusbuild.report.columns import pack

texts = st.text(max_size=6) | st.sampled_from(["__proto__", "all", "keys", "0", "\udcff"])
plain = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.floats(-1e9, 1e9)
values = st.recursive(
    plain | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(values, max_size=8))
def test_the_page_reads_what_was_packed(given_values: list[Any]) -> None:
    read = report_lines.unpacked(json.dumps(pack(given_values)))
    # JavaScript has one kind of number, and prints 1.0 as 1.
    assert read == given_values
    assert [type(value) is bool for value in read] == [type(v) is bool for v in given_values]


def test_ten_thousand_programs_are_a_third_of_their_lines() -> None:
    lines = report_lines.lines(10_000)
    packed = json.dumps(pack([json.loads(line) for line in lines]), separators=(",", ":"))
    assert len(packed) < sum(map(len, lines)) / 3
