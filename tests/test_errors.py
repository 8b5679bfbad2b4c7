"""A long line is shown around its column."""

from __future__ import annotations

from tilusbuild.errors import Diagnostic, Location


def test_a_long_line_is_shown_around_its_column():
    line = "a" * 1000 + "\tX" + "b" * 1000
    shown = Diagnostic("wrong", Location("k.cu", 7, 1002, line)).render().splitlines()
    assert shown[1].startswith("    7 | …aaa")
    assert shown[1].endswith("bbb…")
    assert shown[2].index("^") == shown[1].index("X")
    assert len(shown[1]) < 260
