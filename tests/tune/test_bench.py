"""A real worker process, and libraries that do to it what kernels do."""

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tilusbuild.process.base import CancelledError
from tilusbuild.process.local import LocalRunner
from tilusbuild.tune.bench.bench import Answer, DeviceBench, WorkerUnusableError, lock_device
from tilusbuild.tune.bench.scores import SAMPLES_PER_WORKER
from tilusbuild.tune.bench.work import Candidate, Case, write_case

Libraries = Callable[..., str]


@pytest.fixture
def bench(runner: LocalRunner, case: Case) -> Iterator[DeviceBench]:
    device_bench = DeviceBench(runner, "cpu", 0, limit=2.0)
    yield device_bench
    device_bench.close()


def program(library: str) -> Candidate:
    return Candidate(0, "0" * 64, library, {})


@pytest.mark.parametrize(
    ("doing", "status", "why"),
    [
        (
            {"after": "y[1]+=1"},
            "incorrect",
            "y[1] is 2.02391, expected 1.02391; 1 of 5 elements are wrong",
        ),
        (
            {"before": "n=3"},
            "incorrect",
            "y[3] is -0.880532, expected 1.70184; 2 of 5 elements are wrong",
        ),
        ({"after": "y[5]=0"}, "incorrect", "it wrote after the tensor y"),
        ({"after": "y[-1]=0"}, "incorrect", "it wrote before the tensor y"),
        ({"after": "((float*)x)[0]=0"}, "incorrect", "it changed its input x"),
        ({"before": "*(volatile int*)0=1"}, "crash", "killed by SIGSEGV"),
        ({"before": "abort()"}, "crash", "killed by SIGABRT"),
        ({"before": "_exit(3)"}, "crash", "exit status 3"),
        ({"before": 'text="no luck"; return 1'}, "launch error", "no luck"),
        (
            {"before": 'for (int f = 3; f < 30; f++) (void)!write(f, "?\\n", 2)'},
            "timeout",
            "no answer in 2 s",
        ),
        ({"before": "for(;;)pause()"}, "timeout", "no answer in 2 s"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_whatever_a_program_does_is_a_result(bench, case, libraries, doing, status, why) -> None:
    answer = bench.check_program(case, program(libraries(**doing)), 0)
    assert (answer.status, answer.why) == (status, why)
    after = bench.check_program(case, program(libraries()), 0)
    assert after.status == "ok", "the next one is not harmed"


def test_a_library_that_is_none(bench, case, tmp_path) -> None:
    (tmp_path / "lib.so").write_text("no library")
    answer = bench.check_program(case, program(str(tmp_path / "lib.so")), 0)
    assert answer.status == "launch error"
    assert answer.why.startswith("the library cannot be opened")


def test_what_another_program_left_in_the_process(bench, case, libraries) -> None:
    """A crash there is not believed; a launcher's own refusal is, and the process serves on."""
    marks = program(libraries(after='setenv("LEFT","1",1)'))
    dies = program(libraries(before='if (getenv("LEFT")) abort()'))
    refuses = program(libraries(before='if (getenv("LEFT")) { text="no"; return -1; }'))
    for candidate, status in (
        (marks, "ok"),
        (dies, "ok"),
        (marks, "ok"),
        (refuses, "launch error"),
    ):
        assert bench.check_program(case, candidate, 0).status == status
    assert bench.check_program(case, refuses, 1).status == "launch error"


def test_a_hang_while_timing_ends_by_what_was_expected(
    runner, case, libraries, monkeypatch
) -> None:
    monkeypatch.setattr("tilusbuild.tune.bench.bench._GRACE_SECONDS", 1.0)
    slow = program(libraries(before="static int calls; if (calls++) for(;;)pause()"))
    bench = DeviceBench(runner, "cpu", 0, limit=1000.0)
    with closing(bench):
        assert bench.check_program(case, slow, 0).status == "ok"
        answer = bench.time_program(case, slow, 0, 1e-6)
    assert answer == Answer("timeout", answer.cost, why="no answer in 1 s")


def test_a_case_that_cannot_be_loaded_is_no_program_s_fault(
    bench, case, libraries, monkeypatch
) -> None:
    want = os.path.join(case.directory, "y.want")
    os.truncate(want, 1 << 29)  # longer to read than there is time
    with monkeypatch.context() as patch:
        patch.setattr("tilusbuild.tune.bench.bench._SETUP_SECONDS", 0.001)
        with pytest.raises(WorkerUnusableError, match="not ready"):
            bench.check_program(case, program(libraries()), 0)
    os.unlink(want)
    with pytest.raises(WorkerUnusableError, match=r"y\.want"):
        bench.check_program(case, program(libraries()), 0)


def test_closing_the_runner_ends_the_worker(runner, bench, case, libraries) -> None:
    assert bench.check_program(case, program(libraries()), 0).status == "ok"
    runner.close()
    with pytest.raises(CancelledError):
        bench.check_program(case, program(libraries()), 1)


def test_a_worker_is_pinned_to_its_core(runner, case, libraries) -> None:
    core = max(os.sched_getaffinity(0))
    library = libraries(
        before="{ cpu_set_t cores; sched_getaffinity(0, sizeof cores, &cores);"
        f" if (CPU_COUNT(&cores) != 1 || !CPU_ISSET({core}, &cores)) return 1; }}",
        flags=("-D_GNU_SOURCE", "-include", "sched.h"),
    )
    with closing(DeviceBench(runner, "cpu", 0, limit=20.0, core=core)) as bench:
        assert bench.check_program(case, program(library), 0).status == "ok"


def test_warm_up_calls_go_before_each_sample(runner, case, libraries, tmp_path) -> None:
    count = tmp_path / "count"
    count.touch()
    library = libraries(after=f'{{FILE *f = fopen("{count}", "a"); fputc(1, f); fclose(f);}}')
    cold = write_case(case.directory, {"n": 5}, case.arguments, cold=True)
    calls = []
    for warmup in (0, 5):
        bench = DeviceBench(runner, "cpu", 0, limit=20.0, warmup=warmup)
        for number in range(2):
            before = count.stat().st_size
            assert bench.time_program(cold, program(library), number, 0.0).status == "ok"
            calls.append(count.stat().st_size - before)
        bench.close()
    # A sample is two calls: an estimate, and one in time. A worker's first sample is taken twice.
    assert calls == [4, 2, 5 + 4, 5 + 2]


def test_a_new_worker_takes_over_after_some_samples(runner, case, libraries, tmp_path) -> None:
    processes = tmp_path / "processes"
    note = f'{{FILE *f = fopen("{processes}", "a"); fprintf(f, "%d\\n", getpid()); fclose(f);}}'
    candidate = program(libraries(after=note))
    workers = []
    with closing(DeviceBench(runner, "cpu", 0, limit=20.0)) as bench:
        bench.check_program(case, candidate, 0)
        for number in (0, SAMPLES_PER_WORKER - 1, SAMPLES_PER_WORKER, SAMPLES_PER_WORKER):
            assert bench.time_program(case, candidate, number, 0.0).status == "ok"
            workers.append(processes.read_text().split()[-1])
    first, second, third, fourth = workers
    assert first == second != third == fourth


def test_the_lock_of_a_device_is_never_made_through_a_link(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path, elsewhere = tmp_path / "tilusbuild-tune-cpu.lock", tmp_path / "elsewhere"
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a link"), lock_device("cpu", lambda: None):
        pass
    assert not elsewhere.exists()
    path.unlink()
    elsewhere.write_text("of a person")
    elsewhere.chmod(0o600)
    os.link(elsewhere, path)
    with pytest.raises(OSError, match="not a lock of tilusbuild"), lock_device("cpu", lambda: None):
        pass
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o600
    path.unlink()
    with lock_device("cpu", lambda: None):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_worker_that_cannot_be_asked_is_not_waited_for(
    bench, case, libraries, monkeypatch
) -> None:
    """And its program is not said to have crashed: it was the machine."""

    def sendall(channel: socket.socket, data: bytes) -> None:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    good = program(libraries())
    assert bench.check_program(case, good, 0).status == "ok"
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendall", sendall)
        with pytest.raises(WorkerUnusableError, match="No buffer space"):
            bench.time_program(case, good, 0, 0.0)
