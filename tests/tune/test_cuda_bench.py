"""The CUDA side of the bench on a driver that keeps "device" memory on the host, and its own clock.

What cannot be seen here: how a real device behaves. tests/gpu has that.
"""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilusbuild.process.local import LocalRunner
from tilusbuild.tune.bench import bench as bench_module
from tilusbuild.tune.bench.bench import DeviceBench, WorkerUnusableError
from tilusbuild.tune.bench.devices import SPIN
from tilusbuild.tune.bench.monitor import GpuMonitor
from tilusbuild.tune.bench.work import Candidate, write_case

Libraries = Callable[..., str]
KERNEL = "extern int fake_kernel(uint64_t); fake_kernel({nanoseconds})"


@pytest.fixture
def gpu(fake_driver, tmp_path, monkeypatch) -> Iterator[Callable[..., DeviceBench]]:
    """gpu(cold=…, FAKE_…=…): a bench on the fake GPU."""
    runner, benches = LocalRunner(), list[DeviceBench]()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver))
    monkeypatch.setenv("FAKE_GPU_LOG", str(tmp_path / "journal"))

    def make(**environment: str) -> DeviceBench:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        benches.append(DeviceBench(runner, "cuda", 0, limit=20.0))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()
    runner.close()


@pytest.fixture
def kernel(fake_driver: Path, libraries: Libraries) -> Callable[..., Candidate]:
    """kernel(nanoseconds, …): a library whose launch takes so long on the fake GPU."""

    def make(nanoseconds: int, *, after: str = "") -> Candidate:
        flags = ("-L", str(fake_driver), "-l:libcuda.so.1")
        before = KERNEL.format(nanoseconds=nanoseconds)
        path = libraries(before=before, after=after, flags=flags)
        return Candidate(0, "0" * 64, path, {})

    return make


def journal(tmp_path: Path, what: str) -> list[int]:
    lines = (tmp_path / "journal").read_text().splitlines()
    return [int(number) for name, number in map(str.split, lines) if name == what]


