"""The one stamp and its rule, and every copy of them held against one table of cases."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild import noop
from tilusbuild.builder import noop_record as write
from tilusbuild.state.clock import REMOTE_LAG, FileClock, FileTime
from tilusbuild.state.directories import parse_mounts
from tilusbuild.state.files import sha256_file
from tilusbuild.state.stamp import (
    ABSENT,
    COARSE_TICK,
    TICK,
    DeviceStamp,
    Stamp,
    is_settled,
    read_device_stamp,
    read_path_content,
    read_stamp,
)

SECOND = 1_000_000_000


def same_size_and_mtime(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def in_its_place(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda path: None, False),
    "read": (Path.read_bytes, False),
    "longer": (lambda path: path.write_bytes(b"longer than before"), True),
    "of the same size": (lambda path: path.write_bytes(b"two"), True),
    "of the same size and mtime": (same_size_and_mtime, True),
    "touched": (os.utime, True),
    "another in its place": (in_its_place, True),
    "another mode": (lambda path: path.chmod(0o600), True),
    "removed": (Path.unlink, True),
}
"""What happens to a file, and whether its stamp is another one then."""


def of_stamp(path: Path) -> Callable[[], bool]:
    before = read_stamp(path)
    return lambda: read_stamp(path) != before


def of_record(path: Path) -> Callable[[], bool]:
    data = write.make_record(
        b"name",
        b"summary",
        {str(path): read_device_stamp(path)},
        {},
        FileTime(time.time_ns() + 10 * SECOND),
    )
    assert data is not None
    return lambda: noop.check_record(data, b"name", {}) is None


WAYS = [of_stamp, of_record]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("change", "shows"), CHANGES.values(), ids=CHANGES)
def test_every_way_sees_the_same_changes(tmp_path, way, change, shows) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    is_changed = way(file)
    assert not is_changed()
    time.sleep(0.02)  # a file system's clock moves in ticks
    change(file)
    assert is_changed() == shows


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


@pytest.mark.parametrize(("changed", "age", "coarse", "own"), YOUNG)
def test_what_is_too_young_is_not_trusted(changed: int, age: int, coarse: bool, own: bool) -> None:
    assert is_settled(changed, age) == coarse
    for mtime, ctime in ((changed, changed), (changed, 0), (0, changed)):
        assert Stamp(1, mtime, ctime, 1).is_settled(age) == own


def test_a_record_is_made_by_the_same_rule(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    newest = read_stamp(file).newest
    for time_ns in (newest, newest + TICK, newest + TICK + 1):
        record = write.make_record(
            b"name", b"summary", {str(file): read_device_stamp(file)}, {}, FileTime(time_ns)
        )
        assert (record is not None) == read_stamp(file).is_settled(time_ns)


def test_what_is_not_there_has_a_stamp_and_a_directory_no_size(tmp_path: Path) -> None:
    assert read_stamp(tmp_path / "none") == ABSENT
    assert read_stamp("name with a \0 byte") == ABSENT
    assert ABSENT.is_settled(time.time_ns())
    assert read_stamp(tmp_path).size == 0


def test_an_observation_is_kept_only_when_it_is_settled(tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    seen = read_path_content(str(file), sha256_file, now=lambda: FileTime(read_stamp(file).newest))
    assert not seen.settled
    frozen = os.stat(file)
    file.write_bytes(b"two")
    monkeypatch.setattr("tilusbuild.state.stamp.try_stat", lambda _: frozen)
    again = read_path_content(str(file), sha256_file, before=seen, now=lambda: FileTime(2**62))
    assert again.settled
    assert again.content != seen.content
    assert read_path_content(str(file), sha256_file, before=again, now=lambda: FileTime(0)) is again


# Moments by the clock that stamps files: never later than they are, whatever our own says.
HOUR = 3_600_000_000_000
MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /tmp rw - tmpfs tmpfs rw
40 22 0:44 / /home/a\\040b rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
41 22 0:45 / /mnt rw - fuse.sshfs me@there: rw
42 22 8:17 / /cluster rw - gfs2 /dev/sdb1 rw
a line that is none
"""


def test_what_other_machines_stamp() -> None:
    mounts = [mount for mount in parse_mounts(MOUNTS) if mount.kind not in ("ext4", "tmpfs")]
    assert [mount.point for mount in mounts] == ["/home/a b", "/mnt", "/cluster"]
    assert {mount.device for mount in mounts} == {
        os.makedev(0, 44),
        os.makedev(0, 45),
        os.makedev(8, 17),
    }


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_a_moment_is_by_the_clock_of_the_files(tmp_path, monkeypatch, ahead) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    before = tmp_path / "before"
    before.touch()
    moment = FileClock(str(tmp_path / "not/there/yet")).read_time()
    (tmp_path / "after").touch()
    device = before.stat().st_dev
    assert (
        before.stat().st_mtime_ns
        <= moment.get_time_on(device)
        <= (tmp_path / "after").stat().st_mtime_ns
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before"]


def test_a_file_system_without_unnamed_files_is_asked_by_a_named_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR)  # EISDIR, as on NFS
    assert FileClock(str(tmp_path / "state")).read_time().device == -1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "state").mkdir()
    for _ in range(2):
        moment = FileClock(str(tmp_path / "state")).read_time()
        seen = (tmp_path / "state/clock").stat()
        assert moment.get_time_on(seen.st_dev) == seen.st_mtime_ns


def test_of_a_remote_clock_nobody_asked_little_is_believed() -> None:
    moment = FileTime(10 * HOUR, device=1, device_time=9 * HOUR, remote=frozenset({1, 2}))
    assert (moment.get_time_on(1), moment.get_time_on(2), moment.get_time_on(3)) == (
        9 * HOUR,
        10 * HOUR - REMOTE_LAG,
        10 * HOUR,
    )
    assert moment.subtract(HOUR).get_time_on(1) == 8 * HOUR


@given(st.integers(0, 2**32), st.integers(-HOUR, HOUR), st.sampled_from([1, 10**6, 10**7]))
def test_an_equal_stamp_is_equal_content(seed: int, lag: int, tick: int) -> None:
    """A file on a file system whose clock is `lag` ahead of ours and moves in ticks is edited at
    random while it is read: what was settled when it was read, and has that stamp, is that text."""
    choose = random.Random(seed)
    now, text, stamped = HOUR, 0, HOUR

    def round_to_device(time_ns: int) -> int:
        return (time_ns + lag) // tick * tick

    kept: list[tuple[Stamp, int]] = []
    for _ in range(30):
        now += choose.choice((0, 1, tick // 2, tick, 10 * tick, 10**8))
        if choose.random() < 0.5:
            text, stamped = text + 1, now
            continue
        started = FileTime(now, device=7, device_time=round_to_device(now))
        seen = DeviceStamp(Stamp(3, round_to_device(stamped), round_to_device(stamped), 1), 7)
        if choose.random() < 0.5:  # an edit between the look and the reading
            text, stamped = text + 1, now
        if seen.is_settled(started):
            kept.append((seen.stamp, text))
        current_stamp = Stamp(3, round_to_device(stamped), round_to_device(stamped), 1)
        assert all(was == text for stamp, was in kept if stamp == current_stamp)
