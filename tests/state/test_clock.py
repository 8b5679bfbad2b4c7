"""Moments by the clock that stamps files: never later than they are, whatever our own says."""

import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.state.clock import REMOTE_LAG, FileClock, Moment, remote_in
from tilusbuild.state.stamp import Sighting, Stamp

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
    found = remote_in(MOUNTS, {"ext4", "tmpfs"})
    assert found == {os.makedev(0, 44), os.makedev(0, 45), os.makedev(8, 17)}


@pytest.mark.parametrize("ahead", [-HOUR, 0, HOUR])
def test_a_moment_is_by_the_clock_of_the_files(tmp_path, monkeypatch, ahead) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead)
    before = tmp_path / "before"
    before.touch()
    moment = FileClock(str(tmp_path / "not/there/yet")).moment()
    (tmp_path / "after").touch()
    device = before.stat().st_dev
    assert before.stat().st_mtime_ns <= moment.on(device) <= (tmp_path / "after").stat().st_mtime_ns
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before"]


def test_a_file_system_without_unnamed_files_is_asked_by_a_named_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_RDWR)  # EISDIR, as on NFS
    assert FileClock(str(tmp_path / "state")).moment().device == -1
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "state").mkdir()
    for _ in range(2):
        moment = FileClock(str(tmp_path / "state")).moment()
        seen = (tmp_path / "state/clock").stat()
        assert moment.on(seen.st_dev) == seen.st_mtime_ns


def test_of_a_remote_clock_nobody_asked_little_is_believed() -> None:
    moment = Moment(10 * HOUR, device=1, there=9 * HOUR, remote=frozenset({1, 2}))
    assert (moment.on(1), moment.on(2), moment.on(3)) == (
        9 * HOUR,
        10 * HOUR - REMOTE_LAG,
        10 * HOUR,
    )
    assert moment.earlier(HOUR).on(1) == 8 * HOUR


@given(st.integers(0, 2**32), st.integers(-HOUR, HOUR), st.sampled_from([1, 10**6, 10**7]))
def test_an_equal_stamp_is_equal_content(seed: int, lag: int, tick: int) -> None:
    """A file on a file system whose clock is `lag` ahead of ours and moves in ticks is edited at
    random while it is read: what was settled when it was read, and has that stamp, is that text."""
    choose = random.Random(seed)
    now, text, stamped = HOUR, 0, HOUR

    def there(at: int) -> int:
        return (at + lag) // tick * tick

    kept: list[tuple[Stamp, int]] = []
    for _ in range(30):
        now += choose.choice((0, 1, tick // 2, tick, 10 * tick, 10**8))
        if choose.random() < 0.5:
            text, stamped = text + 1, now
            continue
        started = Moment(now, device=7, there=there(now))
        seen = Sighting(Stamp(3, there(stamped), there(stamped), 1), 7)
        if choose.random() < 0.5:  # an edit between the look and the reading
            text, stamped = text + 1, now
        if seen.is_settled(started):
            kept.append((seen.stamp, text))
        found = Stamp(3, there(stamped), there(stamped), 1)
        assert all(was == text for stamp, was in kept if stamp == found)