def test_the_device_says_what_it_is(gpu: Callable[..., DeviceBench]) -> None:
    description = gpu().describe_device()
    assert description["name"] == "Fake GPU"
    assert (description["kind"], description["arch"], description["driver"]) == (
        "cuda",
        "sm_90",
        13000,
    )
    assert description["id"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_results_are_checked_in_the_device_s_memory(gpu, case, kernel) -> None:
    bench = gpu()
    assert bench.check_program(case, kernel(1000), 0).status == "ok"
    wrong = bench.check_program(case, kernel(1000, after="y[2]=0"), 0)
    assert (wrong.status, wrong.why) == (
        "incorrect",
        "y[2] is 0, expected -1.9529; 1 of 5 elements are wrong",
    )
    beside = bench.check_program(case, kernel(1000, after="y[5]=0"), 0)
    assert (beside.status, beside.why) == ("incorrect", "it wrote after the tensor y")


def test_the_time_is_the_kernel_s_alone(gpu, case, kernel) -> None:
    """The host needs 2 us to queue something, the kernel 0.7 us to run."""
    answer = gpu().time_program(case, kernel(700), 0, 0.0)
    assert answer.seconds == pytest.approx(0.7e-6, rel=0.01)
    assert answer.note == ""


def test_the_launches_of_a_warm_sample_are_a_graph(gpu, case, kernel, tmp_path) -> None:
    """Given a device that begins a launch 5 us after the one before."""
    answer = gpu(FAKE_GPU_GAP_NS="5000").time_program(case, kernel(700), 0, 0.0)
    assert answer.seconds == pytest.approx(0.7e-6, rel=0.01)
    # An estimate of 5.7 us, and 0.2 ms of them.
    assert journal(tmp_path, "graph") == [36 * 700] * 2


def test_a_graph_for_which_there_is_no_memory_is_destroyed(gpu, case, kernel, tmp_path) -> None:
    answer = gpu(FAKE_GPU_UPLOAD="2").time_program(case, kernel(700), 0, 0.0)
    assert answer.status == "ok"
    assert journal(tmp_path, "graph") == []
    assert len(journal(tmp_path, "destroyed")) == 2  # the worker's first sample counts in no case


def test_a_launcher_that_waits_is_timed_in_its_stream(gpu, case, kernel, monkeypatch) -> None:
    monkeypatch.setattr(bench_module, "_MAX_DROPPED", 0)
    waiting = "extern int cuStreamSynchronize(void *); if (cuStreamSynchronize(stream)) return 1"
    bench = gpu(FAKE_GPU_GAP_NS="5000")
    answer = bench.time_program(case, kernel(700, after=waiting), 0, 0.0)
    assert answer.status == "ok"
    assert answer.seconds >= 5.7e-6
    assert bench.time_program(case, kernel(700), 1, 0.0).seconds == pytest.approx(0.7e-6, rel=0.01)


def test_a_delay_that_is_too_short_is_doubled(gpu, case, kernel, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bench_module, "_MAX_DROPPED", 0)
    bench = gpu(FAKE_GPU_HOST_NS="5000000")
    answer = bench.time_program(case, kernel(1_000_000), 0, 0.0)
    spins = journal(tmp_path, "spin")
    first_sample = spins[: len(spins) // 2]  # a worker's first one is taken twice
    assert spins == 2 * first_sample
    _, *tries = first_sample  # after the estimate
    assert len(tries) > 1
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(tries))
    assert answer.seconds is not None


def test_latency_that_cannot_be_hidden_is_said(gpu, case, kernel, monkeypatch) -> None:
    monkeypatch.setattr(bench_module, "_FIRST_PAUSE_SECONDS", 0.0)
    answer = gpu(FAKE_GPU_PTX="1").time_program(case, kernel(700), 0, 0.0)
    assert answer.note == "launch latency shows"


def test_a_cold_sample_fills_twice_the_cache_before_each_launch(
    gpu, case, kernel, tmp_path
) -> None:
    cold = write_case(case.directory, {"n": 5}, case.arguments, cold=True)
    answer = gpu().time_program(cold, kernel(100_000), 0, 0.0)
    assert answer.seconds == pytest.approx(100e-6, rel=0.01), "the fill is not in it"
    fills = journal(tmp_path, "fill")
    assert fills == [100 << 20] * len(fills)
    # One call warms up, and one in each of the worker's first two samples is an estimate.
    assert len(fills) == len(journal(tmp_path, "kernel")) - 3


CAPPED = "the GPU's clocks were throttled (power cap)"
SHARED = "another process was on the GPU"


@pytest.mark.parametrize("mig", ["0", "1"])
@pytest.mark.parametrize(("setting", "note"), [("THROTTLED", CAPPED), ("SHARED", SHARED)])
def test_a_disturbed_sample_is_dropped(gpu, case, kernel, setting, note, mig) -> None:
    """Given three disturbed samples, of which the worker's first one counts in no case."""
    pytest.importorskip("pynvml")
    bench = gpu(**{f"FAKE_GPU_{setting}": "3", "FAKE_GPU_MIG": mig})
    answer = bench.time_program(case, kernel(700), 0, 0.0)
    assert (answer.status, answer.note, answer.dropped) == ("ok", "", (note, note))
    assert answer.cost > 0.05 + 0.1, "the pauses count"


def test_nothing_is_waited_for_twice(gpu, case, kernel, monkeypatch) -> None:
    """Given a process that stays, then the first sample that counts follows five that do not."""
    pytest.importorskip("pynvml")
    monkeypatch.setattr(bench_module, "_FIRST_PAUSE_SECONDS", 0.0)
    bench = gpu(FAKE_GPU_SHARED="1000")
    answers = [bench.time_program(case, kernel(700), number, 0.0) for number in range(2)]
    assert [answer.note for answer in answers] == [SHARED, SHARED]
    assert [answer.dropped for answer in answers] == [(SHARED,) * 5, ()]


def test_without_the_extra_nothing_is_seen(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = GpuMonitor("00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert "tilusbuild[nvml]" in monitor.problem
    assert monitor.find_disturbance() == ""


def test_a_driver_without_nvml(gpu, case, kernel) -> None:
    pytest.importorskip("pynvml")
    bench = gpu(FAKE_GPU_NVML="9")
    assert bench.describe_device()["unwatched"] == "NVML: Driver Not Loaded"
    assert bench.time_program(case, kernel(700), 0, 0.0).note == ""


def test_a_fault_is_a_launch_error_of_its_program_only(gpu, case, kernel) -> None:
    bench = gpu()
    bad = kernel(1000, after="extern void fake_fault(void); fake_fault()")
    answer = bench.check_program(case, bad, 0)
    assert answer.status == "launch error"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in answer.why
    assert bench.check_program(case, kernel(1000), 0).status == "ok"


@pytest.mark.parametrize(
    ("setting", "text"), [("FAKE_GPU_COUNT", "there is no cuda:0"), ("FAKE_GPU_INIT", "cuInit")]
)
def test_a_driver_without_a_device(gpu, setting, text) -> None:
    with pytest.raises(WorkerUnusableError, match=text):
        gpu(**{setting: "0" if setting == "FAKE_GPU_COUNT" else "100"}).describe_device()


@pytest.mark.nvcc
def test_the_delay_kernel_assembles(tmp_path: Path) -> None:
    (tmp_path / "spin.ptx").write_bytes(SPIN.rstrip(b"\0"))
    for arch in ("sm_75", "sm_80", "sm_90a"):
        command = ["nvcc", "-cubin", f"-arch={arch}", "spin.ptx", "-o", "spin.cubin"]
        subprocess.run(command, cwd=tmp_path, check=True)
