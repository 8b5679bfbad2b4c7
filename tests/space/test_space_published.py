"""The published spaces: their counts, and the same points as by brute force."""

import random
from typing import Any

from support.published_spaces import place_of
from tilusbuild.space.model import build_model
from tilusbuild.space.report import report_space
from tilusbuild.space.space import Space


def test_the_published_counts(published: Any) -> None:
    space = Space(published.spec)
    assert space.cartesian == published.cartesian
    assert space.count == published.count


def test_random_combinations_are_in_the_space_exactly_when_the_rules_hold(published: Any) -> None:
    space, spec, draw = Space(published.spec), published.spec, random.Random(7)
    member_count = 0
    for _ in range(600):
        values = {p.names[0]: draw.choice(p.values)[0] for p in spec.parameters}
        env = {**spec.constants, **values}
        for name, expr in sorted(spec.derived, key=lambda item: len(item[1].names & {"halo"})):
            env[name] = expr.evaluate(env)
        index = place_of(space, values)
        assert (index is not None) == all(expr.evaluate(env) for _, expr in spec.restrict)
        if index is not None:
            member_count += 1
            assert {name: space[index].values[name] for name in values} == values
    assert member_count > 3


def test_the_report_of_a_published_space_adds_up(published: Any) -> None:
    report = report_space(build_model(published.spec))
    removed = sum(rule.removed or 0 for rule in report.rules)
    assert report.cartesian - removed == report.count == published.count
    assert not any(rule.empties for rule in report.rules)
