"""What is told of a long count: nothing when it is short, and its end once."""

import io

import pytest

from tilusbuild.report import tuning


@pytest.mark.parametrize("redraws", [False, True])
def test_the_end_of_a_count_is_told_once_and_only_where_it_was_spoken_of(redraws) -> None:
    clock = iter([0.0, 2.0, 2.0, 10.0, 10.0, 12.0, 12.1, 12.2])
    out = io.StringIO()
    short = tuning.counting(out, redraws, "short", clock.__next__)
    for _ in range(2):
        short(1.0)
    assert out.getvalue() == "", "it took two seconds, and there is nothing left to wait for"
    long = tuning.counting(out, redraws, "long", clock.__next__)
    for part in (0.0, 0.5, 1.0, 1.0):
        long(part)
    told = out.getvalue()
    assert told.count("50.0%") == 1
    assert told.count("\r\x1b[K" if redraws else "100.0%") == (2 if redraws else 1)
