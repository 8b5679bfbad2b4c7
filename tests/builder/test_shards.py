"""Shards: every program in exactly one, about equally long, the same wherever they are reckoned."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.shards import Shard, digest_of, parse_shard, split
from tilusbuild.errors import InputError

HASHES = st.text("0123456789abcdef", min_size=4, max_size=4)
SECONDS = st.dictionaries(HASHES, st.floats(0.01, 1000), max_size=60)


def sums(seconds: dict[str, float], count: int) -> list[float]:
    return [sum(seconds[program] for program in part) for part in split(seconds, count)]


@given(SECONDS, st.integers(1, 80), st.randoms())
def test_every_program_is_in_one_shard_wherever_it_stands_in_the_plan(
    seconds: dict[str, float], count: int, random: Random
) -> None:
    made = split(seconds, count)
    assert len(made) == count
    assert sorted(program for part in made for program in part) == sorted(seconds)
    shuffled = list(seconds.items())
    random.shuffle(shuffled)
    assert split(dict(shuffled), count) == made


@given(SECONDS, st.integers(1, 20))
def test_no_program_would_be_better_off_elsewhere(seconds: dict[str, float], count: int) -> None:
    """Without its shortest program, no shard is longer than any other."""
    totals = sums(seconds, count)
    for part, total in zip(split(seconds, count), totals, strict=True):
        least = min((seconds[program] for program in part), default=0.0)
        assert total - least <= min(totals) * (1 + 1e-9)


def test_a_long_program_has_a_shard_for_itself_and_another_split_another_digest() -> None:
    made = split({"a": 9.0, "b": 3.0, "c": 3.0, "d": 3.0}, 2)
    assert made == (frozenset("a"), frozenset("bcd"))
    assert digest_of(made) == digest_of((frozenset("a"), frozenset("bcd")))
    assert digest_of(made) != digest_of((frozenset("bcd"), frozenset("a")))


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
