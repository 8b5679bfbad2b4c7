"""Hints from the real operating system: they come for what matters, and not for what does not."""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilusbuild.watch.observer import Observer


class Hints:
    """An observer, and what it told."""

    def __init__(self, cache: Path) -> None:
        self.told: queue.Queue[str] = queue.Queue()
        self.observer = Observer(self.told.put, lambda: str(cache))

    def until(self, path: Path | str) -> set[str]:
        """Everything told up to this path."""
        told = set()
        while str(path) not in told:
            told.add(self.told.get(timeout=30))
        return told


@pytest.fixture
def hints(tmp_path: Path) -> Iterator[Hints]:
    made = Hints(tmp_path / "kernels/cache")
    yield made
    made.observer.close()


def test_a_save_is_reported_and_temp_files_and_the_cache_are_not(hints, tmp_path) -> None:
    (tmp_path / "kernels/cache").mkdir(parents=True)
    hints.observer.follow({str(tmp_path): False, str(tmp_path / "kernels"): True})
    assert hints.observer.unavailable is None
    for name in ("cache/lib.so", ".a.j2.swp", "4913"):
        (tmp_path / "kernels" / name).write_text("x")
    (tmp_path / "kernels/a.j2").write_text("x")
    told = hints.until(tmp_path / "kernels/a.j2")
    assert told == {str(tmp_path / "kernels/a.j2")}


def test_a_rename_is_reported_under_both_names(hints: Hints, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    hints.observer.follow({str(tmp_path): False})
    os.rename(tmp_path / "a", tmp_path / "b")
    assert str(tmp_path / "a") in hints.until(tmp_path / "b")


def test_another_directory_under_the_same_name_is_followed(hints: Hints, tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    place.mkdir()
    hints.observer.follow({str(place): True})
    os.rename(place, tmp_path / "away")
    place.mkdir()
    hints.observer.follow({str(place): True})
    (place / "new").write_text("x")
    hints.until(place / "new")


def test_a_removed_directory_is_not_an_error(hints: Hints, tmp_path: Path) -> None:
    hints.observer.follow({str(tmp_path / "gone"): True})
    assert hints.observer.unavailable is None


def test_an_overflow_is_a_hint(hints: Hints) -> None:
    logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed")
    assert hints.told.get(timeout=30) == ""


def test_without_a_thread_there_are_no_events_and_that_is_said(
    hints: Hints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        hints.observer.follow({str(tmp_path): False})
    assert "no thread can be started" in (hints.observer.unavailable or "")
    hints.observer.close()
