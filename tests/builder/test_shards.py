"""Shards: every program in exactly one, equally many in each, the same wherever it is reckoned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.shards import Shard, parse_shard, select_programs
from tilusbuild.errors import InputError

HASHES = st.sets(st.text("0123456789abcdef", min_size=4, max_size=4), max_size=60)


@given(HASHES, st.integers(1, 80))
def test_every_program_is_in_one_shard(programs: set[str], count: int) -> None:
    parts = [select_programs(programs, Shard(number, count)) for number in range(1, count + 1)]
    assert sorted(program for part in parts for program in part) == sorted(programs)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


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
    with pytest.raises(InputError, match=f'--shard "{text}": {says}\n'):
        parse_shard(text)


def test_a_shard_is_read() -> None:
    assert parse_shard("2/4") == Shard(2, 4)
    assert str(Shard(2, 4)) == "2/4"
