"""Packages that would take all memory, disk or time: refused within limits that the kernel holds.

Each is verified and installed by a process of its own that may have 700 MB of address space, may
write no file of more than 64 MB, and may use 60 seconds of a processor. A process that breaks one
of these dies, or raises something that is no `PackageError`, and the test fails.
"""

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import packages
from support.packages import MB, Hand, refusals


def zeros(size: int) -> bytes:
    """A zstd frame of `size` zeros in 4 bytes for each 128 KiB (RFC 8878: RLE blocks)."""
    count = -(-size // (128 << 10))
    block = (1 << 1) | ((128 << 10) << 3)
    last = block | 1
    return (
        struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3)
        + (block.to_bytes(3, "little") + b"\0") * (count - 1)
        + last.to_bytes(3, "little")
        + b"\0"
    )


def claiming(hand: Hand, size: int) -> Any:
    """The list says that a library has this size."""
    name = hand.path("module/lib.so")
    entry = msgspec.structs.replace(hand.listing.files[name], size=size)
    return msgspec.structs.replace(hand.listing, files={**hand.listing.files, name: entry})


def test_seven_gigabytes_that_the_list_admits(hand: Hand, tmp_path: Path) -> None:
    listed = claiming(hand, 7 << 30).encode()
    name = hand.path("module/lib.so")
    header = packages.member(name, size=7 << 30)
    first = packages.tar([("tilus-package.json", listed)])
    path = packages.frames(
        tmp_path / "p", first, packages.frame(header) + zeros(7 << 30), bytes(1024)
    )
    assert refusals(path) == ["OverLimit", "OverLimit"]


def test_seven_gigabytes_that_the_list_denies(hand: Hand, tmp_path: Path) -> None:
    parts = hand.layers()
    name = hand.path("module/lib.so")
    layers = [
        b"".join(packages.member(n, d, size=(7 << 30) if n == name else len(d)) for n, d in part)
        for part in parts
    ]
    path = packages.archive(tmp_path / "p", hand.listed(), layers)
    assert refusals(path) == ["ChangedFile", "ChangedFile"]


def test_ten_gigabytes_after_the_end(hand: Hand, tmp_path: Path) -> None:
    path = hand.archive(tmp_path / "p")
    data = path.read_bytes()
    end = packages.frame(bytes(1024))
    assert data.endswith(end)
    path.write_bytes(data.removesuffix(end) + zeros(10 << 30))
    assert refusals(path) == ["Truncated", "Truncated"]


def test_seven_gigabytes_of_list(tmp_path: Path) -> None:
    header = packages.frame(packages.member("tilus-package.json", size=7 << 30))
    path = tmp_path / "p"
    path.write_bytes(header + zeros(7 << 30))
    assert refusals(path) == ["OverLimit", "OverLimit"]


def test_an_extended_header_of_seven_gigabytes(hand: Hand, tmp_path: Path) -> None:
    header = packages.member("././@PaxHeader", type=b"x", size=7 << 30)
    path = packages.archive(tmp_path / "p", hand.listed(), [header] * len(hand.layers()))
    assert refusals(path) == ["OverLimit", "OverLimit"]


def test_a_million_empty_blocks(tmp_path: Path) -> None:
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3) + bytes(3) * 2_000_000
    path = tmp_path / "p"
    path.write_bytes(frame)
    assert refusals(path) == ["Truncated", "Truncated"]


@pytest.mark.parametrize(
    "data", [b'{"a":' * (8 * MB), b'["' + b"a" * (60 * MB) + b'"]'], ids=["deep", "a long string"]
)
def test_a_list_of_sixty_megabytes(hand: Hand, data: bytes, tmp_path: Path) -> None:
    hand.list_bytes = data
    assert refusals(hand.archive(tmp_path / "p")) == ["MalformedList", "MalformedList"]


def test_a_script_that_is_too_large(hand: Hand, tmp_path: Path) -> None:
    hand.files[hand.path("schedule.txt")] = bytes(33 * MB)
    assert refusals(hand.relist().archive(tmp_path / "p")) == ["OverLimit", "OverLimit"]


def test_a_sparse_terabyte_in_a_directory(hand: Hand, tmp_path: Path) -> None:
    path = hand.write("directory", tmp_path)
    with (path / hand.path("module/lib.so")).open("r+b") as file:
        file.truncate(1 << 40)
    assert refusals(path) == ["ChangedFile", "ChangedFile"]


def test_a_package_that_is_right_is_taken_within_the_same_limits(hand, carrier, tmp_path) -> None:
    assert refusals(hand.write(carrier, tmp_path)) == ["accepted", "accepted"]
