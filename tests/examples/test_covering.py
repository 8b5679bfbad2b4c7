"""The schedules that stand for all of an example's."""

from itertools import combinations

from support.covering import covering


def pairs(points):
    return {pair for point in points for pair in combinations(sorted(point.items()), 2)}


def test_any_two_values_that_occur_together_are_taken_together(gemm):
    programs = gemm.programs("gemm", "hopper")
    names = ("block_m", "block_n", "warps_m", "stages", "dtype")
    values = [{name: program.values[name] for name in names} for program in programs]
    taken = covering(values, values)
    assert pairs(taken) == pairs(values)
    assert len(taken) * 3 < len(values)


def test_all_are_taken_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("TILUSBUILD_TEST_ALL", "1")
    points = [{"a": 1, "b": n // 100} for n in range(200)]
    assert covering(points, points) == points
