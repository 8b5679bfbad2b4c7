"""What a change is about, when it is due, and which directories are watched for it."""

from collections.abc import Iterable

import pytest

from tilusbuild.watch.change_detector import Debounce
from tilusbuild.watch.dependencies import Change, Dependencies, affected, is_editor_temp_file
from tilusbuild.watch.observer import watch_roots

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
    return watch_roots(paths, "/p", cache, DIRECTORIES.__contains__, lambda path: path)


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


# The debounce, with a clock of numbers.
def test_it_is_due_when_it_was_quiet() -> None:
    debounce = Debounce(quiet=0.1, max_delay=1.0)
    assert debounce.due is None
    assert debounce.take(5.0) is None
    debounce.touch(5.0)
    debounce.touch(5.05)
    assert debounce.take(5.1) is None
    assert debounce.take(5.2) == 5.0, "and says when it began"
    assert debounce.due is None
    debounce.touch(6.0)
    assert debounce.take(6.2) == 6.0, "and starts again"


def test_what_never_is_quiet_is_due_all_the_same() -> None:
    debounce = Debounce(quiet=0.1, max_delay=1.0)
    taken = []
    for step in range(40):
        now = step * 0.05
        debounce.touch(now)
        if debounce.take(now) is not None:
            taken.append(now)
    assert len(taken) == 1
    assert taken[0] == 1.0


# Which parts of a plan a change is about.
SCALE, ADD = ("scale", "cpu"), ("add", "cpu")
NEEDS: dict[tuple[str, ...], Dependencies] = {
    SCALE: Dependencies(frozenset({"/p/scale.j2", "/p/a.h", "/p"}), frozenset({"a.h", "cuda.h"})),
    ADD: Dependencies(frozenset({"/p/add.j2", "/p/a.h", "/p"}), frozenset({"b.h"})),
}


def parts(*changes: Change) -> set[tuple[str, ...]]:
    return set(affected(NEEDS, {change.path: change for change in changes}))


def test_a_file_is_about_those_that_use_it() -> None:
    assert parts(Change("/p/scale.j2")) == {SCALE}
    assert parts(Change("/p/a.h")) == {SCALE, ADD}
    assert parts(Change("/p/other")) == set()


def test_in_a_directory_only_names_that_are_asked_for_count() -> None:
    assert parts(Change("/p", frozenset({"notes.txt"}))) == set()
    assert parts(Change("/p", frozenset({"notes.txt", "cuda.h"}))) == {SCALE}
    assert parts(Change("/p")) == {SCALE, ADD}, "a directory that is gone is about all"


def test_a_script_that_may_include_anything_depends_on_every_name() -> None:
    dependencies: dict[tuple[str, ...], Dependencies] = {
        SCALE: Dependencies(frozenset({"/p"}), None)
    }
    change = Change("/p", frozenset({"any.h"}))
    assert affected(dependencies, {"/p": change}) == {SCALE: ["/p"]}


@pytest.mark.parametrize(
    "name", [".scale.cu.j2.swp", ".a.swx", "scale.j2~", "4913", ".#scale.j2", "#scale.j2#"]
)
def test_editors_droppings(name: str) -> None:
    assert is_editor_temp_file(name)


@pytest.mark.parametrize("name", ["scale.cu.j2", ".hidden.h", "49.h", "a#b.h", "swp"])
def test_files_that_are_not_editor_temp_files(name: str) -> None:
    assert not is_editor_temp_file(name)
