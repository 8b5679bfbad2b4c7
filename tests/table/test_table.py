import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.table import format_table, format_times


def test_it_looks_like_a_tilus_schedule_table():
    text = format_table(["index", "num_warps", "tile"], [[0, 4, "128x64"], [10, 16, "8"]])
    assert text == (
        "  index    num_warps  tile\n"
        "-------  -----------  ------\n"
        "      0            4  128x64\n"
        "     10           16  8\n"
    )


def test_values_print_as_in_toml_and_none_is_empty():
    text = format_table(["x", "y", "z"], [[True, 0.5, "a"], [False, None, "b\nc"]])
    assert text.splitlines()[2:] == ["true   0.5  a", "false       b\\nc"]


@given(st.lists(st.none() | st.floats(1e-12, 1e5)))
def test_times_have_one_unit_in_which_the_shortest_is_legible(seconds):
    unit, shown = format_times(seconds)
    scale = {"s": 1, "ms": 1e3, "µs": 1e6, "ns": 1e9}[unit]
    assert [text is None for text in shown] == [value is None for value in seconds]
    assert len({len(text) for text in shown if text}) <= 1
    for text, value in zip(shown, seconds, strict=True):
        assert text is None or value is None or float(text) == float(f"{value * scale:.2f}")
    known = [value for value in seconds if value]
    assert not known or unit == "ns" or min(known) * scale >= 1


def test_no_rows_is_a_header():
    assert format_table(["a", "b"], []) == "  a    b\n---  ---\n"


def test_wide_characters_keep_columns_straight():
    lines = format_table(["name", "n"], [["漢字", 1], ["e\u0301", 2]]).splitlines()
    assert lines[2:] == ["漢字      1", "e\u0301         2"]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="2 cells under 1"):
        format_table(["a"], [[1, 2]])


@given(st.lists(st.tuples(st.text(), st.integers() | st.none() | st.booleans())))
def test_every_row_is_one_line(rows):
    lines = format_table(["text", "value"], rows).split("\n")
    assert len(lines) == len(rows) + 3
    assert lines[-1] == ""
    assert all(line == line.rstrip() for line in lines)
