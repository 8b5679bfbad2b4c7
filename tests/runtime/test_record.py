"""The calls of a process as it records them: which are counted, and which are lost."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.runtime import record
from tilusbuild.runtime.process import process


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "calls.jsonl"
    tilusbuild.record(None)


def mark(built: Marks) -> tilusbuild.Kernel:
    return tilusbuild.load("mark", where=str(built.cache))


def call(kernel: tilusbuild.Kernel, n: int) -> None:
    np.testing.assert_array_equal(kernel(np.zeros(n, "f4")), np.float32(2 if n <= 4 else 1))


def count(path: Path) -> dict[int | None, int]:
    """The recorded calls of `mark` by their size."""
    counts: Counter[int | None] = Counter()
    for row in record.read_recorded_calls(str(path)):
        counts[row.sizes["n"] if row.sizes else None] += row.calls
    return dict(counts)


def python(code: str, built: Marks, path: Path) -> int:
    """The exit status of a process that records, with a kernel `k` and an array `x` of 3."""
    code = (
        f"import os, signal, numpy, tilusbuild\n"
        f"k = tilusbuild.load('mark', where={str(built.cache)!r})\n"
        f"x = numpy.zeros(3, 'f4')\n{code}"
    )
    environment = {**os.environ, "TILUSBUILD_RECORD": str(path)}
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode


def test_calls_are_counted_between_begin_and_end(built: Marks, calls: Path) -> None:
    kernel = mark(built)
    call(kernel, 7)
    tilusbuild.record(calls)
    for n in (3, 5, 3, 3):
        call(kernel, n)
    kernel(x=np.zeros(5, "f4"), y=np.zeros(5, "f4"))
    with pytest.raises(TypeError, match="got f64"):
        kernel(np.zeros(3, "f4"), np.zeros(3, "f8"))
    tilusbuild.record(None)
    call(kernel, 3)
    assert count(calls) == {3: 4, 5: 2}, "a call that the launcher refuses counts"
    first = json.loads(calls.read_text().splitlines()[0])
    expected = {"script": "mark", "params": {}, "target": "cpu", "sizes": {"n": 3}, "calls": 4}
    assert first == expected


def test_an_array_that_is_converted_first_is_one_call(built: Marks, calls: Path) -> None:
    kernel, x = mark(built), np.zeros(3, "f4")
    x.flags.writeable = False
    tilusbuild.record(calls)
    for _ in range(3):
        kernel(x)
    tilusbuild.record(None)
    assert count(calls) == {3: 3}


def test_all_dimensions_are_recorded_not_only_the_keys(built: Marks, calls: Path) -> None:
    kernel = tilusbuild.load("modelled", real="f32", where=str(built.cache))
    tilusbuild.record(calls)
    kernel(np.zeros((2, 3), "f4"), 5)
    tilusbuild.record(None)
    (row,) = record.read_recorded_calls(str(calls))
    assert (row.params, row.sizes) == ({"real": "f32"}, {"m": 2, "n": 3, "k": 5})


def test_threads_lose_no_call(built: Marks, calls: Path) -> None:
    kernel = mark(built)
    tilusbuild.record(calls)

    def call_often() -> None:
        for n in (3, 9) * 500:
            call(kernel, n)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        process.recorder.write_counts()
    for thread in threads:
        thread.join()
    tilusbuild.record(None)
    assert count(calls) == {3: 2000, 9: 2000}


def test_memory_is_bounded(built: Marks, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_SIZES", 3)
    kernel = mark(built)
    tilusbuild.record(calls)
    for n in (1, 2, 3, 4, 5, 1, 5):
        call(kernel, n)
    tilusbuild.record(None)
    assert count(calls) == {1: 2, 2: 1, 3: 1, None: 3}


def test_counts_are_written_now_and_then(
    built: Marks, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_WRITE_SECONDS", 0.01)
    kernel = mark(built)
    tilusbuild.record(calls)
    call(kernel, 3)
    while not calls.stat().st_size:
        pass
    assert count(calls) == {3: 1}


@pytest.mark.parametrize(
    ("code", "status", "counted"),
    [
        ("k(x)", 0, 1),
        ("k(x); raise SystemExit(3)", 3, 1),
        ("k(x)\nif os.fork() == 0: k(x); k(x)\nelse: os.wait()", 0, 3),
        # A process that ends without its exit handlers loses the calls since the last write.
        ("k(x); os._exit(0)", 0, 0),
        ("k(x); os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, 0),
        ("k(x)\nif os.fork() == 0: k(x); os._exit(0)\nos.wait()", 0, 1),
    ],
)
def test_a_process_writes_its_calls_when_it_exits(
    built: Marks, calls: Path, code: str, status: int, counted: int
) -> None:
    assert python(code, built, calls) == status
    assert sum(count(calls).values()) == counted


def test_several_processes_append_to_one_file(built: Marks, calls: Path) -> None:
    for _ in range(3):
        python("k(x)", built, calls)
    assert count(calls) == {3: 3}


def test_a_file_that_cannot_be_written_ends_no_call(built: Marks, tmp_path: Path, caplog) -> None:
    with pytest.raises(FileNotFoundError):
        tilusbuild.record(tmp_path / "missing" / "calls.jsonl")
    assert python("k(x)", built, tmp_path / "missing" / "calls.jsonl") == 0
    (tmp_path / "calls").mkdir()
    tilusbuild.record(tmp_path / "calls" / "calls.jsonl")
    call(mark(built), 3)
    (tmp_path / "calls" / "calls.jsonl").unlink()
    (tmp_path / "calls").rmdir()
    process.recorder.write_counts()
    process.recorder.write_counts()
    assert caplog.text.count("calls are not recorded") == 1
    (tmp_path / "calls").mkdir()
    tilusbuild.record(None)
    assert count(tmp_path / "calls" / "calls.jsonl") == {3: 1}, "they are kept until then"


def test_lines_of_another_form_are_skipped(tmp_path: Path) -> None:
    good = '{"script": "a", "params": {}, "target": "cpu", "sizes": {"n": 1}, "calls": 2}\n'
    bad = '{"script": "a", "para\n[[[\n7\n' + good.replace("1", '"1"') + good.replace("2", "null")
    (tmp_path / "calls").write_text(bad + good + "\n" + good)
    assert count(tmp_path / "calls") == {1: 4}
