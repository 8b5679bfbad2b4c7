"""Random small spaces against the definition: every combination, every rule, one by one."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.published_spaces import place_of, points_of
from tilusbuild.expr import ExprError, Value, parse_expression
from tilusbuild.space import join as join_module
from tilusbuild.space import open as open_module
from tilusbuild.space.model import Parameter, Schedule, SpaceError, SpaceSpec, build_model
from tilusbuild.space.report import SpaceReport, report_space
from tilusbuild.space.space import Space

RULES = [
    "a % b == 0",
    "a * b <= k * 4",
    "b == 0 or a // b > 1",
    "c == 'x' or a < 3",
    "c != 'y' and a + b > 2",
    "d",
    "not d or b > 1",
    "e * 2.0 <= b",
    "product > 3",
    "quotient <= 2",
    "u + v > a",
    "u == v or d",
    "f >= a",
    "f != 0 or c == 'x'",
    "mixed == 'auto' or b == mixed",
    "k == 3",
    "a - a",
    "1 // (a - 2) == 0",
    "b != 0",
    "(a + b * 2) % 5 == 1",
    "(a * 3 - u) % 4 <= v",
]
DERIVED = {
    "product": parse_expression("a * b"),
    "quotient": parse_expression("product // v"),
    "label": parse_expression("c if d else 'none'"),
}

spaces = st.fixed_dictionaries(
    {
        "a": st.lists(st.integers(-2, 6), min_size=1, max_size=4, unique=True),
        "b": st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
        "c": st.sampled_from([["x"], ["x", "y"], ["y", "z", "x"]]),
        "d": st.sampled_from([[False], [True], [False, True]]),
        "e": st.sampled_from([[0.5, 1.5], [2.25]]),
        "mixed": st.sampled_from([["auto"], ["auto", 1, 2]]),
        "uv": st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3, unique=True
        ),
        "f": st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True),
        "f_when": st.sampled_from(
            [None, "d", "a > b", "not d and u > 1", "product > 2", "6 // b > 1"]
        ),
        "f_else": st.sampled_from([0, 1]),
        "rules": st.lists(st.sampled_from(RULES), max_size=4, unique=True),
    }
)


def as_spec(drawn: dict) -> SpaceSpec:  # type: ignore[type-arg]
    parameters = [
        Parameter((name,), tuple((v,) for v in drawn[name])) for name in ("a", "b", "c", "d")
    ]
    when = parse_expression(drawn["f_when"]) if drawn["f_when"] else None
    otherwise = (drawn["f_else"],) if when else None
    parameters.insert(2, Parameter(("f",), tuple((v,) for v in drawn["f"]), when, otherwise))
    parameters.append(Parameter(("u", "v"), tuple(drawn["uv"])))
    parameters += [Parameter((n,), tuple((v,) for v in drawn[n])) for n in ("e", "mixed")]
    return SpaceSpec(
        parameters=tuple(parameters),
        constants={"k": 3},
        derived=tuple(reversed(DERIVED.items())),
        restrict=tuple((text, parse_expression(text)) for text in drawn["rules"]),
    )


@pytest.mark.usefixtures("both_ways")
@settings(derandomize=True, max_examples=150)
@given(spaces, st.integers(0, 2), st.booleans())
def test_a_space_is_what_its_definition_says(
    drawn: dict,  # type: ignore[type-arg]
    seed: int,
    look_ahead: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if look_ahead:
            patch.setattr(join_module, "WORTH_BOUNDING", 0)
        check_against_brute_force(as_spec(drawn), seed)


def check_against_brute_force(spec: SpaceSpec, seed: int) -> None:
    try:
        expected: list[dict[str, Any]] | None = list(points_of(spec))
    except ExprError:
        expected = None
    if not expected:
        with pytest.raises(SpaceError, match="empty" if expected == [] else "division by zero"):
            Space(spec)
        if expected is None:
            with pytest.raises(SpaceError, match="division by zero"):
                report_space(build_model(spec))
        else:
            check_report(report_space(build_model(spec)), 0)
        return
    space = Space(spec)
    assert space.count == len(expected)
    assert list(space) == [Schedule(i, point) for i, point in enumerate(expected)]
    assert [place_of(space, point) for point in expected] == list(range(len(expected)))
    check_report(report_space(build_model(spec)), len(expected))
    drawn_points = space.sample_points(5, seed)
    assert [s.values for s in drawn_points] == [expected[s.index] for s in drawn_points]


@settings(derandomize=True, max_examples=75)
@given(spaces, st.integers(0, 9), st.booleans(), st.data())
def test_a_space_that_is_not_counted_has_the_same_points(
    drawn: dict,  # type: ignore[type-arg]
    seed: int,
    has_default: bool,
    data: st.DataObject,
) -> None:
    spec = as_spec(drawn)
    if has_default:
        parameters = [replace(p, default=p.values[-1]) if p.names[0] in "af" else p
                      for p in spec.parameters]  # fmt: skip
        spec = replace(spec, parameters=tuple(parameters))
    try:
        expected: list[dict[str, Any]] = list(points_of(spec))
    except ExprError:
        return
    if not expected:
        return
    counted, opened = Space(spec), Space(spec, budget=0)
    some = data.draw(st.sampled_from(expected))
    for partial in ({}, {"b": some["b"]}, {"u": some["u"], "c": some["c"]}, {"f": some["f"]}):
        assert first(opened, partial) == first(counted, partial)
    index = place_of(opened, some)
    assert index is not None
    assert opened[index].values == some
    other = {**some, "a": drawn["a"][0], "b": drawn["b"][0]}
    assert (place_of(opened, other) is None) == (place_of(counted, other) is None)
    few, more = (opened.sample_points(min(n, len(expected)), seed) for n in (2, 4))
    assert len({schedule.index for schedule in more}) == min(4, len(expected))
    assert {schedule.index for schedule in few} <= {schedule.index for schedule in more}
    assert all(dict(schedule.values) in expected for schedule in more)


def first(space: Space, partial: Mapping[str, Value]) -> Mapping[str, Value] | str:
    try:
        return space.complete_point(partial).values
    except SpaceError as error:
        return error.message


def test_points_of_a_space_that_is_not_counted_are_equally_likely(monkeypatch) -> None:
    monkeypatch.setattr(open_module, "BATCH", 64)
    values = tuple((v,) for v in range(6))
    parameters = (Parameter(("p",), values), Parameter(("q",), values), Parameter(("r",), values))
    spec = SpaceSpec(parameters, restrict=(("sum", parse_expression("p + q == 5")),))
    space, counts = Space(spec, budget=0), dict[int, int]()
    assert space.size == (None, 216)
    for seed in range(900):
        (point,) = space.sample_points(1, seed)
        counts[point.index] = counts.get(point.index, 0) + 1
    assert len(counts) == 36
    assert all(8 <= count <= 48 for count in counts.values()), counts


def check_report(report: SpaceReport, count: int) -> None:
    assert report.count == count
    assert report.conditional is not None
    assert 0 <= report.conditional <= report.cartesian
    removed = [rule.removed for rule in report.rules]
    assert all(removal is not None and removal >= 0 for removal in removed)
    assert report.cartesian - report.conditional - sum(filter(None, removed)) == count


def test_a_rule_over_all_parameters_looks_ahead() -> None:
    """134 million combinations, of which the rule could only be decided at the last parameter."""
    names = [f"p{i}" for i in range(9)]
    parameters = tuple(Parameter((n,), tuple((1 << v,) for v in range(8))) for n in names)
    rule = parse_expression(" * ".join(names) + " <= 4096")
    ways = [1] + [0] * 12  # ways[s]: exponents, 0 to 7 each, whose sum is s
    for _ in names:
        ways = [sum(ways[max(0, s - 7) : s + 1]) for s in range(13)]
    assert Space(SpaceSpec(parameters, restrict=(("small", rule),))).count == sum(ways)


def test_small_blocks_and_large_ranks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and ranks beyond 64 bits take every path of the join that large spaces take."""
    parameters = tuple(Parameter((n,), tuple((v,) for v in range(1, 6))) for n in "pqrst")
    rules = (("order", parse_expression("p <= q <= r")), ("sum", parse_expression("r + s + t < 9")))
    spec = SpaceSpec(parameters, restrict=rules)
    points = [dict(s.values) for s in Space(spec)]
    monkeypatch.setattr(join_module, "BLOCK", 7)
    monkeypatch.setattr(join_module, "MAX_RANK", 6)
    pieces = Space(spec)
    assert [dict(s.values) for s in pieces] == points
    assert [place_of(pieces, point) for point in points] == list(range(len(points)))
    assert place_of(pieces, {"p": 5, "q": 1, "r": 1, "s": 1, "t": 1}) is None
    assert pieces.complete_point({"t": 3}).values == next(p for p in points if p["t"] == 3)
