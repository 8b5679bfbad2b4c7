"""What a space offers and what it says when something is wrong with it."""

import time
from typing import Any

import pytest

from support.published_spaces import make_spec, place_of
from tilusbuild.expr import parse_expression
from tilusbuild.space.model import Parameter, SpaceError, SpaceSpec, build_model
from tilusbuild.space.report import report_space
from tilusbuild.space.space import Space, select_schedules

pytestmark = pytest.mark.usefixtures("both_ways")

TILES = {"block_m": [16, 32, 64, 128], "block_n": [16, 32, 64, 128], "stages": [2, 3, 4]}


def parameter(
    name: str,
    values: list[Any],
    when: str | None = None,
    otherwise: Any = None,
    default: Any = None,
) -> Parameter:
    return Parameter(
        (name,),
        tuple((value,) for value in values),
        None if when is None else parse_expression(when),
        None if otherwise is None else (otherwise,),
        None if default is None else (default,),
    )


def test_a_gemm_like_space() -> None:
    spec = make_spec(
        {**TILES, "warp_m, warp_n": [[1, 1], [2, 2], [4, 2]], "swizzle": ["none", "128b"]},
        {"smem_fits": "smem <= arch.smem_per_block", "tile_m": "block_m % (16 * warp_m) == 0"},
        {"threads": "warp_m * warp_n * 32", "smem": "(block_m + block_n) * 32 * 2 * stages"},
        {"arch.smem_per_block": 32768},
    )
    space = Space(spec)
    assert space.cartesian == 4 * 4 * 3 * 3 * 2
    assert space[0].values == {
        "block_m": 16, "block_n": 16, "stages": 2, "warp_m": 1, "warp_n": 1, "swizzle": "none",
        "threads": 32, "smem": 4096,
    }  # fmt: skip
    assert all(int(s.values["smem"]) <= 32768 for s in space)
    assert space[-1] == space[space.count - 1]


def test_an_inactive_parameter_is_pinned_and_its_points_collapse() -> None:
    spec = SpaceSpec(
        (
            parameter("persistent", [False, True]),
            parameter("split_k", [1, 2, 4], when="not persistent", otherwise=1),
        )
    )
    points = [tuple(s.values.values()) for s in Space(spec)]
    assert points == [(False, 1), (False, 2), (False, 4), (True, 1)]
    report = report_space(build_model(spec))
    assert (report.cartesian, report.conditional, report.count) == (6, 2, 4)


def test_schedules_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        Space(make_spec({"a": [1]}))[0].values["a"] = 2  # type: ignore[index]


def test_indexing_beyond_the_space() -> None:
    with pytest.raises(IndexError):
        Space(make_spec({"a": [1, 2]}))[2]


def test_ranks_at_the_end_of_32_bits() -> None:
    rules = {"a": "a == 1289", "b": "b == a", "c": "c == b or c == b - 1"}
    space = Space(make_spec(dict.fromkeys("abc", range(1290)), rules))
    assert [tuple(point.values.values())[1:] for point in space] == [(1289, 1288), (1289, 1289)]
    assert space.complete_point({"c": 1289}) == space[1]


def test_a_space_beyond_64_bits_is_counted_indexed_and_sampled() -> None:
    spec = make_spec(
        {f"p{i}": range(100) for i in range(24)},
        {f"r{i}": f"p{i} != p{i + 1}" for i in range(0, 24, 2)},
    )
    space = Space(spec)
    assert space.count == (100 * 99) ** 12
    index = 123456789 * 10**38 + 42
    assert place_of(space, space[index].values) == index
    assert len({s.index for s in space.sample_points(50, seed=3)}) == 50


