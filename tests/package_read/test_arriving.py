"""Files as they arrive: in any order, each once, each what the list says, and no more than that."""

import random
from contextlib import nullcontext
from typing import Any

import pytest

from support.memory_package import MemoryReader
from support.packages import Hand
from tilusbuild.package import check
from tilusbuild.package.check import verify_package
from tilusbuild.package.errors import PackageError
from tilusbuild.package.extract import Limits, check_limits, check_members
from tilusbuild.package.model import ContainerFile


def held(hand: Hand) -> list[list[tuple[str, int, bytes]]]:
    return [[(path, len(data), data) for path, data in part] for part in hand.layers()]


def read(member: ContainerFile) -> bytes:
    return b"".join(member.pieces)


@pytest.mark.parametrize("seed", range(2))
def test_the_order_does_not_matter(hand: Hand, seed: int) -> None:
    files = [file for layer in held(hand) for file in layer]
    random.Random(seed).shuffle(files)
    assert verify_package(MemoryReader(hand.listed(), [files]), Limits())[1] == []


@pytest.mark.parametrize("change", [lambda data: data + b"more", lambda data: data[:-1]])
def test_a_container_that_lies_about_a_size(hand: Hand, change: Any) -> None:
    """Given an entry that claims the listed size, when it holds another, then that is found."""
    parts = held(hand)
    path, size, data = parts[0][0]
    parts[0][0] = (path, size, change(data))
    with pytest.raises(PackageError, match="does not have"):
        list(map(read, check_members(MemoryReader(hand.listed(), parts), hand.listing)))


def test_a_refused_member_is_reported_and_the_rest_is_read(hand: Hand) -> None:
    parts = held(hand)
    gone = parts[0].pop()
    twice = parts[1][0]
    parts[1] += [twice, ("programs/evil", 4, b"evil")]
    errors: list[PackageError] = []
    reader = MemoryReader(hand.listed(), parts)
    arrivals = check_members(reader, hand.listing, refuse=errors.append)
    assert {a.path for a in arrivals} == hand.files.keys() - {gone[0]}
    assert [error.kind for error in errors] == ["UnlistedFile", "UnsafeName", "MissingFile"]


def test_limits_are_the_lists_size_and_the_ratio(hand: Hand) -> None:
    size = hand.listing.size
    for packed, limits, fits in (
        (None, Limits(total=size), True),
        (None, Limits(total=size - 1), False),
        (size // 10, Limits(ratio=11, free=0), True),
        (size // 10, Limits(ratio=9, free=0), False),
        (size // 10, Limits(ratio=9, free=size), True),
    ):
        reader = MemoryReader(hand.listed(), [], packed=packed)
        with nullcontext() if fits else pytest.raises(PackageError):
            check_limits(hand.listing, reader, limits)


def test_programs_that_come_in_pieces_wait_in_bounded_memory(hand, monkeypatch) -> None:
    """Given all libraries first and their texts after, when they are too much to wait for."""
    files = [file for layer in held(hand) for file in layer]
    files.sort(key=lambda file: not file[0].endswith("lib.so"))
    reader = MemoryReader(hand.listed(), [files])
    assert verify_package(reader, Limits())[1] == []
    monkeypatch.setattr(check, "_MAX_WAITING", 40_000)
    assert verify_package(reader, Limits())[1][0].kind == "OverLimit"
    assert verify_package(MemoryReader(hand.listed(), held(hand)), Limits())[1] == []
