"""The record of a build holds exactly as long as nothing changed, and no damage makes it lie."""

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.processes import run_to_end
from tilusbuild import noop
from tilusbuild.builder import noop_record as write
from tilusbuild.state.clock import FileTime
from tilusbuild.state.stamp import read_device_stamp

NAME = b"the command"
SUMMARY = b"all is well"
LATER = time.time_ns() + 10**15
"""Eleven days: a module is imported long before its last test runs on a busy machine."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two inputs in a directory, and three entries."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / name).write_text(name)
    for name in ("p", "q", "r"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "lib.so").write_text(name)
    return tmp_path


def make_record(tree: Path, started: int = LATER) -> bytes | None:
    inputs = [str(tree / "in"), str(tree / "in/a"), str(tree / "in/b"), str(tree / "in/none")]
    names = ["p", "q", "r"]
    entries = {(f"{tree}/out/", "/lib.so"): names, (f"{tree}/out/", noop.DIRECTORY): names}
    return write.make_record(
        NAME,
        SUMMARY,
        {path: read_device_stamp(path) for path in inputs},
        entries,
        FileTime(started),
    )


@pytest.fixture
def data(tree: Path) -> bytes:
    """A record of them."""
    record = make_record(tree)
    assert record is not None
    return record


def edit(path: Path) -> None:
    path.write_text("other")


def same_size_and_times(path: Path) -> None:
    before = path.stat()
    path.write_text("x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_name("new")
    other.write_text(path.read_text())
    os.replace(other, path)


@pytest.mark.parametrize("change", [edit, same_size_and_times, replaced, Path.unlink])
@pytest.mark.parametrize("file", ["in/a", "in/b", "out/p/lib.so", "out/r/lib.so"])
def test_any_change_of_a_file_ends_it(tree: Path, data: bytes, file: str, change: object) -> None:
    assert noop.check_record(data, NAME, {}) == SUMMARY
    assert noop.check_record(data, NAME + b"!", {}) is None, "it answers its own command only"
    time.sleep(0.02)  # a file system's clock moves in ticks
    change(tree / file)  # type: ignore[operator]
    assert noop.check_record(data, NAME, {}) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "in/none").write_text(""),
        lambda tree: (tree / "in/shadow").write_text(""),
        lambda tree: (tree / "in").rename(tree / "elsewhere"),
        lambda tree: (tree / "out/q/new").write_text(""),
    ],
    ids=["none", "an input", "renamed", "an entry"],
)
def test_a_name_that_comes_or_goes_ends_it(tree: Path, data: bytes, change: object) -> None:
    time.sleep(0.02)
    change(tree)  # type: ignore[operator]
    assert noop.check_record(data, NAME, {}) is None


def test_inputs_may_be_relative_or_lie_where_no_directory_is(tree, monkeypatch) -> None:
    monkeypatch.chdir(tree)
    inputs = ["in/a", "in", "", "none", str(tree / "in/b"), str(tree / "no/such/folder"), "/"]
    data = write.make_record(
        NAME, SUMMARY, {path: read_device_stamp(path) for path in inputs}, {}, FileTime(LATER)
    )
    assert data is not None
    assert noop.check_record(data, NAME, {}) == SUMMARY
    (tree / "no/such").mkdir(parents=True)
    assert noop.check_record(data, NAME, {}) == SUMMARY
    (tree / "no/such/folder").mkdir()
    assert noop.check_record(data, NAME, {}) is None


def test_a_directory_with_a_slash_at_its_end_may_get_other_names(tree: Path) -> None:
    path = f"{tree}/in/"
    data = write.make_record(NAME, SUMMARY, {path: read_device_stamp(path)}, {}, FileTime(0))
    assert data is not None
    (tree / "in/new").touch()
    assert noop.check_record(data, NAME, {}) == SUMMARY
    (tree / "in").rename(tree / "elsewhere")
    assert noop.check_record(data, NAME, {}) is None


def test_is_not_made_when_an_input_is_young_or_an_entry_is_missing(tree: Path) -> None:
    assert make_record(tree, started=time.time_ns() - 10**10) is None
    (tree / "out/q/lib.so").unlink()
    assert make_record(tree) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_damaged_record_is_ignored(data: bytes, position: int, bit: int) -> None:
    assert noop.check_record(data[: position % len(data)], NAME, {}) is None, "a truncated one"
    flipped = bytearray(data)
    flipped[position % len(data)] ^= 1 << bit
    assert noop.check_record(bytes(flipped), NAME, {}) is None


@given(st.binary(max_size=300))
def test_a_garbage_record_is_ignored(data: bytes) -> None:
    assert noop.check_record(data, NAME, {}) is None


def test_a_fifo_in_its_place_is_no_record(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(noop, "find_record_path", lambda *_: str(tmp_path / "fifo"))
    os.mkfifo(tmp_path / "fifo")
    assert noop.read_record(NAME, {}) is None


@pytest.fixture
def in_groups(tree: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A record of which each entry is a group of its own, and each group a share."""
    monkeypatch.setattr(write, "_GROUP_SIZE", 1)
    monkeypatch.setattr(noop, "_SHARE", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    data = make_record(tree)
    assert data is not None
    return data


@pytest.mark.parametrize("file", ["in/a", "out/p/lib.so", "out/q/lib.so", "out/r/lib.so"])
def test_each_group_is_looked_at(tree: Path, in_groups: bytes, file: str) -> None:
    assert noop.check_record(in_groups, NAME, {}) == SUMMARY
    time.sleep(0.02)
    same_size_and_times(tree / file)
    assert noop.check_record(in_groups, NAME, {}) is None


def test_checking_keeps_the_working_directory(tree, in_groups, monkeypatch) -> None:
    monkeypatch.chdir(tree / "in")
    assert noop.check_record(in_groups, NAME, {}) == SUMMARY
    assert os.getcwd() == str(tree / "in")


def test_keys_tell_commands_directories_and_settings_apart(tmp_path, monkeypatch) -> None:
    env = {"PATH": "/bin", "HOME": "/root", "COLUMNS": "80"}
    monkeypatch.chdir(tmp_path)
    base = noop.make_key(["build"], env)
    assert base == noop.make_key(["build", "--json", "-q"], {**env, "COLUMNS": "90"})
    assert base != noop.make_key(["build", "--target", "cpu"], env)
    assert base != noop.make_key(["build"], {**env, "PATH": "/usr/bin"})
    assert base != noop.make_key(["build"], {**env, "TILUSBUILD_LEVEL": "0"})
    with monkeypatch.context() as another_installation:
        another_installation.setattr(noop, "__file__", "/opt/tilusbuild/noop.py")
        assert base != noop.make_key(["build"], env)
    monkeypatch.chdir("/")
    assert base != noop.make_key(["build"], env)


HEAVY = (
    "argparse json pydantic jinja2 numpy rich watchdog tomllib tomli subprocess dataclasses typing"
    " tree_sitter"
)


def test_reading_it_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import tilusbuild.cli.main\n"
        "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-I", "-c", code]
    loaded = run_to_end(command).stdout.split()
    assert set(loaded).isdisjoint(HEAVY.split())
    modules = {name for name in loaded if name.startswith("tilusbuild")}
    assert modules == {
        "tilusbuild",
        "tilusbuild.cli",
        "tilusbuild.cli.main",
        "tilusbuild.noop",
    }