class TestSample:
    def test_depends_on_the_seed_alone(self) -> None:
        spec = make_spec(TILES)
        drawn = [list(Space(spec).sample_points(10, seed)) for seed in (5, 5, 6)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert [s.index for s in Space(spec).sample_points(4, 0)] == [9, 12, 34, 43]

    def test_is_without_replacement_and_in_order(self) -> None:
        space = Space(make_spec(TILES))
        indices = [s.index for s in space.sample_points(40, 1)]
        assert indices == sorted(set(indices))
        assert [s.index for s in space.sample_points(1000, 1)] == list(range(48))

    def test_has_what_it_must_include(self) -> None:
        indices = [s.index for s in Space(make_spec(TILES)).sample_points(3, 0, include=(47, 47))]
        assert len(indices) == 3
        assert 47 in indices

    def test_draws_every_point_about_as_often(self) -> None:
        space = Space(make_spec({"a": range(10)}))
        counts = [0] * 10
        for seed in range(2000):
            counts[space.sample_points(1, seed)[0].index] += 1
        assert all(150 < count < 250 for count in counts)


class TestDefault:
    def test_the_rest_is_the_first_valid_point(self) -> None:
        spec = SpaceSpec(
            (parameter("a", [1, 2, 3]), parameter("b", [1, 2, 3], default=2)),
            restrict=(("larger", parse_expression("a > b")),),
        )
        assert Space(spec).complete_point({}).values == {"a": 3, "b": 2}

    def test_a_requested_value_overrides_the_parameters_default(self) -> None:
        space = Space(SpaceSpec((parameter("a", [1, 2, 3], default=3),)))
        assert space.complete_point({"a": 2}).values == {"a": 2}

    def test_the_default_of_an_inactive_parameter_does_not_count(self) -> None:
        split = parameter("split_k", [1, 2, 4], when="not persistent", otherwise=1, default=4)
        space = Space(SpaceSpec((parameter("persistent", [False, True]), split)))
        assert space.complete_point({"persistent": True}).values["split_k"] == 1
        assert space.complete_point({}).values == {"persistent": False, "split_k": 4}

    def test_a_linked_parameter_can_be_given_in_part(self) -> None:
        space = Space(make_spec({"m, n": [[1, 1], [2, 2], [4, 2]]}))
        assert space.complete_point({"m": 4}).values == {"m": 4, "n": 2}
        with pytest.raises(SpaceError, match='the default 3 of "n" is outside'):
            space.complete_point({"n": 3})

    def test_outside_its_values(self) -> None:
        with pytest.raises(SpaceError, match='the default 100 of "block_m" is outside') as caught:
            Space(make_spec(TILES)).complete_point({"block_m": 100})
        assert caught.value.hint == "its values are 16, 32, 64, 128"
        with pytest.raises(SpaceError, match="outside its space"):
            Space(SpaceSpec((parameter("a", [1], default=2),)))

    def test_excluded_by_a_rule(self) -> None:
        space = Space(make_spec(TILES, {"wide": "block_n > block_m"}))
        with pytest.raises(SpaceError, match="no valid point has block_m = 128") as caught:
            space.complete_point({"block_m": 128})
        assert caught.value.hint == 'rules to check: "wide"'

    def test_of_a_name_that_is_no_parameter(self) -> None:
        with pytest.raises(SpaceError, match='"blockm", which is not a parameter') as caught:
            Space(make_spec(TILES)).complete_point({"blockm": 16})
        assert caught.value.hint == 'did you mean "block_m"?'


class TestLevels:
    def test_levels(self) -> None:
        space = Space(make_spec(TILES))
        default = {"block_m": 128}
        assert [s.values["block_m"] for s in select_schedules(space, 0, 8, default)] == [128]
        sample = select_schedules(space, 1, 8, default)
        assert len(sample) == 8
        assert select_schedules(space, 0, 8, default)[0] in sample
        assert len(select_schedules(space, 2, 8, default)) == 48

    def test_too_many_points(self) -> None:
        space = Space(make_spec({"a": range(2000), "b": range(2000)}))
        with pytest.raises(SpaceError, match="4,000,000 schedules to build") as caught:
            select_schedules(space, 2, 8, {})
        assert "sample" in str(caught.value.hint)
        assert len(select_schedules(space, 1, 8, {})) == 8


class TestReport:
    def test_what_each_rule_removes(self) -> None:
        spec = make_spec(TILES, {"wide": "block_n >= block_m", "small": "block_m <= 32"})
        report = report_space(build_model(spec))
        wide, small = report.rules
        assert (wide.removed, wide.alone) == (18, 18)
        assert (small.removed, small.alone) == (9, 24)
        assert report.count == 21

    def test_counts_do_not_need_the_product(self) -> None:
        spec = make_spec(
            {f"p{i}": range(1000) for i in range(12)}, {f"r{i}": f"p{i} < 10" for i in range(12)}
        )
        report = report_space(build_model(spec))
        assert report.count == 10**12
        assert report.rules[0].removed == 990 * 1000**11

    def test_a_count_that_would_take_too_long_is_left_out(self) -> None:
        spec = make_spec({"a": range(100), "b": range(100)}, {"r": "a < b"})
        assert report_space(build_model(spec), budget=50).rules[0].alone is None

    def test_the_number_of_points_has_no_budget(self) -> None:
        spec = make_spec({"a": range(100), "b": range(100)}, {"r": "a < b"})
        assert report_space(build_model(spec), budget=50).count == Space(spec).count == 4950

    def test_what_would_take_months_is_said_at_once(self) -> None:
        """10^16 combinations under one rule over all of them, which no part of them decides."""
        names = [f"p{i}" for i in range(16)]
        rule = {"mod": f"({' * 31 + '.join(names)}) % 101 == 0"}
        spec = make_spec({name: range(10) for name in names}, rule)
        for ask in (Space, lambda spec: report_space(build_model(spec))):
            start = time.monotonic()
            with pytest.raises(SpaceError, match="combinations of p0, p1"):
                ask(spec)
            assert time.monotonic() - start < 2
        assert len(Space(spec, budget=1000).sample_points(20)) == 20


class TestEmpty:
    def test_one_rule_alone(self) -> None:
        rules = {"fine": "block_m > 0", "never": "block_m > 1000", "also": "block_n < 0"}
        with pytest.raises(
            SpaceError, match='empty: the rule "never" excludes every point'
        ) as caught:
            Space(make_spec(TILES, rules))
        assert caught.value.rule == "never"

    def test_two_rules_together(self) -> None:
        rules = {"even": "a % 2 == 0", "any": "b > 0", "odd": "a % 2 == 1"}
        with pytest.raises(SpaceError, match='"even" and "odd" together exclude every point'):
            Space(make_spec({"a": range(9), "b": [1, 2]}, rules))

    def test_a_rule_over_constants(self) -> None:
        with pytest.raises(SpaceError, match='the rule "arch" excludes'):
            Space(make_spec(TILES, {"arch": "arch.number >= 90"}, constants={"arch.number": 80}))


class TestWrongSpaces:
    def test_a_rule_that_divides_by_zero_names_the_point(self) -> None:
        spec = make_spec({"m": [16, 32], "k": [4, 0]}, {"tile": "m % k == 0"})
        with pytest.raises(SpaceError) as caught:
            Space(spec)
        assert caught.value.message == (
            'the rule "tile": division by zero in (m % k), at m = 16, k = 0'
        )
        assert (caught.value.rule, caught.value.column) == ("tile", 5)

    def test_a_derived_value_that_divides_by_zero(self) -> None:
        spec = make_spec({"m": [16], "k": [4, 0]}, {"few": "tiles < 9"}, {"tiles": "m // k"})
        with pytest.raises(
            SpaceError, match=r'division by zero.*derived value "tiles", at m = 16, k = 0'
        ):
            Space(spec)
        unused = Space(make_spec({"m": [16], "k": [4, 0]}, None, {"tiles": "m // k"}))
        with pytest.raises(SpaceError, match='the derived value "tiles": division by zero'):
            list(unused)

    @pytest.mark.parametrize(
        ("space", "restrict", "derived", "constants", "words"),
        [
            ({"a": []}, {}, {}, {}, 'the parameter "a" has no values'),
            ({"a": [1], "a, b": [[1, 2]]}, {}, {}, {}, '"a" is declared twice'),
            ({"a": [1]}, {}, {}, {"a": 2}, '"a" is declared twice'),
            ({"a": [1]}, {}, {"a": "2"}, {}, '"a" is declared twice'),
            ({"a": [2**63]}, {}, {}, {}, "does not fit 64 bits"),
            ({"a": [float("nan")]}, {}, {}, {}, "not finite"),
            ({"block": [1]}, {"r": "blok > 0"}, {}, {}, '"blok"; did you mean "block"'),
            ({"a": [1]}, {"r": "a < 'x'"}, {}, {}, "compares 1 with 'x'"),
            ({"a": [1]}, {"r": "'x'"}, {}, {}, "needs numbers"),
            ({"a": [1]}, {}, {"p": "q + 1", "q": "r", "r": "p * a"}, {}, "circle: p → q → r → p"),
            ({"a": [1]}, {}, {"p": "p + 1"}, {}, "in a circle: p → p"),
            ({"a": [1]}, {}, {"p": "1 // k"}, {"k": 0}, 'the derived value "p": division by zero'),
            ({"a": [1]}, {"r": "1 // k > 0"}, {}, {"k": 0}, 'the rule "r": division by zero'),
        ],
    )  # fmt: skip
    def test_declarations(self, space, restrict, derived, constants, words) -> None:
        with pytest.raises(SpaceError) as caught:
            Space(make_spec(space, restrict, derived, constants))
        assert words in caught.value.message

    def test_a_condition_on_itself(self) -> None:
        spec = SpaceSpec(
            (parameter("a", [1, 2], when="double > 2", otherwise=1),),
            derived=(("double", parse_expression("a * 2")),),
        )
        with pytest.raises(SpaceError, match='the condition of "a" depends on "a" itself'):
            Space(spec)

    def test_a_condition_that_divides_by_zero(self) -> None:
        conditional = parameter("a", [1, 2], when="4 // b > 1", otherwise=1)
        with pytest.raises(SpaceError, match=r'the condition of "a": division by zero.*b = 0'):
            Space(SpaceSpec((conditional, parameter("b", [0, 1]))))

    def test_more_points_than_can_be_held(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("tilusbuild.space.join.MAX_POINTS", 1000)
        with pytest.raises(SpaceError, match="more than 1,000 points: the parameters a, b"):
            Space(make_spec({"a": range(100), "b": range(100)}, {"r": "a + b > 3"}))
