"""What a change is about, when it is due, and which directories are watched for it."""

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


@pytest.mark.parametrize(
    ("paths", "cache", "roots"),
    [
        # At the top of the project with everything below; a missing path by its parent.
        ({"/p/kernels/deep/a.j2", "/p/tilus.toml"}, "/c", {"/p": False, "/p/kernels": True}),
        ({"/p/kernels/gone/more/a.h"}, "/c", {"/p": False, "/p/kernels": True}),
        ({"/p/gone/a.h"}, "/c", {"/p": False}),
        # Not the cache, and not everything below a directory that contains it.
        ({"/p/src/a.j2", "/p/src/.cache/x"}, "/p/src/.cache", {"/p": False, "/p/src": False}),
        # Outside of the project only the directory itself.
        ({"/usr/bin/g++", "/x/a.h"}, "/c", {"/p": False, "/usr/bin": False, "/x": False}),
    ],
)
def test_the_directories_that_are_watched(paths, cache, roots) -> None:
    exists = DIRECTORIES.__contains__
    assert choose_watch_roots(paths, "/p", cache, exists, lambda path: path) == roots


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
    assert detector.take_due_check() is None
    now += QUIET
    assert detector.take_due_check() == 100.0, "and says when it began"
    assert not detector.is_hinted
    began = now
    while now < began + MAX_DELAY:
        detector.add_hint("c")
        assert detector.take_due_check() is None
        assert detector.next_check > now, "and nobody asks again and again until then"
        now += QUIET / 2
    assert detector.take_due_check() == began


ASKED = frozenset({"a.h", "cuda.h"})


def test_in_a_directory_only_names_that_are_asked_for_count() -> None:
    assert not Change("/p", frozenset({"notes.txt"})).concerns_any(ASKED)
    assert Change("/p", frozenset({"notes.txt", "cuda.h"})).concerns_any(ASKED)
    assert Change("/p").concerns_any(ASKED), "a directory that is gone is about all"
    assert Change("/p", frozenset({"any.h"})).concerns_any(None), "anything may be included"


def test_editors_temporary_files() -> None:
    temporary = [".scale.cu.j2.swp", ".a.swx", "scale.j2~", ".#scale.j2", "#scale.j2#"]
    names = [*temporary, "scale.cu.j2", ".hidden.h", "49.h", "a#b.h", "swp", "4913", "sedgewick"]
    assert [name for name in names if is_editor_temp_file(name)] == temporary
