"""What a look finds, on real files, with time stamps and the clock set by the test."""

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilusbuild.state.clock import FileTime
from tilusbuild.state.files import sha256_file
from tilusbuild.watch.change_detector import PathStates
from tilusbuild.watch.observer import Observer

LATER = 10**9


@pytest.fixture
def reads() -> list[str]:
    """The files that the looker read."""
    return []


@pytest.fixture
def looker(reads: list[str]) -> PathStates:
    def digest(path: str) -> str:
        reads.append(path)
        return sha256_file(path)

    # An hour later than every change.
    return PathStates(digest, lambda: FileTime(time.time_ns() + 3600 * LATER))


def test_a_changed_file_is_found_once(looker: PathStates, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    assert looker.find_changes([str(file)]) == {}
    file.write_text("22")
    assert list(looker.find_changes([str(file)])) == [str(file)]
    assert looker.find_changes([str(file)]) == {}


def test_a_touch_is_no_change_and_unchanged_files_are_not_read(looker, reads, tmp_path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    looker.find_changes([str(file)])
    looker.find_changes([str(file)])
    assert len(reads) == 1
    os.utime(file, ns=(5, 5))
    assert looker.find_changes([str(file)]) == {}
    assert len(reads) == 2


def test_a_file_that_changes_twice_within_a_tick_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = PathStates(sha256_file, lambda: FileTime(time.time_ns()))
    file = tmp_path / "a"
    file.write_text("1")
    first = file.stat()
    looker.find_changes([str(file)])
    file.write_text("2")
    # What a second write in the same tick leaves: other bytes under the same stamps.
    monkeypatch.setattr("tilusbuild.state.stamp.try_stat", lambda path, **how: first)
    assert list(looker.find_changes([str(file)])) == [str(file)]


def test_what_comes_and_goes(looker: PathStates, tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert looker.find_changes([str(file)]) == {}
    file.write_text("")
    assert list(looker.find_changes([str(file)])) == [str(file)]
    file.unlink()
    assert list(looker.find_changes([str(file)])) == [str(file)]
    file.mkdir()
    assert looker.find_changes([str(file)])[str(file)].names is None


def test_of_a_directory_the_names_count(looker: PathStates, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    looker.find_changes([str(tmp_path)])
    (tmp_path / "a").write_text("other")
    assert looker.find_changes([str(tmp_path)]) == {}
    (tmp_path / "b").write_text("")
    (tmp_path / ".b.swp").write_text("")
    (tmp_path / "a").unlink()
    assert looker.find_changes([str(tmp_path)])[str(tmp_path)].names == frozenset({"a", "b"})


def test_a_path_first_seen_counts_when_it_may_have_changed_since(looker, tmp_path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    changed = file.stat().st_ctime_ns
    read = {str(file)}
    assert list(looker.find_changes([str(file)], since=FileTime(changed), read=read)) == [str(file)]
    assert looker.find_changes([str(file)], since=FileTime(changed), read=read) == {}, (
        "it is known by now"
    )
    looker.find_changes([])
    assert looker.find_changes([str(file)], since=FileTime(changed + 10 * LATER), read=read) == {}
    looker.find_changes([])
    assert looker.find_changes([str(file)], since=FileTime(changed)) == {}, "nobody read it"


# Hints from the real operating system: they come for what matters, and not for what does not.
class Hints:
    """An observer, and what it told."""

    def __init__(self, cache: Path) -> None:
        self.told: queue.Queue[str] = queue.Queue()
        self.observer = Observer(self.told.put, lambda: str(cache))

    def until(self, path: Path | str) -> set[str]:
        """Everything told up to this path."""
        paths = set()
        while str(path) not in paths:
            paths.add(self.told.get(timeout=30))
        return paths


@pytest.fixture
def hints(tmp_path: Path) -> Iterator[Hints]:
    path_hints = Hints(tmp_path / "kernels/cache")
    yield path_hints
    path_hints.observer.close()


def test_a_save_is_reported_and_temp_files_and_the_cache_are_not(hints, tmp_path) -> None:
    (tmp_path / "kernels/cache").mkdir(parents=True)
    hints.observer.watch_roots({str(tmp_path): False, str(tmp_path / "kernels"): True})
    for name in ("cache/lib.so", ".a.j2.swp"):
        (tmp_path / "kernels" / name).write_text("x")
    (tmp_path / "kernels/a.j2").write_text("x")
    paths = hints.until(tmp_path / "kernels/a.j2")
    assert paths == {str(tmp_path / "kernels/a.j2")}


def test_a_rename_is_reported_under_both_names(hints: Hints, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    hints.observer.watch_roots({str(tmp_path): False})
    os.rename(tmp_path / "a", tmp_path / "b")
    assert str(tmp_path / "a") in hints.until(tmp_path / "b")


def test_another_directory_under_the_same_name_is_followed(hints: Hints, tmp_path: Path) -> None:
    directory = tmp_path / "kernels"
    hints.observer.watch_roots({str(directory): True})  # one that is missing is not an error
    directory.mkdir()
    hints.observer.watch_roots({str(directory): True})
    os.rename(directory, tmp_path / "away")
    directory.mkdir()
    hints.observer.watch_roots({str(directory): True})
    (directory / "new").write_text("x")
    hints.until(directory / "new")


def test_without_a_thread_there_are_no_hints(
    hints: Hints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        hints.observer.watch_roots({str(tmp_path): False})
    (tmp_path / "made").touch()
    assert hints.told.empty()
    hints.observer.close()
