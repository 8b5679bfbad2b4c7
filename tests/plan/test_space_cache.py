"""What is remembered of a space is what the space gives, and it is given for that space only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.expr import parse_expression
from tilusbuild.plan.spaces import ChosenSchedules, SpaceCache
from tilusbuild.space.model import Parameter, Schedule, SpaceSpec
from tilusbuild.space.space import Space, select_schedules

Ask = Callable[..., ChosenSchedules]


SPEC = SpaceSpec(
    parameters=(
        Parameter(("tile",), ((16,), (32,), (64,))),
        Parameter(("stages",), ((2,), (3,)), default=(3,)),
        Parameter(("fast", "scale"), ((True, 1), (False, 1.0), (True, 0.5))),
    ),
    constants={"limit": 100},
    derived=(("area", parse_expression("tile * stages")),),
    restrict=(("fits", parse_expression("area <= limit")),),
)
OTHERS = {
    "a value": SpaceSpec(SPEC.parameters[:2], SPEC.constants, SPEC.derived, SPEC.restrict),
    "a constant": SpaceSpec(SPEC.parameters, {"limit": 150}, SPEC.derived, SPEC.restrict),
    "a rule": SpaceSpec(SPEC.parameters, SPEC.constants, SPEC.derived),
    "a type": SpaceSpec(
        (*SPEC.parameters[:2], Parameter(("fast", "scale"), ((True, 1), (False, 1), (True, 0.5)))),
        SPEC.constants,
        SPEC.derived,
        SPEC.restrict,
    ),
}


@pytest.fixture
def asked() -> list[int]:
    """The levels that were worked out."""
    return []


@pytest.fixture
def ask(tmp_path: Path, asked: list[int]) -> Ask:
    """Ask in a new process's place: whatever is known was read from the directory."""

    def ask(level: int = 2, spec: SpaceSpec = SPEC, code: str = "code") -> ChosenSchedules:
        spaces = SpaceCache(str(tmp_path / "plans"), "owner", code)
        space = Space(spec, spaces.find_size("script", spec))

        def choose() -> ChosenSchedules:
            asked.append(level)
            default = {"tile": 32}
            return select_schedules(space, level, sample=4, default=default), space.complete_point(
                default
            )

        schedules = spaces.find_schedules("script", space, str(level), choose)
        spaces.save_changes()
        assert (space.count, space.cartesian) == (Space(spec).count, Space(spec).cartesian)
        return schedules

    return ask


def plain(chosen: ChosenSchedules) -> Any:
    """With the types of the values and their order."""

    def describe(schedule: Schedule) -> tuple[int, str]:
        return schedule.index, repr(dict(schedule.values))

    schedules, default = chosen
    return [describe(point) for point in schedules], default and describe(default)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_known_is_what_the_space_gave(ask: Ask, asked: list[int], level: int) -> None:
    assert plain(ask(level)) == plain(ask(level))
    assert asked == [level]


@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_another_space_is_enumerated(ask: Ask, asked: list[int], other: SpaceSpec) -> None:
    ask()
    first = plain(ask(spec=other))
    assert len(asked) == 2
    assert plain(ask(spec=other)) == first
    ask()
    assert len(asked) == 2


def test_another_query_or_changed_code_is_computed_again(ask: Ask, asked: list[int]) -> None:
    ask(2)
    ask(1)
    ask(1, code="newer")
    assert asked == [2, 1, 1]


def test_unused_spaces_are_dropped_in_time(ask: Ask, tmp_path: Path) -> None:
    for limit in range(100, 140):
        ask(spec=SpaceSpec(SPEC.parameters, {"limit": limit}, SPEC.derived, SPEC.restrict))
    (path,) = (tmp_path / "plans").iterdir()
    assert path.read_bytes().count(b"tile") < 20
