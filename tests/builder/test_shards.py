"""Shards: every program in exactly one, about equally long, the same wherever they are reckoned."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.shards import Shard, parse_shard, split
from tilusbuild.errors import InputError

HASHES = st.text("0123456789abcdef", min_size=4, max_size=4)
SECONDS = st.dictionaries(HASHES, st.floats(0.01, 1000), max_size=60)


@given(SECONDS, st.integers(1, 80))
def test_every_program_is_in_exactly_one_shard(seconds: dict[str, float], count: int) -> None:
    made = split(seconds, count)
    assert len(made.shards) == len(made.seconds) == count
    assert sorted(p for shard in made.shards for p in shard) == sorted(seconds)


@given(SECONDS, st.integers(1, 20), st.randoms())
def test_the_order_of_the_plan_does_not_matter(
    seconds: dict[str, float], count: int, random: Random
) -> None:
    shuffled = list(seconds.items())
    random.shuffle(shuffled)
    assert split(dict(shuffled), count) == split(seconds, count)
    assert split(dict(shuffled), count).digest == split(seconds, count).digest


@given(SECONDS, st.integers(1, 20))
def test_no_program_would_be_better_off_elsewhere(seconds: dict[str, float], count: int) -> None:
    """Without its shortest program, no shard is longer than any other."""
    made = split(seconds, count)
    for shard, total in zip(made.shards, made.seconds, strict=True):
        least = min((seconds[program] for program in shard), default=0.0)
        assert total - least <= min(made.seconds) * (1 + 1e-9)


def test_equal_programs_are_dealt_out_evenly() -> None:
    made = split({f"{i:04x}": 1.0 for i in range(10)}, 4)
    assert sorted(map(len, made.shards)) == [2, 2, 3, 3]


def test_a_long_program_has_a_shard_for_itself() -> None:
    made = split({"a": 9.0, "b": 3.0, "c": 3.0, "d": 3.0}, 2)
    assert made.of(Shard(1, 2)) == {"a"}
    assert made.seconds == (9.0, 9.0)


def test_more_shards_than_programs_leaves_some_empty() -> None:
    made = split({"a": 1.0}, 3)
    assert [len(shard) for shard in made.shards] == [1, 0, 0]


def test_another_split_has_another_digest() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert split(seconds, 2).digest != split({**seconds, "a": 9.0}, 2).digest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2", "not a shard"),
        ("a/4", "not a shard"),
        ("1/4/2", "not a shard"),
        ("-1/4", "not a shard"),
        ("", "not a shard"),
        ("٢/4", "not a shard"),
        ("0/4", "there is no shard 0 of 4"),
        ("5/4", "there is no shard 5 of 4"),
        ("1/0", "0 shards"),
        ("1/99999999", "99999999 shards"),
    ],
)
def test_an_invalid_shard_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_shard(text)
    rendered = caught.value.render()
    assert f'--shard "{text}": ' in rendered
    assert says in rendered
    assert len(rendered.splitlines()) == 2


def test_a_shard_is_read() -> None:
    assert parse_shard("2/4") == Shard(2, 4)
    assert str(Shard(2, 4)) == "2/4"
