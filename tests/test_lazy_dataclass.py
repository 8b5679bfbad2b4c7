"""The lazy `dataclass` is `dataclasses.dataclass`: compared for classes that are made at random."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass as standard
from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.lazy_dataclass import dataclass as lazy

NAMES = ["a", "b", "self_", "value", "name", "missing"]
PLAIN: list[dict[str, Any]] = [{}, {"default": 7}, {"default_factory": list}]
kinds = st.builds(
    lambda first, **more: {**first, **more},
    st.sampled_from(PLAIN),
    init=st.sampled_from([True, True, True, False]),
    repr=st.booleans(),
    compare=st.booleans(),
    hash=st.sampled_from([None, None, True, False]),
    kw_only=st.booleans(),
)
bodies = st.dictionaries(st.sampled_from(NAMES), kinds, max_size=5)
options = st.fixed_dictionaries(
    {"frozen": st.booleans(), "slots": st.booleans()},
    optional={name: st.booleans() for name in ("eq", "repr", "kw_only")},
)
Body = dict[str, dict[str, Any]]


def made(decorator: Callable[..., Any], parts: list[Body], chosen: dict[str, bool]) -> Any:
    """A class with these fields, each part by a class that inherits from the one before."""
    found: type = object
    for number, part in enumerate(parts):
        body: dict[str, Any] = {"__module__": __name__, "__qualname__": "Made"}
        body["__annotations__"] = dict.fromkeys(part, "int") | {"shared": "ClassVar[int]"}
        body["shared"] = number
        body |= {name: field(**kind) for name, kind in part.items()}
        found = decorator(**chosen)(type("Made", (found,), body))
    return found


def outcome(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except Exception as error:
        return type(error), str(error)


def described(each: dataclasses.Field[Any]) -> tuple[Any, ...]:
    return each.name, each.type, each.default, each.default_factory, each.init, each.kw_only


def behaviour(cls: Any, words: list[int], named: dict[str, int]) -> list[Any]:
    """Everything that one can see of a class, with these arguments for two values."""
    value = outcome(lambda: cls(*words, **named))
    if not isinstance(value, cls):
        return [value]
    other = cls(*words, **named)
    changed = dict.fromkeys(NAMES[:2], 9)
    return [
        {name: getattr(value, name, "unset") for name in NAMES},
        outcome(lambda: repr(value)) if "__repr__" in vars(cls) else None,
        outcome(lambda: value == other),
        outcome(lambda: hash(value) == hash(other)),
        outcome(lambda: hash(value)) if "__eq__" in vars(cls) and vars(cls)["__hash__"] else None,
        outcome(lambda: value == 3),
        outcome(lambda: dataclasses.asdict(dataclasses.replace(value, **changed))),
        outcome(lambda: dataclasses.asdict(copy.copy(value))),
        outcome(lambda: dataclasses.astuple(value)),
        [outcome(partial(setattr, value, each.name, 1)) for each in dataclasses.fields(cls)],
        [described(each) for each in dataclasses.fields(cls)],
        cls.__match_args__,
        vars(cls).get("__slots__"),
        {name: type(value) for name, value in vars(cls).items() if name in NAMES},
        cls.shared,
        vars(cls).get("__hash__", "inherited") is None,
        hasattr(value, "__dict__"),
    ]


@given(
    st.lists(bodies, min_size=1, max_size=2),
    options,
    st.lists(st.integers(0, 2), max_size=4),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2), max_size=4),
)
def test_is_the_standard_one(
    parts: list[Body], chosen: dict[str, bool], words: list[int], named: dict[str, int]
) -> None:
    expected = outcome(lambda: made(standard, parts, chosen))
    if not isinstance(expected, type):
        return  # fields in an order that cannot be: found at the first use, see below
    ours = made(lazy, parts, chosen)
    assert behaviour(ours, words, named) == behaviour(expected, words, named)


@lazy(frozen=True, slots=True)
class Point:
    """A point."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@standard(frozen=True)
class Wide(Point):
    z: int = 3


def test_can_be_pickled_and_matched_and_inherited_from() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 2)
    match Wide(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)
    assert repr(Wide(4)) == "Wide(x=4, y=2, z=3)"
    with pytest.raises(ValueError, match="negative"):
        Point(-1)
    with pytest.raises(TypeError, match=r"^Point\.__init__\(\) missing 1 required positional"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del Point(1).x


def test_what_a_class_defines_itself_stays() -> None:
    @lazy(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    assert (repr(Own(1)), Own(1) == Own(2)) == ("own", True)
    assert hash(Own(1)) == hash(Own(1))


def test_rare_ones_are_the_standard_ones() -> None:
    @lazy(order=True, slots=True)
    class Ordered:
        a: int

    @lazy(slots=True)
    class Initial:
        a: dataclasses.InitVar[int]
        b: int = 0

        def __post_init__(self, a: int) -> None:
            self.b = a

    assert Ordered(1) < Ordered(2)
    assert Initial(5).b == 5


def test_an_impossible_order_is_refused_at_the_first_use() -> None:
    @lazy(slots=True)
    class Wrong:
        a: int = 1
        b: int  # type: ignore[misc]

    with pytest.raises((SyntaxError, TypeError), match="default"):
        Wrong(1, 2)


COUNT = """\
import sys
texts = []
sys.addaudithook(lambda event, words: event == "compile" and texts.append(words[0]))
from tilusbuild.lazy_dataclass import lazy_dataclass
texts.clear()

@lazy_dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2

assert not texts, texts
assert Point(1) == Point(1, 2)
assert len({Point(1), Point(1, 2)}) == 1
assert repr(Point(1)) == "Point(x=1, y=2)"
print(len(texts))
"""


def test_one_text_is_compiled_and_at_the_first_use() -> None:
    import subprocess

    command = [sys.executable, "-c", COUNT]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"


def test_threads_may_use_a_class_first_at_once() -> None:
    for _ in range(50):
        found: list[bool] = []
        start = threading.Barrier(4)

        @lazy(frozen=True, slots=True)
        class Fresh:
            a: int
            b: tuple[int, ...] = field(default_factory=tuple)

        def use(cls: Any = Fresh, start: Any = start, found: Any = found) -> None:
            start.wait()
            found.append(cls(1) == cls(1, ()) and hash(cls(1)) == hash(cls(1)))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 4
