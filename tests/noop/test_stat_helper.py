"""The stat helper says what Python would say, and only the one that was tried is asked."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.builder.noop_record import is_right, stat_helper_for
from tilusbuild.noop import record, stat_helper, write
from tilusbuild.process.local import LocalRunner
from tilusbuild.state.clock import Moment
from tilusbuild.state.stamp import sighting

Entries = dict[tuple[str, write.Endings], list[str]]
NAME, SUMMARY = b"the command", b"all is well"
COMPILER = shutil.which("gcc") or ""
ENTRIES = [f"{number:03}" for number in range(40)]


@dataclass
class Tool:
    """A compiler, as a toolchain has it."""

    path: str
    line: str = "gcc 12.2.0 digest"


@dataclass
class Tools:
    """As much of a toolchain as making a stat helper takes."""

    cc: Tool
    env: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    def environment(self) -> dict[str, str]:
        return self.env


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner() as runner:
        yield runner


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, runner: LocalRunner) -> str:
    """A stat helper, made once for all tests."""
    records = tmp_path_factory.mktemp("home") / "records"
    made = stat_helper_for(str(records), Tools(Tool(COMPILER)), runner)  # type: ignore[arg-type]
    assert made
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").write_text("a")
    for name in ENTRIES:
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "lib.so").write_text(name)
    return tmp_path


@pytest.fixture
def data(tree: Path, library: str) -> bytes:
    """A record that names the stat helper."""
    inputs = [str(tree / "in"), str(tree / "in/a"), str(tree / "in/none")]
    entries: Entries = {(f"{tree}/out/", ("/lib.so",)): ENTRIES}
    made = write.make(
        NAME,
        SUMMARY,
        {path: sighting(path) for path in inputs},
        entries,
        Moment(time.time_ns() + 10**12),
        library,
    )
    assert made is not None
    return made


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups Python looked at, each time that it did."""
    looked: list[int] = []
    unchanged = record._unchanged

    def counting(groups: Any, stat: Any) -> bool:
        looked.append(len(groups))
        return unchanged(groups, stat)

    monkeypatch.setattr(record, "_unchanged", counting)
    return looked


def test_a_record_holds_by_its_stat_helper_alone(data: bytes, by_python: list[int]) -> None:
    assert record.holds(data, NAME) == SUMMARY
    assert by_python == []


def edit(path: Path) -> None:
    path.write_text("other")


