"""Directories that appear by one rename, and what becomes of those that were there before."""

import fcntl
import os
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.faulty_disk import dies, kill
from tilusbuild.state import files
from tilusbuild.state.files import rename_if_free, replace_directory
from tilusbuild.state.temporary import TemporaryDirectory


def directory(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    (tmp_path / "aside").mkdir()
    return directory(tmp_path / "made", "new")


def test_publishing_replaces_a_directory_and_keeps_the_old_one_aside(tmp_path, stage) -> None:
    destination = directory(tmp_path / "place", "old")
    replace_directory(str(stage), str(destination), str(tmp_path / "aside"))
    assert (destination / "file").read_text() == "new"
    assert [path.read_text() for path in (tmp_path / "aside").glob("*/file")] == ["old"]
    assert not stage.exists()
    # A file is replaced by the one rename.
    file = tmp_path / "new"
    file.write_text("file")
    replace_directory(str(file), str(destination / "file"), str(tmp_path / "no-such-directory"))
    assert (destination / "file").read_text() == "file"


def test_when_publishing_fails_the_old_directory_is_back(tmp_path: Path, stage: Path) -> None:
    destination = directory(tmp_path / "place", "old")
    with pytest.raises(FileNotFoundError):
        replace_directory(str(tmp_path / "missing"), str(destination), str(tmp_path / "aside"))
    assert (destination / "file").read_text() == "old"


def test_whoever_was_quicker_is_replaced(tmp_path, stage, monkeypatch) -> None:
    destination, rename = tmp_path / "place", os.rename

    def late(old: str, new: str) -> None:
        if (
            new == str(destination)
            and not destination.exists()
            and not any((tmp_path / "aside").iterdir())
        ):
            directory(destination, "quicker")
        rename(old, new)

    monkeypatch.setattr(os, "rename", late)
    replace_directory(str(stage), str(destination), str(tmp_path / "aside"))
    assert (destination / "file").read_text() == "new"


def test_a_link_is_not_replaced_by_a_directory(tmp_path: Path, stage: Path) -> None:
    directory(tmp_path / "target", "old")
    (tmp_path / "place").symlink_to("target")
    with pytest.raises(NotADirectoryError):
        replace_directory(str(stage), str(tmp_path / "place"), str(tmp_path / "aside"))
    assert (tmp_path / "place" / "file").read_text() == "old"


def test_a_new_name_is_never_taken_from_what_is_there(tmp_path: Path, stage: Path) -> None:
    empty, dangling = tmp_path / "empty", tmp_path / "dangling"
    empty.mkdir()
    dangling.symlink_to("nothing")
    assert not rename_if_free(str(stage), str(empty))
    assert not rename_if_free(str(stage), str(dangling))
    assert rename_if_free(str(stage), str(tmp_path / "free"))
    assert (tmp_path / "free" / "file").read_text() == "new"


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    for directory in (tmp_path, below):
        (directory / ".tmp-left").write_text("part")
        (directory / "kept").write_text("whole")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "kept")
    with open(below / ".tmp-held", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files.sweep_temporary_files(str(tmp_path), deep=True)
        names = sorted(path.name for path in tmp_path.rglob("*"))
        assert names == [".tmp-held", ".tmp-link", "below", "kept", "kept"]
    files.sweep_temporary_files(str(tmp_path / "none"), deep=True)


def test_a_build_removes_what_a_killed_one_left(tmp_path, monkeypatch) -> None:
    """A writer that is killed within a write leaves its file until the next sweep."""

    def work() -> None:
        monkeypatch.setattr(os, "replace", lambda *_: kill(""))
        files.write_atomic(tmp_path / "file", b"new")

    assert dies(work)
    assert [path.name[:5] for path in tmp_path.iterdir()] == [".tmp-"]
    files.sweep_temporary_files(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# Directories in TMPDIR: none is left, also of a command that was killed.


def test_the_next_one_removes_what_a_killed_command_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def work() -> None:
        tool_directory = TemporaryDirectory("tool")
        os.mkdir(os.path.join(tool_directory.path, "deep"))
        kill(tool_directory.path)

    assert dies(work)
    (leftover,) = tmp_path.iterdir()
    (tmp_path / "tilusbuild-tmp-theirs").mkdir()  # no name of ours
    with TemporaryDirectory("first") as held, TemporaryDirectory("second") as temporary_directory:
        assert not leftover.exists()
        assert os.path.isdir(held.path)
        Path(temporary_directory.path, "file").touch()
    assert os.listdir(tmp_path) == ["tilusbuild-tmp-theirs"]
    # A directory such as mode 1733 can be written to, and not be listed.
    monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError))
    with TemporaryDirectory("third") as temporary_directory:
        assert os.path.isdir(temporary_directory.path)


def test_a_process_without_descriptors_leaves_no_directory(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            TemporaryDirectory("tool", str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert os.listdir(tmp_path) == []


def test_what_another_one_has_beside_a_place_stays(tmp_path: Path) -> None:
    kept = [tmp_path / ".tmp-abcdefgh", tmp_path / "package"]
    for path in kept:
        path.mkdir()
    (tmp_path / ".tilusbuild-tmp-package-abcdefgh").symlink_to("package")
    (tmp_path / ".tilusbuild-tmp-package-ijklmnop").mkdir()
    with TemporaryDirectory("package", str(tmp_path)) as one:
        with TemporaryDirectory("package", str(tmp_path)) as two:
            assert os.path.isdir(one.path)
            assert os.path.dirname(two.path) == str(tmp_path)
        assert not os.path.exists(two.path)
    names = {path.name for path in [*kept, tmp_path / ".tilusbuild-tmp-package-abcdefgh"]}
    assert set(os.listdir(tmp_path)) == names
