"""Digests remembered, also between runs: read once, written once, and never a stale answer."""

import errno
import os
from pathlib import Path

import pytest

from tilusbuild.state import digests
from tilusbuild.state.clock import FileTime
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.files import sha256_bytes, sha256_file
from tilusbuild.state.stamp import COARSE_TICK, read_stamp

LATER = 3_600_000_000_000


def everything(_: str) -> bool:
    return True


def poison(memory: DigestMemory) -> None:
    """Let the memory be wrong, so that a test sees whether it was asked."""
    for key, (stamp, _) in list(memory._log.items()):
        memory._log.put_value(key, [stamp, "remembered"])


@pytest.mark.parametrize("after_change", [LATER, COARSE_TICK, -LATER])
def test_a_file_is_read_again_that_was_young_or_from_the_future(tmp_path, after_change) -> None:
    """By the clock of a memory, so many ns after the file's last change."""
    file = tmp_path / "tool"
    file.write_bytes(b"one")
    newest = read_stamp(file).newest
    memory = DigestMemory(now=lambda: FileTime(newest + after_change))
    assert memory.digest_file(str(file)) == sha256_bytes(b"one")
    poison(memory)
    remembered = "remembered" if after_change == LATER else sha256_bytes(b"one")
    assert memory.digest_file(str(file)) == remembered


def test_a_tree_is_its_names_and_contents_wherever_it_is(tmp_path: Path) -> None:
    memory = DigestMemory()
    for name in ("here", "there"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "a.h").write_text("a")
        (tmp_path / name / "sub/b.h").write_text("b")
    first_digest, second_digest = (
        memory.digest_tree(str(tmp_path / n), "all", everything) for n in ("here", "there")
    )
    assert first_digest == second_digest
    (tmp_path / "there/a.h").rename(tmp_path / "there/c.h")
    assert memory.digest_tree(str(tmp_path / "there"), "all", everything) != first_digest


def test_what_is_not_selected_is_not_in_a_tree(tmp_path: Path) -> None:
    memory = DigestMemory()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.h").write_text("a")
    before = memory.digest_tree(str(tmp_path), "in", lambda name: name.startswith("in/"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b.h").write_text("b")
    (tmp_path / "c.h").write_text("c")
    assert memory.digest_tree(str(tmp_path), "in", lambda name: name.startswith("in/")) == before


def test_links_are_followed_once_and_dead_ones_ignored(tmp_path: Path) -> None:
    memory = DigestMemory()
    (tmp_path / "a.h").write_text("a")
    before = memory.digest_tree(str(tmp_path), "all", everything)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    assert memory.digest_tree(str(tmp_path), "all", everything) == before
    (tmp_path / "b.h").symlink_to(tmp_path / "a.h")
    assert memory.digest_tree(str(tmp_path), "all", everything) != before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.EMFILE, errno.EACCES])
def test_a_directory_that_cannot_be_read_just_now_is_not_left_out_of_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Or a toolkit on a disk with an error is another toolkit, and everything is compiled again."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/file").write_text("x")
    scandir = os.scandir

    def scan(path: str) -> object:
        if path.endswith("inner"):
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(OSError, match="inner"):
        DigestMemory(None).digest_tree(str(tmp_path), "all", lambda _: True)
    # One that nobody lets us read is not there for a compiler either.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    if code == errno.EACCES:
        empty = sha256_bytes(b"")
        assert DigestMemory(None).digest_tree(str(tmp_path), "all", lambda _: True) == empty


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    names: list[str] = []
    real = sha256_file

    def counted(path: str) -> str:
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(digests, "sha256_file", counted)
    # As if everything were old enough to trust its stamp: the rule itself is tested beside it.
    monkeypatch.setattr(digests, "are_settled", lambda stamps, time: True)
    return names


@pytest.fixture
def header(tmp_path: Path) -> str:
    path = tmp_path / "include" / "tile.cuh"
    path.parent.mkdir()
    path.write_bytes(b"one")
    return str(path)


@pytest.fixture
def state(tmp_path: Path) -> str:
    (tmp_path / "cache").mkdir()
    return str(tmp_path / "cache" / "state")


def test_a_file_is_read_once_over_several_runs(reads: list[str], header: str, state: str) -> None:
    written = []
    for _ in range(3):
        memory = DigestMemory(state)
        assert memory.digest_file(header) == sha256_bytes(b"one")
        memory.save_records()
        written.append(os.stat(f"{state}/digests"))
    assert reads == ["tile.cuh"]
    assert written[2] == written[0], "nothing new writes nothing"


def test_trees_and_answers_last_too(reads: list[str], header: str, state: str) -> None:
    first, second = (DigestMemory(state) for _ in range(2))
    directory = os.path.dirname(header)
    digest = first.digest_tree(directory, "headers", lambda name: True)
    first.put_answer("nvcc abc\nversion", "13.0.88")
    first.save_records()
    second = DigestMemory(state)
    assert second.digest_tree(directory, "headers", lambda name: True) == digest
    assert second.get_answer("nvcc abc\nversion") == "13.0.88"
    assert reads == ["tile.cuh"]
    assert second.digest_tree(directory, "none", lambda name: False) != digest


@pytest.mark.parametrize("record", [None, 1, "x", [], ["s", 1, 2], {"a": 1}, ["s", "1", 2, "d"]])
def test_a_record_of_a_wrong_shape_is_ignored(header: str, state: str, record: object) -> None:
    memory = DigestMemory(state)
    memory._log.put_value(f"files:{header}", record)
    memory._log.put_value("answers:key", record if record != "x" else 3)
    memory.save_records()
    assert DigestMemory(state).digest_file(header) == sha256_bytes(b"one")
    assert DigestMemory(state).get_answer("key") is None


def test_what_is_gone_is_forgotten_when_the_file_is_rewritten(header: str, state: str) -> None:
    memory = DigestMemory(state)
    memory.digest_file(header)
    memory.digest_tree(os.path.dirname(header), "all", lambda name: True)
    memory.put_answer("key", "text")
    os.unlink(header)
    os.rmdir(os.path.dirname(header))
    memory.save_records()
    kept = dict(DigestMemory(state)._log.items())
    assert kept == {"answers:key": "text"}