def same_size_and_times(path: Path) -> None:
    before = path.stat()
    path.write_text("x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, 0)


def replaced(path: Path) -> None:
    other = path.with_name("new")
    other.write_text(path.read_text())
    os.replace(other, path)


def moved_away(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("change", [edit, same_size_and_times, cut, replaced, moved_away])
@pytest.mark.parametrize("file", ["in/a", "out/000/lib.so", "out/039/lib.so"])
def test_any_change_of_a_file_ends_it(
    tree: Path, data: bytes, by_python: list[int], file: str, change: Callable[[Path], None]
) -> None:
    time.sleep(0.02)  # a file system's clock moves in ticks
    change(tree / file)
    assert record.holds(data, NAME) is None
    assert by_python == []


@pytest.fixture
def shared_out(tree: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A record whose every entry may be looked at by another thread."""
    monkeypatch.setattr(write, "_GROUP_SIZE", 1)
    entries: Entries = {(f"{tree}/out/", ("/lib.so",)): ENTRIES}
    made = write.make(NAME, SUMMARY, {}, entries, Moment(time.time_ns() + 10**12), library)
    assert made is not None
    return made


@pytest.mark.parametrize("threads", [1, 2, 3, 90])
def test_it_holds_by_any_number_of_threads(shared_out: bytes, threads: int) -> None:
    assert record.holds(shared_out, NAME, threads=threads) == SUMMARY


@pytest.mark.parametrize("threads", [2, 3, 90])
@pytest.mark.parametrize("entry", ["000", "001", "002", "039"])
def test_any_thread_may_see_the_change(
    tree: Path, shared_out: bytes, entry: str, threads: int
) -> None:
    time.sleep(0.02)
    same_size_and_times(tree / "out" / entry / "lib.so")
    assert record.holds(shared_out, NAME, threads=threads) is None


def _refused(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def _never_begun(*_: object) -> int:
    """A thread that finds no memory for its first call: nobody is told."""
    return 1


@pytest.mark.parametrize("start", [_refused, _never_begun])
def test_without_another_thread_all_is_looked_at_by_this_one(
    tree: Path,
    shared_out: bytes,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[..., int],
) -> None:
    monkeypatch.setattr("_thread.start_new_thread", start)
    assert record.holds(shared_out, NAME, threads=3) == SUMMARY
    (tree / "out/038/lib.so").unlink()
    assert record.holds(shared_out, NAME, threads=3) is None


def test_a_thread_that_fails_vouches_for_nothing(
    shared_out: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    begun = threading.Event()

    def failing(*_: object) -> bool:
        if threading.get_ident() != here:
            begun.set()
            raise MemoryError
        return begun.wait(60)

    monkeypatch.setattr(record, "_same", lambda _: failing)
    assert record.holds(shared_out, NAME, threads=2) is None
    assert record.holds(shared_out, NAME, threads=1) == SUMMARY


def test_a_file_that_appears_ends_it(tree: Path, data: bytes) -> None:
    (tree / "in/none").write_text("")
    assert record.holds(data, NAME) is None


def test_a_removed_directory_ends_it(tree: Path, data: bytes) -> None:
    shutil.rmtree(tree / "out")
    assert record.holds(data, NAME) is None


def test_its_entries_and_inputs_are_told_all_the_same(tree: Path, data: bytes) -> None:
    assert write.inputs(data) == [str(tree / "in"), str(tree / "in/a"), str(tree / "in/none")]
    assert list(write.entries(data, f"{tree}/out/", ("/lib.so",))) == ENTRIES


@pytest.fixture
def copied(library: str, tmp_path: Path) -> Path:
    """A stat helper that a test may spoil."""
    (tmp_path / "lookers").mkdir(mode=0o700)
    return Path(shutil.copy2(library, tmp_path / "lookers/own.so"))


def touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def gone(path: Path) -> None:
    path.unlink()


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


def in_a_directory_of_everybodys(path: Path) -> None:
    path.parent.chmod(0o777)


def somewhere_else(path: Path) -> None:
    path.rename(path.with_name("real.so"))
    path.symlink_to(path.with_name("real.so"))


@pytest.mark.parametrize(
    "change",
    [touched, gone, replaced, writable_by_others, in_a_directory_of_everybodys, somewhere_else],
)
def test_without_the_very_file_that_was_tried_python_looks(
    tree: Path, copied: Path, by_python: list[int], change: Callable[[Path], None]
) -> None:
    entries: Entries = {(f"{tree}/out/", ("/lib.so",)): ENTRIES}
    data = write.make(NAME, SUMMARY, {}, entries, Moment(time.time_ns() + 10**12), str(copied))
    assert data is not None
    time.sleep(0.02)
    if change is replaced:
        copied.write_bytes(copied.read_bytes())
    else:
        change(copied)
    assert record.holds(data, NAME) == SUMMARY
    assert by_python
    (tree / "out/005/lib.so").unlink()
    assert record.holds(data, NAME) is None


def test_the_second_build_makes_no_other(library: str, runner: LocalRunner) -> None:
    records = os.path.join(os.path.dirname(os.path.dirname(library)), "records")
    before = runner.asked
    again = stat_helper_for(records, Tools(Tool(COMPILER)), runner)  # type: ignore[arg-type]
    assert again == library
    assert runner.asked == before
    assert os.stat(library).st_mode & 0o077 == 0


@pytest.mark.parametrize("compiler", ["/bin/false", "/bin/true", "/no/such/compiler"])
def test_without_a_compiler_there_is_none(
    tmp_path: Path, runner: LocalRunner, compiler: str
) -> None:
    tools: Any = Tools(Tool(compiler))
    assert stat_helper_for(str(tmp_path / "records"), tools, runner) == ""
    assert list((tmp_path / "lookers").iterdir()) == []


WRONG = {
    "always the same": "return 1;",
    "never the same": "return 0;",
    "the first only": "return tilusbuild_right(names, size, stats, count ? 1 : 0);",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=list(WRONG))
def test_one_that_answers_wrongly_is_not_used(
    tmp_path: Path, runner: LocalRunner, body: str
) -> None:
    real = Path(stat_helper.__file__).with_name("stat_helper.c").read_text()
    text = real.replace("int tilusbuild_same(", "static int tilusbuild_right(")
    head = "int tilusbuild_same(const char *names, size_t size, const char *stats, size_t count)"
    (tmp_path / "wrong.c").write_text(f"{text}\n{head} {{ {body} }}\n")
    made = tmp_path / "lookers/wrong.so"
    made.parent.mkdir(mode=0o700)
    words = [COMPILER, "-shared", "-fPIC", "-w", str(tmp_path / "wrong.c"), "-o", str(made)]
    assert os.spawnv(os.P_WAIT, COMPILER, words) == 0
    made.chmod(0o600)
    assert not is_right(str(made))
