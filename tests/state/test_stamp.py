"""The one stamp and its rule, and every copy of them held against one table of cases."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.noop import record, write
from tilusbuild.runtime import library
from tilusbuild.state.clock import Moment
from tilusbuild.state.files import sha256_file
from tilusbuild.state.stamp import (
    ABSENT,
    COARSE_TICK,
    TICK,
    Stamp,
    is_settled,
    observe,
    sighting,
    stamp_of,
)

SECOND = 1_000_000_000


def nothing(path: Path) -> None:
    pass


def read(path: Path) -> None:
    path.read_bytes()


def longer(path: Path) -> None:
    path.write_bytes(b"longer than before")


def same_size(path: Path) -> None:
    path.write_bytes(b"two")


def same_size_and_mtime(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def touched(path: Path) -> None:
    os.utime(path)


def in_its_place(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def other_mode(path: Path) -> None:
    path.chmod(0o600)


def removed(path: Path) -> None:
    path.unlink()


CHANGES: dict[Callable[[Path], None], bool] = {
    nothing: False,
    read: False,
    longer: True,
    same_size: True,
    same_size_and_mtime: True,
    touched: True,
    in_its_place: True,
    other_mode: True,
    removed: True,
}
"""What happens to a file, and whether its stamp is another one then."""


def of_stamp(path: Path) -> Callable[[], bool]:
    before = stamp_of(path)
    return lambda: stamp_of(path) != before


def of_receipts(path: Path) -> Callable[[], bool]:
    before = library._stamp(os.stat(path))
    return lambda: not path.exists() or library._stamp(os.stat(path)) != before


def of_record(path: Path) -> Callable[[], bool]:
    data = write.make(
        b"name",
        b"summary",
        {str(path): sighting(path)},
        {},
        Moment(time.time_ns() + 10 * SECOND),
    )
    assert data is not None
    return lambda: record.holds(data, b"name") is None


WAYS = [of_stamp, of_receipts, of_record]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_way_sees_the_same_changes(tmp_path, way, change) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    is_changed = way(file)
    assert not is_changed()
    time.sleep(0.02)  # a file system's clock moves in ticks
    change(file)
    assert is_changed() == CHANGES[change]


YOUNG = [
    # last changed, asked for at, with the coarse tick: settled; with the stamp's own: settled
    (5 * SECOND + 1, 5 * SECOND + 1, False, False),
    (5 * SECOND + 1, 4 * SECOND, False, False),
    (5 * SECOND + 1, 5 * SECOND + TICK + 1, False, False),
    (5 * SECOND + 1, 5 * SECOND + TICK + 2, False, True),
    (5 * SECOND + 1, 5 * SECOND + COARSE_TICK + 1, False, True),
    (5 * SECOND + 1, 5 * SECOND + COARSE_TICK + 2, True, True),
    (5 * SECOND, 5 * SECOND + COARSE_TICK, False, False),
    (5 * SECOND, 5 * SECOND + COARSE_TICK + 1, True, True),
]


@pytest.mark.parametrize(("changed", "at", "coarse", "own"), YOUNG)
def test_what_is_too_young_is_not_trusted(changed: int, at: int, coarse: bool, own: bool) -> None:
    assert is_settled(changed, at) == coarse
    assert library._is_settled(changed, at) == coarse
    for mtime, ctime in ((changed, changed), (changed, 0), (0, changed)):
        assert Stamp(1, mtime, ctime, 1).is_settled(at) == own


def test_a_record_is_made_by_the_same_rule(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    newest = stamp_of(file).newest
    for at in (newest, newest + TICK, newest + TICK + 1):
        made = write.make(b"name", b"summary", {str(file): sighting(file)}, {}, Moment(at))
        assert (made is not None) == stamp_of(file).is_settled(at)


def test_what_is_not_there_has_a_stamp_and_a_directory_no_size(tmp_path: Path) -> None:
    assert stamp_of(tmp_path / "none") == ABSENT
    assert stamp_of("name with a \0 byte") == ABSENT
    assert ABSENT.is_settled(time.time_ns())
    assert stamp_of(tmp_path).size == 0


def test_an_observation_is_kept_only_when_it_is_settled(tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    seen = observe(str(file), sha256_file, now=lambda: Moment(stamp_of(file).newest))
    assert not seen.settled
    frozen = os.stat(file)
    file.write_bytes(b"two")
    monkeypatch.setattr(os, "stat", lambda _: frozen)
    again = observe(str(file), sha256_file, before=seen, now=lambda: Moment(2**62))
    assert again.settled
    assert again.content != seen.content
    assert observe(str(file), sha256_file, before=again, now=lambda: Moment(0)) is again
