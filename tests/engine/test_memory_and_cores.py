"""Admission by memory and the count of processors, read from files of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilusbuild.engine.admission import UNKNOWN, Memory
from tilusbuild.engine.cores import usable_cores
from tilusbuild.engine.fake import FakeJob
from tilusbuild.engine.history import NOTHING, Estimate, History

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 16 GiB free, and ourselves in the cgroup /build/job."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {16 * GIB // 1024} kB\n")
    (tmp_path / "membership").write_text("1:name=systemd:/x\n0::/build/job\n")
    (tmp_path / "cgroup/build/job").mkdir(parents=True)
    return tmp_path


def memory(machine: Path) -> Memory:
    return Memory(str(machine / "meminfo"), str(machine / "cgroup"), str(machine / "membership"))


def limit(machine: Path, group: str, maximum: str, current: int, inactive: int) -> None:
    folder = machine / "cgroup" / group
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_compiles_start_while_their_predicted_sum_fits(machine: Path) -> None:
    room = memory(machine)
    assert room.admits(4 * GIB, [4 * GIB])
    assert room.admits(4 * GIB, [4 * GIB] * 2)
    assert not room.admits(4 * GIB, [4 * GIB] * 3)


def test_an_unknown_compile_is_reckoned_with_a_guess(machine: Path) -> None:
    room = memory(machine)
    assert room.admits(None, [UNKNOWN] * 20)
    assert not room.admits(None, [0] * 40)


def test_what_others_took_meanwhile_counts(machine: Path) -> None:
    room = memory(machine)
    (machine / "meminfo").write_text(f"MemAvailable: {GIB // 1024} kB\n")
    assert not room.admits(2 * GIB, [GIB])
    assert room.admits(GIB // 2, [GIB])


def test_the_tightest_cgroup_counts_and_droppable_cache_is_free(machine: Path) -> None:
    limit(machine, "build/job", "max", 0, 0)
    limit(machine, "build", str(4 * GIB), 3 * GIB, 2 * GIB)
    assert memory(machine).free() == 3 * GIB


def test_a_system_that_does_not_say_refuses_nothing(tmp_path: Path) -> None:
    room = memory(tmp_path)
    assert room.free() is None
    assert room.admits(1 << 60, [1 << 60])


def test_quotas_limit_the_cores(machine: Path) -> None:
    def cores() -> int:
        return usable_cores(str(machine / "cgroup"), str(machine / "membership"))

    everything = len(os.sched_getaffinity(0))
    assert cores() == everything
    quota = machine / "cgroup/build/cpu.max"
    for text, expected in (
        ("max 100000", everything),
        ("100000 100000", 1),
        ("1000 100000", 1),
        ("150000 100000", min(2, everything)),
        ("garbage", everything),
        ("1 0", everything),
    ):
        quota.write_text(text)
        assert cores() == expected


def test_history_knows_a_schedule_else_its_instance_else_all() -> None:
    history = History(None)
    known, sibling = FakeJob("a", index=0), FakeJob("b", index=1)
    stranger = FakeJob("c", script="norm")
    assert history.estimate(known) == NOTHING
    history.record(known, 2.0, 100)
    history.record(FakeJob("d", index=2), 4.0, 300)
    assert history.estimate(known) == Estimate(2.0, 100)
    assert history.estimate(sibling) == Estimate(3.0, 300)
    assert history.estimate(stranger) == Estimate(3.0, 300)


def test_history_outlives_the_run_and_an_edit_of_the_template(tmp_path: Path) -> None:
    first = History(str(tmp_path / "state"))
    first.record(FakeJob("before the edit"), 2.0, 100)
    first.save()
    second = History(str(tmp_path / "state"))
    assert second.estimate(FakeJob("after the edit")) == Estimate(2.0, 100)


@pytest.mark.parametrize("record", [None, 1, [], [1], ["1", 2], [-1, 2], [1e300, 2], [1, "2"]])
def test_a_history_record_of_a_wrong_shape_is_ignored(record: object) -> None:
    history = History(None)
    history._file.put("matmul/sm_90a#0", record)
    assert history.estimate(FakeJob("a")) == NOTHING
