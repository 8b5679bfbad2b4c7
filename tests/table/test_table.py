import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.table import table


def test_it_looks_like_a_tilus_schedule_table():
    text = table(["index", "num_warps", "tile"], [[0, 4, "128x64"], [10, 16, "8"]])
    assert text == (
        "  index    num_warps  tile\n"
        "-------  -----------  ------\n"
        "      0            4  128x64\n"
        "     10           16  8\n"
    )


def test_values_print_as_in_toml_and_none_is_empty():
    text = table(["x", "y", "z"], [[True, 0.5, "a"], [False, None, "b\nc"]])
    assert text.splitlines()[2:] == ["true   0.5  a", "false       b\\nc"]


def test_no_rows_is_a_header():
    assert table(["a", "b"], []) == "  a    b\n---  ---\n"


def test_wide_characters_keep_columns_straight():
    lines = table(["name", "n"], [["漢字", 1], ["e\u0301", 2]]).splitlines()
    assert lines[2:] == ["漢字      1", "e\u0301         2"]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="2 cells under 1"):
        table(["a"], [[1, 2]])


@given(st.lists(st.tuples(st.text(), st.integers() | st.none() | st.booleans())))
def test_every_row_is_one_line(rows):
    lines = table(["text", "value"], rows).split("\n")
    assert len(lines) == len(rows) + 3
    assert lines[-1] == ""
    assert all(line == line.rstrip() for line in lines)
