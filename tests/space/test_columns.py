"""Points decoded by columns are those of the definition, one by one: value, type and sign."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from support.published_spaces import Published, points_of
from tilusbuild.expr import ExprError, Value, parse_expression
from tilusbuild.plan.spaces import KnownSpace
from tilusbuild.space.model import (
    EmptySpaceError,
    Parameter,
    Schedule,
    Schedules,
    SpaceError,
    SpaceSpec,
)
from tilusbuild.space.space import Space

pytestmark = pytest.mark.usefixtures("both_ways")

EDGES = [0, 1, -1, 3, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
REALS = [0.0, -0.0, 0.5, -1.5, 3.0, 1e308, 5e-324, 2.0**53]
TEXTS = ["", "a", "a\0", "\0", "é", "f16", "1", "x" * 40]
MIXED = [True, 1, 1.0, "1", False, 0, -0.0, "", 2**63 - 1]


def some(pool: list[Any], most: int = 4) -> st.SearchStrategy[list[Any]]:
    return st.lists(
        st.sampled_from(pool),
        min_size=1,
        max_size=most,
        unique_by=lambda value: (type(value), value),
    )


DERIVED = [
    "i", "m", "s", "x", "p", "pair", "i + j", "i * j", "i - x", "j / 3", "i // 3", "i % 7", "-x",
    "+p", "not i", "abs(i)", "(i >> 3) ^ j", "p & q", "p | (j > 0)", "p ^ 1", "min(p, q)",
    "min(p, i)", "max(x, j)", "min(x, 0.0)", "max(0.0, x)", "x * 0.0", "p if i > 0 else 1",
    "i if p else x", "s if p else 'none'", "s if p else i", "m if p else m", "m == 1",
    "m in (True, '1')", "s == 'a'", "cdiv(j, 3)", "log2(j)", "divides(4, j)", "j ** 3",
    "1 // (i - 1)", "k + j", "d0", "d0 if p else d1", "min(d0, d1)", "d0 == d1",
]  # fmt: skip
RULES = ["p or q", "j > 0", "i <= j", "s != 'a'", "pair != j", "x >= 0.0", "z == 7 or p", "m != 1"]

spaces = st.fixed_dictionaries(
    {
        "i": some(EDGES),
        "j": some([0, 1, 2, 5, 16, -3]),
        "x": some(REALS),
        "p": some([False, True]),
        "q": some([False, True]),
        "s": some(TEXTS),
        "m": some(MIXED),
        "linked": st.lists(
            st.tuples(st.sampled_from(MIXED), st.sampled_from(TEXTS)),
            min_size=1,
            max_size=3,
            unique_by=lambda row: (type(row[0]), *row),
        ),
        "z": some([7, 8], 2),
        "z_else": st.sampled_from([7, 9]),
        "order": st.integers(0, 10**6),
        "derived": st.lists(st.sampled_from(DERIVED), min_size=2, max_size=4),
        "rules": st.lists(st.sampled_from(RULES), max_size=3, unique=True),
    }
)


def spec_of(drawn: Mapping[str, Any]) -> SpaceSpec:
    names = "ijxpqsm"
    parameters = [Parameter((name,), tuple((v,) for v in drawn[name])) for name in names]
    parameters.append(Parameter(("pair", "word"), tuple(drawn["linked"])))
    when, otherwise = parse_expression("p"), (drawn["z_else"],)
    parameters.append(Parameter(("z",), tuple((v,) for v in drawn["z"]), when, otherwise))
    random.Random(drawn["order"]).shuffle(parameters)
    texts = [*drawn["derived"]]
    for number in (0, 1):  # d0 and d1 are used by others, and do not use themselves
        if "d0" in texts[number]:
            texts[number] = "j"
    derived = tuple((f"d{n}", parse_expression(text)) for n, text in enumerate(texts))
    return SpaceSpec(
        parameters=tuple(parameters),
        constants={"k": 3},
        derived=(("c", parse_expression("k * 2")), *derived),
        restrict=tuple((text, parse_expression(text)) for text in drawn["rules"]),
    )


def describe(schedules: Any) -> list[tuple[int, str]]:
    """With the types of the values, the signs of zeros, and the order of names."""
    return [(schedule.index, repr(dict(schedule.values))) for schedule in schedules]


@settings(derandomize=True, max_examples=125)
@given(spaces, st.data())
def test_columns_are_the_points(drawn: dict[str, Any], data: st.DataObject) -> None:
    spec = spec_of(drawn)
    points = [*points_of(spec)]
    if not points:
        with pytest.raises(EmptySpaceError):
            _ = Space(spec).count
        return
    space = Space(spec)
    assert space.count == len(points)
    expected = [(n, repr(point)) for n, point in enumerate(points)]
    if any(isinstance(value, ExprError) for point in points for value in point.values()):
        with pytest.raises(SpaceError, match=r"the derived value .* at "):
            space.take_all()
        return
    every = space.take_all()
    assert describe(every) == expected
    assert describe(space) == expected
    count = min(7, len(points))
    chosen = data.draw(st.lists(st.integers(0, len(points) - 1), min_size=1, max_size=count))
    assert describe(space.take_points(chosen)) == [expected[index] for index in chosen]
    assert describe([every[chosen[0]]]) == [expected[chosen[0]]]
    names, columns = [*every.columns], [column[:] for column in every.columns.values()]
    known = KnownSpace(space.count, 1, "asked", chosen[0], None, names, columns)
    kept, default = msgpack.decode(msgpack.encode(known), type=KnownSpace).restore_schedules()
    assert describe(kept) == expected
    assert default is not None
    assert describe([default]) == [expected[chosen[0]]]


def test_a_published_space_is_decoded_alike_both_ways(published: Published) -> None:
    """All points at once, sorted; and some, each searched for."""
    space, draw = Space(published.spec), random.Random(3)
    every = space.take_all()
    some = sorted(draw.sample(range(space.count), 500))
    assert describe(space.take_points(some)) == describe(every[index] for index in some)


def test_a_schedule_is_made_only_of_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    indices = []

    def make(index: int, values: Mapping[str, Value]) -> Schedule:
        indices.append(index)
        return Schedule(index, values)

    parameters = tuple(Parameter((name,), tuple((v,) for v in range(100))) for name in "ab")
    every = Space(SpaceSpec(parameters, derived=(("c", parse_expression("a * b")),))).take_all()
    monkeypatch.setattr("tilusbuild.space.model.Schedule", make)
    assert isinstance(every, Schedules)
    assert every[4321].values == {"a": 43, "b": 21, "c": 903}
    assert indices == [4321]
