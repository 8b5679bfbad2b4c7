"""What a change is about, when it is due, and which directories are watched for it."""

from collections.abc import Iterable
from unittest.mock import Mock

import pytest

from tilusbuild.watch.change_detector import MAX_DELAY, QUIET, Change, ChangeDetector
from tilusbuild.watch.observer import choose_watch_roots, is_editor_temp_file

DIRECTORIES = {
    "/",
    "/p",
    "/p/kernels",
    "/p/kernels/deep",
    "/p/src",
    "/p/src/.cache",
    "/usr/bin",
    "/x",
}


def found(paths: Iterable[str], cache: str = "/c") -> dict[str, bool]:
    return choose_watch_roots(paths, "/p", cache, DIRECTORIES.__contains__, lambda path: path)


def test_a_directory_at_the_top_of_the_project_is_watched_with_all_below() -> None:
    assert found({"/p/kernels/deep/a.j2", "/p/tilus.toml"}) == {"/p": False, "/p/kernels": True}


def test_a_missing_path_is_watched_through_its_nearest_existing_parent() -> None:
    assert found({"/p/kernels/gone/more/a.h"}) == {"/p": False, "/p/kernels": True}
    assert found({"/p/gone/a.h"}) == {"/p": False}


def test_the_cache_is_not_watched_nor_what_holds_it() -> None:
    watched = found({"/p/src/a.j2", "/p/src/.cache/x"}, cache="/p/src/.cache")
    assert watched == {"/p": False, "/p/src": False}


def test_outside_of_the_project_only_the_directory_itself() -> None:
    assert found({"/usr/bin/g++", "/x/a.h"}) == {"/p": False, "/usr/bin": False, "/x": False}


class Silent:
    """An observer that has no hints."""

    def __init__(self, *_: object) -> None: ...

    def watch_roots(self, roots: object) -> None: ...


def test_a_check_is_due_when_it_was_quiet_or_has_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    detector = ChangeDetector(str, print, str, now=Mock(), make_observer=Silent)  # type: ignore[arg-type]
    detector.find_changes(())
    detector.add_hint("a")
    now += QUIET / 2
    detector.add_hint("b")
    now += QUIET / 2
    assert detector.take_due_time() is None
    now += QUIET
    assert detector.take_due_time() == 100.0, "and says when it began"
    assert not detector.is_hinted
    began = now
    while now < began + MAX_DELAY:
        detector.add_hint("c")
        assert detector.take_due_time() is None
        now += QUIET / 2
    assert detector.take_due_time() == began


ASKED = frozenset({"a.h", "cuda.h"})


def test_in_a_directory_only_names_that_are_asked_for_count() -> None:
    assert not Change("/p", frozenset({"notes.txt"})).concerns_any(ASKED)
    assert Change("/p", frozenset({"notes.txt", "cuda.h"})).concerns_any(ASKED)
    assert Change("/p").concerns_any(ASKED), "a directory that is gone is about all"
    assert Change("/p/a.h").concerns_any(ASKED), "and so is a file"


def test_a_script_that_may_include_anything_depends_on_every_name() -> None:
    assert Change("/p", frozenset({"any.h"})).concerns_any(None)


@pytest.mark.parametrize(
    "name", [".scale.cu.j2.swp", ".a.swx", "scale.j2~", "4913", ".#scale.j2", "#scale.j2#"]
)
def test_editors_droppings(name: str) -> None:
    assert is_editor_temp_file(name)


@pytest.mark.parametrize("name", ["scale.cu.j2", ".hidden.h", "49.h", "a#b.h", "swp"])
def test_files_that_are_not_editor_temp_files(name: str) -> None:
    assert not is_editor_temp_file(name)
