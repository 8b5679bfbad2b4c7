"""Damaged, truncated and invented input: a reader answers or raises `BinaryError`, nothing else."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilusbuild.binary import (
    BinaryError,
    extract_cubins,
    parse_ptxas,
    read_archs,
    read_cubin,
    read_needs,
)

SEEDS = {
    path.name: path.read_bytes() for path in sorted(Path(__file__).with_name("data").iterdir())
}
READERS = (read_archs, read_cubin, read_needs, extract_cubins)


def read_all(data: bytes) -> None:
    for read in READERS:
        with contextlib.suppress(BinaryError):
            read(data)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SEEDS)))
def test_flipped_bytes(data: st.DataObject, name: str) -> None:
    damaged = bytearray(SEEDS[name])
    places = st.integers(0, len(damaged) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=8)):
        damaged[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    read_all(bytes(damaged))


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_every_byte_of_the_tables_flipped(name: str) -> None:
    """The header and the last 512 bytes (the section table, or the entries), byte by byte."""
    whole = SEEDS[name]
    for at in {*range(128), *range(max(0, len(whole) - 512), len(whole))}:
        for value in (0, 0xFF, whole[at] ^ 0x80):
            read_all(whole[:at] + bytes([value]) + whole[at + 1 :])


@given(log=st.text(max_size=300))
def test_any_log_can_be_parsed(log: str) -> None:
    assert all(usage.registers >= 0 for usage in parse_ptxas(log))
