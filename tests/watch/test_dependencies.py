"""Which parts of a plan a change is about."""

import pytest

from tilusbuild.watch.dependencies import Change, Dependencies, affected, is_editor_temp_file

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
