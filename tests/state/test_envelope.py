"""An envelope gives the body that was wrapped, or nothing: no error and no other body."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.state.envelope import Envelope, StepStore
from tilusbuild.state.files import sweep

THINGS = Envelope("things 2")


@given(st.binary())
def test_a_body_comes_back(body: bytes) -> None:
    assert THINGS.unwrap(THINGS.wrap(body)) == body


@given(st.binary(max_size=300))
def test_garbage_is_nothing(data: bytes) -> None:
    assert THINGS.unwrap(data) is None
    assert THINGS.unwrap(b"tilusbuild things 2\n" + data) is None


@given(st.binary(max_size=50), st.data())
def test_what_is_damaged_anywhere_is_nothing(body: bytes, data: st.DataObject) -> None:
    whole = THINGS.wrap(body)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))])
    assert THINGS.unwrap(whole[:at]) is None
    assert THINGS.unwrap(whole[:at] + flipped + whole[at + 1 :]) is None
    assert THINGS.unwrap(whole + b"more") is None


@pytest.mark.parametrize("title", ["things 1", "things 22", "other 2", "things"])
def test_another_kind_or_version_is_nothing(title: str) -> None:
    assert THINGS.unwrap(Envelope(title).wrap(b"body")) is None


def test_files_are_written_where_that_is_possible(tmp_path: Path) -> None:
    path = tmp_path / "new" / "thing"
    assert THINGS.read(str(path)) is None
    THINGS.write(str(path), b"body")
    assert THINGS.read(str(path)) == b"body"
    THINGS.write(str(path / "below a file"), b"body")
    assert THINGS.read(str(path / "below a file")) is None
    assert THINGS.read(str(tmp_path)) is None


def test_nothing_is_written_or_removed_behind_a_link(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "thing").write_text("theirs")
    (others / ".tmp-of-theirs").touch()
    (tmp_path / "linked").symlink_to(others)
    THINGS.write(str(tmp_path / "linked" / "thing"), b"body")
    THINGS.write(str(tmp_path / "linked" / "more"), b"body")
    StepStore(str(tmp_path / "linked")).get("key", lambda: b"object")
    sweep(str(tmp_path / "linked"))
    assert (others / "thing").read_text() == "theirs"
    assert sorted(path.name for path in others.iterdir()) == [".tmp-of-theirs", "thing"]
