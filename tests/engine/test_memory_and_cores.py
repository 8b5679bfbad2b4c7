"""Admission by memory and load, and the count of processors, read from files of the test's own."""

import itertools
import os
from pathlib import Path

import pytest

from support.fake_engine import FakeJob
from tilusbuild.engine.history import NOTHING, Estimate, History
from tilusbuild.engine.running import UNKNOWN_PEAK, MemoryLimit, make_load_limit
from tilusbuild.process.machine import Machine

GIB = 1 << 30
EVERYTHING = len(os.sched_getaffinity(0))

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


class Files:
    """A machine of files. It has 16 GiB free; we are in the groups /build/job (v2) and /v1/job."""

    def __init__(self, root: Path, mounts: str) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {16 * GIB // 1024} kB\n")
        self.write("proc/self/cgroup", "9:memory:/v1/job\n3:cpu,cpuacct:/v1/job\n0::/build/job\n")
        self.write("proc/self/mountinfo", mounts)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def limit(
        self, group: str, maximum: str, current: int, inactive: int, high: str = "max"
    ) -> None:
        directory = f"sys/fs/cgroup/{group}"
        self.write(f"{directory}/memory.max", f"{maximum}\n")
        self.write(f"{directory}/memory.high", f"{high}\n")
        self.write(f"{directory}/memory.current", f"{current}\n")
        self.write(f"{directory}/memory.stat", f"anon 1\ninactive_file {inactive}\n")

    def limit_v1(self, group: str, maximum: int, used: int, inactive: int) -> None:
        directory = f"sys/fs/cgroup/memory/{group}"
        self.write(f"{directory}/memory.limit_in_bytes", f"{maximum}\n")
        self.write(f"{directory}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"{directory}/memory.stat", f"inactive_file 7\ntotal_inactive_file {inactive}\n")

    @property
    def machine(self) -> Machine:
        return Machine(str(self.root))

    @property
    def memory(self) -> MemoryLimit:
        """Each look is a second after the one before."""
        return MemoryLimit(self.machine, map(float, itertools.count()).__next__)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, UNIFIED)


@pytest.fixture
def hybrid(tmp_path: Path) -> Files:
    return Files(tmp_path, HYBRID)


def test_compiles_start_while_their_predicted_sum_fits(files: Files) -> None:
    limit = files.memory
    assert limit.can_start(4 * GIB, [4 * GIB] * 2)
    assert not limit.can_start(4 * GIB, [4 * GIB] * 3)
    assert limit.can_start(None, [0] * (16 * GIB // UNKNOWN_PEAK - 2))
    assert not limit.can_start(None, [0] * (16 * GIB // UNKNOWN_PEAK))


def test_memory_taken_by_others_and_beyond_our_estimate_counts(files) -> None:
    room = files.memory
    files.write("proc/meminfo", f"MemAvailable: {GIB // 1024} kB\n")
    assert not room.can_start(2 * GIB, [GIB])
    assert room.can_start(GIB // 2, [GIB])


def test_the_tightest_group_counts_and_droppable_cache_is_free(files: Files) -> None:
    files.limit("build/job", "max", 0, 0)
    files.limit("build", str(4 * GIB), 3 * GIB, 2 * GIB)
    assert files.machine.measure_free_memory() == 3 * GIB
    files.limit("build/job", str(8 * GIB), GIB, 0, high=str(2 * GIB))
    assert files.machine.measure_free_memory() == GIB


def test_the_groups_of_version_1_limit_too_the_outer_ones_included(hybrid: Files) -> None:
    hybrid.limit_v1("v1/job", (1 << 63) - 4096, 0, 0)
    assert hybrid.machine.measure_free_memory() == 16 * GIB
    hybrid.limit_v1("v1", 6 * GIB, 5 * GIB, GIB)
    assert hybrid.machine.measure_free_memory() == 2 * GIB
    hybrid.limit_v1("", 3 * GIB, 3 * GIB, 0)
    assert hybrid.machine.measure_free_memory() == 0


def test_a_container_that_sees_an_inner_part_of_the_hierarchy(tmp_path: Path) -> None:
    files = Files(tmp_path, UNIFIED.replace(" / /sys", " /docker/12ab /sys"))
    files.write("proc/self/cgroup", "0::/docker/12ab/job\n")
    files.limit("", str(2 * GIB), GIB, 0)
    assert files.machine.measure_free_memory() == GIB
    files.write("proc/self/cgroup", "0::/../../elsewhere\n")
    assert files.machine.measure_free_memory() == GIB


def test_while_memory_is_pressed_nothing_starts_beside_what_runs(files: Files) -> None:
    room = files.memory
    calm = "some avg10=90.00 avg60=0.00 total=1\nfull avg10=1.00 avg60=0.00 total=1\n"
    files.write("proc/pressure/memory", calm)
    files.write("sys/fs/cgroup/build/memory.pressure", calm)
    assert room.can_start(GIB, [GIB])
    pressed = calm.replace("full avg10=1", "full avg10=40")
    files.write("sys/fs/cgroup/build/memory.pressure", pressed)
    assert not room.can_start(GIB, [GIB])


def test_what_is_free_is_not_read_again_at_once(files: Files) -> None:
    times = iter([0.0, 0.04, 0.06])
    room = MemoryLimit(files.machine, times.__next__)
    assert room.can_start(GIB, [GIB])
    files.write("proc/meminfo", "MemAvailable: 1 kB\n")
    assert room.can_start(GIB, [GIB])
    assert not room.can_start(GIB, [GIB])


def test_a_system_that_does_not_say_refuses_nothing(tmp_path: Path) -> None:
    room = MemoryLimit(Machine(str(tmp_path / "nothing")))
    assert room.can_start(1 << 60, [1 << 60])


@pytest.mark.parametrize("text", ["garbage", "1 2 3 - x", " - cgroup2 x", "\xff"])
def test_mounts_that_make_no_sense_are_no_limit(tmp_path: Path, text: str) -> None:
    files = Files(tmp_path, text)
    assert files.machine.measure_free_memory() == 16 * GIB
    assert files.machine.count_cores() == EVERYTHING


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", EVERYTHING),
        ("100000 100000", 1),
        ("1000 100000", 1),
        ("150000 100000", min(2, EVERYTHING)),
        ("garbage", EVERYTHING),
        ("1 0", EVERYTHING),
    ],
)
def test_quotas_limit_the_cores(files: Files, quota: str, expected: int) -> None:
    assert files.machine.count_cores() == EVERYTHING
    files.write("sys/fs/cgroup/build/cpu.max", quota)
    assert files.machine.count_cores() == expected


def test_quotas_of_version_1_limit_the_cores(hybrid: Files) -> None:
    hybrid.write("sys/fs/cgroup/cpu,cpuacct/v1/cpu.cfs_period_us", "100000\n")
    hybrid.write("sys/fs/cgroup/cpu,cpuacct/v1/cpu.cfs_quota_us", "-1\n")
    assert hybrid.machine.count_cores() == EVERYTHING
    hybrid.write("sys/fs/cgroup/cpu,cpuacct/v1/cpu.cfs_quota_us", "100000\n")
    assert hybrid.machine.count_cores() == 1


def test_the_load_limit_adds_compiles_that_the_average_does_not_show_yet() -> None:
    def unsaid() -> tuple[float, float, float]:
        raise OSError

    quiet, busy = (lambda: (0.2, 9.0, 9.0)), (lambda: (4.0, 0.0, 0.0))
    assert make_load_limit(4.0, quiet)(None, [1] * 3)
    assert not make_load_limit(4.0, quiet)(None, [1] * 4)
    assert not make_load_limit(4.0, busy)(None, [1])
    assert not make_load_limit(0.5, quiet)(None, [1])
    assert make_load_limit(4.0, unsaid)(None, [1])


def test_a_kill_for_memory_raises_the_estimate_of_its_instance() -> None:
    history = History(None)
    known, stranger = FakeJob("a", index=0), FakeJob("c", script="norm")
    history.record_compile(known, 2.0, 100)
    history.record_kill(FakeJob("b", index=1), 500)
    assert history.estimate_job(known) == Estimate(2.0, 500)
    assert history.estimate_job(stranger) == Estimate(2.0, 100)


def test_history_knows_a_schedule_else_its_instance_else_all(tmp_path: Path) -> None:
    history = History(str(tmp_path / "state"))
    known, edited = FakeJob("a", index=0), FakeJob("edited", index=0)
    sibling, stranger = FakeJob("b", index=1), FakeJob("c", script="norm")
    assert history.estimate_job(known) == NOTHING
    history.record_compile(known, 2.0, 100)
    history.record_compile(FakeJob("d", index=2), 4.0, 300)
    history.save()
    for reader in (history, History(str(tmp_path / "state"))):
        assert reader.estimate_job(known) == reader.estimate_job(edited) == Estimate(2.0, 100)
        assert reader.estimate_job(sibling) == reader.estimate_job(stranger) == Estimate(3.0, 300)
        assert reader.find_measurement(known) == Estimate(2.0, 100)
        assert reader.find_measurement(edited) == NOTHING, "a measurement is of that very program"


@pytest.mark.parametrize("record", [None, 1, [], [1], ["1", 2], [-1, 2], [1e300, 2], [1, "2"]])
def test_a_history_record_of_a_wrong_shape_is_ignored(record: object) -> None:
    history = History(None)
    history._file.put_value("matmul/sm_90a#0", record)
    assert history.estimate_job(FakeJob("a")) == NOTHING
