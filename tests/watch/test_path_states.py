"""What a look finds, on real files, with time stamps and the clock set by the test."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tilusbuild.state.clock import Moment
from tilusbuild.state.files import sha256_file
from tilusbuild.watch.change_detector import PathStates

LATER = 10**9


class Clock:
    """Nanoseconds; far behind every change unless a test says otherwise."""

    def __init__(self) -> None:
        self.behind = 3600 * LATER

    def __call__(self) -> Moment:
        return Moment(time.time_ns() + self.behind)


@pytest.fixture
def reads() -> Counter[str]:
    return Counter()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looker(reads: Counter[str], clock: Clock) -> PathStates:
    def digest(path: str) -> str:
        reads[os.path.basename(path)] += 1
        return sha256_file(path)

    return PathStates(digest, clock)


def test_a_changed_file_is_found_once(looker: PathStates, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    assert looker.check([str(file)]) == {}
    file.write_text("22")
    assert list(looker.check([str(file)])) == [str(file)]
    assert looker.check([str(file)]) == {}


def test_a_touch_is_no_change_and_unchanged_files_are_not_read(looker, reads, tmp_path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    looker.check([str(file)])
    looker.check([str(file)])
    assert reads["a"] == 1
    os.utime(file, ns=(5, 5))
    assert looker.check([str(file)]) == {}
    assert reads["a"] == 2


def test_a_file_that_changes_twice_within_a_tick_is_read_again(
    looker: PathStates, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.behind = 0
    file = tmp_path / "a"
    file.write_text("1")
    first = file.stat()
    looker.check([str(file)])
    file.write_text("2")
    # What a second write in the same tick leaves: other bytes under the same stamps.
    monkeypatch.setattr("tilusbuild.state.stamp.os.stat", lambda _: first)
    assert list(looker.check([str(file)])) == [str(file)]


def test_what_comes_and_goes(looker: PathStates, tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert looker.check([str(file)]) == {}
    file.write_text("")
    assert list(looker.check([str(file)])) == [str(file)]
    file.unlink()
    assert list(looker.check([str(file)])) == [str(file)]
    file.mkdir()
    assert looker.check([str(file)])[str(file)].names is None


def test_of_a_directory_the_names_count(looker: PathStates, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    looker.check([str(tmp_path)])
    (tmp_path / "a").write_text("other")
    assert looker.check([str(tmp_path)]) == {}
    (tmp_path / "b").write_text("")
    (tmp_path / ".b.swp").write_text("")
    (tmp_path / "a").unlink()
    assert looker.check([str(tmp_path)])[str(tmp_path)].names == frozenset({"a", "b"})


def test_a_path_first_seen_counts_when_it_may_have_changed_since(looker, tmp_path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    changed = file.stat().st_ctime_ns
    read = {str(file)}
    assert list(looker.check([str(file)], since=Moment(changed), read=read)) == [str(file)]
    assert looker.check([str(file)], since=Moment(changed), read=read) == {}, "it is known by now"
    looker.check([])
    assert looker.check([str(file)], since=Moment(changed + 10 * LATER), read=read) == {}
    looker.check([])
    assert looker.check([str(file)], since=Moment(changed)) == {}, "nobody read it"
