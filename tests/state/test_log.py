"""State files: whatever happens to one costs work and never a wrong answer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.state.envelope import Envelope, StateFile, StepStore
from tilusbuild.state.files import sweep_temporary_files


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "history")


def opened(path: str) -> StateFile:
    return StateFile(str(Path(path).parent), "history")


def content(path: str) -> dict[str, object]:
    return dict(opened(path).items())


def write(path: str, **values: object) -> None:
    log = opened(path)
    for key, value in values.items():
        log.put_value(key, value)
    log.save_records()


def test_what_is_saved_is_there_the_next_time_and_the_last_wins(path: str) -> None:
    opened(path).save_records()
    assert not Path(path).exists(), "nothing new writes nothing"
    write(path, a=1, b=[2, "ü"])
    write(path, a=3)
    assert content(path) == {"a": 3, "b": [2, "ü"]}
    log = opened(path)
    log.put_value("c\udcff", 4)
    log.save_records(keep=lambda key: key != "a")
    assert content(path) == {"b": [2, "ü"], "c\udcff": 4}, "text that is not UTF-8, too"


@pytest.mark.parametrize("directory", [None, "file"])
def test_where_nothing_can_be_written_it_remembers_for_this_run(tmp_path, directory) -> None:
    (tmp_path / "file").write_text("a file where the directory should be")
    log = StateFile(directory and str(tmp_path / directory), "history")
    log.put_value("a", 1)
    log.save_records()
    assert log.get_value("a") == 1


@pytest.mark.parametrize("body", [b"", b"[1]", b"\x80\x05\x95pickle"])
def test_a_file_without_a_map_is_ignored_and_replaced(path: str, body: bytes) -> None:
    Envelope("history").write_body(path, body)
    assert content(path) == {}
    write(path, a=1)
    assert content(path) == {"a": 1}


def test_two_builders_share_a_file(path: str) -> None:
    one, other = opened(path), opened(path)
    for number in range(5):
        for name, log in (("one", one), ("other", other)):
            log.put_value(f"{name} {number}", number)
            log.save_records()
    assert len(content(path)) == 10


# An envelope gives the body that was wrapped, or nothing: no error and no other body.
THINGS = Envelope("plan")


@given(st.binary())
def test_a_body_comes_back(body: bytes) -> None:
    assert THINGS.unwrap_body(THINGS.wrap_body(body)) == body


@given(st.binary(max_size=300))
def test_garbage_is_nothing(data: bytes) -> None:
    assert THINGS.unwrap_body(data) is None
    assert THINGS.unwrap_body(b"tilusbuild plan 3\n" + data) is None


@given(st.binary(max_size=50), st.data())
def test_what_is_damaged_anywhere_is_nothing(body: bytes, data: st.DataObject) -> None:
    content = THINGS.wrap_body(body)
    offset = data.draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[offset] ^ 1 << data.draw(st.integers(0, 7))])
    assert THINGS.unwrap_body(content[:offset]) is None
    assert THINGS.unwrap_body(content[:offset] + flipped + content[offset + 1 :]) is None
    assert THINGS.unwrap_body(content + b"more") is None


@pytest.mark.parametrize("title", ["plan 2", "plan 33", "other 3", "plan"])
def test_another_kind_or_version_is_nothing(title: str) -> None:
    wrapped = THINGS.wrap_body(b"body")
    assert THINGS.unwrap_body(wrapped.replace(b"plan 3", title.encode())) is None


def test_a_value_comes_back_as_its_type_only(tmp_path: Path) -> None:
    path = str(tmp_path / "thing")
    THINGS.save_value(path, {"a": 1})
    assert THINGS.load_value(path, dict[str, int]) == {"a": 1}
    assert THINGS.load_value(path, list[int]) is None
    THINGS.save_value(path, "\udcff")  # it is not UTF-8: the file stays
    assert THINGS.load_value(path, dict[str, int]) == {"a": 1}


def test_files_are_written_where_that_is_possible(tmp_path: Path) -> None:
    path = tmp_path / "new" / "thing"
    assert THINGS.read_body(str(path)) is None
    THINGS.write_body(str(path), b"body")
    assert THINGS.read_body(str(path)) == b"body"
    THINGS.write_body(str(path / "below a file"), b"body")
    assert THINGS.read_body(str(path / "below a file")) is None
    assert THINGS.read_body(str(tmp_path)) is None


def test_nothing_is_written_or_removed_behind_a_link(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "thing").write_text("theirs")
    (others / ".tmp-of-theirs").touch()
    (tmp_path / "linked").symlink_to(others)
    THINGS.write_body(str(tmp_path / "linked" / "thing"), b"body")
    THINGS.write_body(str(tmp_path / "linked" / "more"), b"body")
    StepStore(str(tmp_path / "linked")).get_or_make("key", lambda: b"object")
    sweep_temporary_files(str(tmp_path / "linked"))
    assert (others / "thing").read_text() == "theirs"
    assert sorted(path.name for path in others.iterdir()) == [".tmp-of-theirs", "thing"]
