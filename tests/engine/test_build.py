"""The build loop against doubles: what is compiled, how often, and what the summary says of it."""

import errno
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from support.fake_engine import OPTIONS, FakeCompiler, FakeJob, FakeStore, Listener, built, failed
from support.processes import no_thread_left
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.events import Result, Summary
from tilusbuild.engine.history import History
from tilusbuild.engine.running import BuildConfig
from tilusbuild.errors import input_error
from tilusbuild.process.base import WorkerRun
from tilusbuild.status import Cause, Compiled

FULL = "the disk is full, or has no inodes left (`df -i`)"


def jobs(count: int, script: str = "matmul") -> list[FakeJob]:
    return [FakeJob(f"{script} {i}", script=script, index=i) for i in range(count)]


def run(
    plan: Sequence[FakeJob],
    store: FakeStore | None = None,
    compiler: FakeCompiler | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> Result:
    with no_thread_left():
        return build_jobs(
            plan,
            store or FakeStore(),
            compiler or FakeCompiler(),
            listener or Listener(),
            BuildConfig(**{"jobs": 4, **options}),
        )


def columns(summary: Summary) -> dict[str, int]:
    names = ("compiled", "cached", "failed", "pruned", "crashed", "skipped")
    counts = {name: getattr(summary, name) for name in names}
    assert sum(counts.values()) == summary.programs
    return {name: count for name, count in counts.items() if count}


def only_failing(*texts: str, result: Compiled | None = None) -> FakeCompiler:
    return FakeCompiler(
        lambda job: (result or failed()) if cast("FakeJob", job).text in texts else built()
    )


def test_a_failure_is_a_result_and_is_not_tried_again() -> None:
    store, compiler = FakeStore(), only_failing("matmul 3")
    first = run(jobs(10), store, compiler).summary
    second = run(jobs(10), store, compiler).summary
    assert columns(first) == {"compiled": 9, "failed": 1}
    assert columns(second) == {"cached": 9, "failed": 1}
    assert (second.attempts, first.exit_status, second.exit_status) == (0, 0, 0)
    assert run(jobs(10), store, compiler, strict=True).summary.exit_status == 1
    assert compiler.runs["matmul 3"] == 1

    pruned = failed("spills 12 bytes", status="pruned")
    summary = run(jobs(3), compiler=only_failing("matmul 1", result=pruned), strict=True).summary
    assert columns(summary) == {"compiled": 2, "pruned": 1}
    assert summary.exit_status == 0


def test_a_script_fails_when_its_default_does_or_when_nothing_of_it_builds() -> None:
    default = FakeJob("matmul default", index=9, is_default=True)
    result = run([*jobs(3), default, *jobs(2, "norm")], compiler=only_failing(default.text))
    assert [(v.script, v.ok) for v in result.summary.scripts] == [("matmul", False), ("norm", True)]
    assert result.summary.scripts[0].reason == "its default schedule does not compile"
    assert result.summary.exit_status == 1
    none = run(jobs(2), compiler=only_failing("matmul 0", "matmul 1")).summary
    assert none.scripts[0].reason == "none of its schedules builds"
    assert none.exit_status == 1


def test_only_a_compile_on_a_worker_has_one_in_its_event() -> None:
    listener = Listener()
    remote_result = replace(built(), elsewhere=WorkerRun("grpc://there", "w-7"))
    compiler = FakeCompiler(lambda job: remote_result if job.index == 1 else built())
    run(jobs(3), compiler=compiler, listener=listener)
    workers = {event.index: event.worker for event in listener.named("finished")}
    assert workers == {0: "", 1: "w-7", 2: ""}


def test_keep_going_stops_after_so_many_failures() -> None:
    compiler = FakeCompiler(lambda job: failed())
    summary = run(jobs(20), compiler=compiler, jobs=1, keep_going=3).summary
    assert columns(summary) == {"failed": 3, "skipped": 17}
    assert summary.exit_status == 1


def make_instance(count: int = 20, script: str = "matmul") -> list[FakeJob]:
    """The schedules of an instance; the one in the middle is its default."""
    plan = jobs(count, script)
    plan[count // 2].is_default = True
    return plan


def test_an_error_that_all_schedules_seem_to_share_is_not_compiled_twenty_times() -> None:
    store, listener = FakeStore(), Listener()
    compiler = FakeCompiler(lambda job: failed() if job.script == "matmul" else built())
    plan = [*make_instance(), *make_instance(5, "other")]
    result = run(plan, store, compiler, listener, jobs=1)
    assert columns(result.summary) == {"compiled": 5, "failed": 2, "skipped": 18}
    (held,) = listener.named("held_back")
    assert (held.label, held.programs) == ("matmul/10 sm_90a", 18)
    assert held.error == "kernels/matmul.cu.j2(3): error: no"
    assert result.summary.exit_status == 1

    # What was recorded says so again, and an edit that mends it compiles everything.
    again = run(plan, store, compiler, jobs=1).summary
    assert (again.attempts, again.skipped) == (0, 18)
    mended = [*jobs(20, "mended")]
    mended[10].is_default = True
    assert run(mended, store, FakeCompiler(), jobs=1).summary.compiled == 20


def test_with_k_0_every_schedule_is_compiled() -> None:
    summary = run(
        make_instance(), compiler=FakeCompiler(lambda job: failed()), keep_going=0
    ).summary
    assert columns(summary) == {"failed": 20}


@pytest.mark.parametrize(
    "log",
    [
        lambda job: f"source.cu({job.index}): error: no",
        lambda job: "a block of 2048 threads is too large",
        lambda job: "source.cu(3): error: " + ("no" if job.index == 10 else "undefined"),
    ],
    ids=["another line", "no place", "another error"],
)
def test_errors_that_schedules_do_not_share_hold_nothing_back(log) -> None:
    compiler = FakeCompiler(lambda job: failed(log(job)))
    assert columns(run(make_instance(), compiler=compiler, jobs=1).summary) == {"failed": 20}
    # And a schedule that builds keeps the others.
    compiler = FakeCompiler(lambda job: built() if cast("FakeJob", job).index == 0 else failed())
    assert columns(run(make_instance(), compiler=compiler, jobs=1).summary) == {
        "compiled": 1,
        "failed": 19,
    }


def test_a_dry_run_compiles_and_writes_nothing() -> None:
    store, compiler, listener = FakeStore(), FakeCompiler(), Listener()
    summary = run(jobs(3), store, compiler, listener, dry_run=True).summary
    assert columns(summary) == {"skipped": 3}
    assert not compiler.runs
    assert not store.stages
    assert [event.label for event in listener.named("would_compile")] == [
        f"matmul/{i} sm_90a" for i in range(3)
    ]
    assert summary.exit_status == 0


def test_defaults_come_first_then_the_longest_by_history_then_plan_order() -> None:
    history = History(None)
    plan = [*jobs(4), FakeJob("default", index=4, is_default=True)]
    for job, seconds in zip(plan, (1.0, 5.0, 1.0, 3.0, 0.5), strict=True):
        history.record_compile(job, seconds, 0)
    compiler = FakeCompiler()
    build_jobs(plan, FakeStore(), compiler, Listener(), BuildConfig(jobs=1, history=history))
    assert compiler.order == ["default", "matmul 1", "matmul 3", "matmul 0", "matmul 2"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_program_locked_by_another_builder_comes_last(dies: bool) -> None:
    store, compiler, listener = FakeStore(), FakeCompiler(), Listener()
    plan = jobs(5)
    other = store.lock_program(plan[0].hash, wait=False)
    assert other.__enter__()

    def end_elsewhere(event: Any) -> None:
        if event.event == "finished" and event.done == 4:
            stage = store.open_stage()
            if not dies:
                stage.publish_program(plan[0].hash, plan[0].text, OPTIONS, {"status": "built"})
            other.__exit__(None, None, None)

    listener.react = end_elsewhere
    summary = run(plan, store, compiler, listener).summary
    assert columns(summary) == ({"compiled": 5} if dies else {"compiled": 4, "cached": 1})
    assert compiler.runs["matmul 0"] == dies
    assert [event.label for event in listener.named("waiting")] == [plan[0].label]


def test_a_full_disk_stops_the_build_cleanly_and_records_nothing() -> None:
    store = FakeStore()
    store.publish_error = OSError(errno.ENOSPC, "No space left on device")
    compiler = FakeCompiler()
    summary = run(jobs(50), store, compiler, jobs=2).summary
    assert summary.error == f"No space left on device: {store.stages[0].path}\n  {FULL}"
    assert columns(summary) == {"skipped": 50}
    assert compiler.runs.total() < 50
    assert summary.exit_status == 1
    assert not store.entries
    assert not any(stage.open for stage in store.stages)
    store.publish_error = None
    assert columns(run(jobs(50), store).summary) == {"compiled": 50}


def test_a_full_disk_is_not_a_failed_schedule() -> None:
    store = FakeStore()
    compiler = FakeCompiler(lambda job: failed("ld: no space", "crashed", Cause.DISK))
    summary = run(jobs(1), store, compiler).summary
    assert summary.error is not None
    assert summary.error.startswith("the compiler could not write")
    assert not store.entries


def test_a_compile_killed_for_memory_is_tried_once_more_alone() -> None:
    running: set[str] = set()
    beside: list[set[str]] = []
    guard = threading.Lock()

    def script(job: Any) -> Compiled:
        with guard:
            running.add(job.text)
            if job.text == "matmul 1":
                beside.append(set(running))
        try:
            first = job.text == "matmul 1" and len(beside) == 1
            return failed("Killed", "crashed", Cause.KILLED) if first else built()
        finally:
            running.discard(job.text)

    compiler, listener = FakeCompiler(script), Listener()
    summary = run(jobs(8), compiler=compiler, listener=listener).summary
    assert columns(summary) == {"compiled": 8}
    assert compiler.runs["matmul 1"] == 2
    assert compiler.order[-1] == "matmul 1"
    assert beside[-1] == {"matmul 1"}
    assert [event.label for event in listener.named("retry")] == ["matmul/1 sm_90a"]


@pytest.mark.parametrize(
    ("cause", "retries"),
    [
        (Cause.OUTSIDE, 0),
        (Cause.TOOL, 0),
        (Cause.CRASH, 4),  # of a whole build, as they run alone
        (Cause.MEMORY, 9),
    ],
)
def test_so_many_accidents_are_retried(cause: Cause, retries: int) -> None:
    compiler = FakeCompiler(lambda job: failed("no", "crashed", cause))
    assert columns(run(jobs(9), compiler=compiler).summary) == {"crashed": 9}
    assert sum(compiler.runs.values()) == 9 + retries


def test_a_compiler_is_cancelled_by_the_object_that_it_was_given() -> None:
    """By its hash, a program's second compile would be killed for the first."""
    job_arguments: list[Any] = []

    def compiled(job: Any) -> Compiled:
        job_arguments.append(job)
        return built()

    compiler = FakeCompiler(compiled)
    job = FakeJob("matmul 0")
    run([job], compiler=compiler)
    run([job], compiler=compiler)
    assert job_arguments[0] is not job_arguments[1]


def test_a_job_that_no_longer_renders_what_was_planned_is_not_compiled() -> None:
    plan = jobs(1)
    plan[0].text = "edited since"
    compiler = FakeCompiler()
    listener = Listener()
    summary = run(plan, compiler=compiler, listener=listener).summary
    assert not compiler.runs
    assert columns(summary) == {"crashed": 1}
    (finished,) = listener.named("finished")
    assert (finished.status, summary.exit_status) == ("changed", 1)
    assert finished.reason == "an input changed while it was built; build again"


def test_an_input_that_vanished_stops_the_build_with_its_message() -> None:
    class Vanished(FakeJob):
        def render(self) -> Any:
            raise input_error("kernels/matmul.cu.j2 is gone")

    summary = run([Vanished("x")]).summary
    assert summary.error == "error: kernels/matmul.cu.j2 is gone"
    assert summary.exit_status == 1


def test_our_own_bug_is_raised_after_the_workers_ended() -> None:
    def broken(job: Any) -> Compiled:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        run(jobs(5), compiler=FakeCompiler(broken))


def test_equal_failures_are_one_group_with_a_sample_and_what_reproduces_it() -> None:
    def script(job: Any) -> Compiled:
        if job.index % 2:
            return failed(f'source.cu({job.index}): error: tile {job.index} is too wide for "f16"')
        return failed("source.cu(7): error: no instance matches") if job.index == 4 else built()

    store = FakeStore()
    plan = jobs(8)
    store.logs = {job.hash: f"source.cu({job.index}): error: x\ncontext\n" for job in plan}
    groups = run(plan, store, FakeCompiler(script)).summary.failures
    assert [(group.count, len(group.labels)) for group in groups] == [(4, 4), (1, 1)]
    assert groups[1].error == "error: no instance matches"
    assert groups[1].message.startswith("kernels/matmul.cu.j2(4): error: x")
    assert groups[1].compile_sh == f"/cache/programs/{plan[4].hash}/module/compile.sh"


def test_the_heavy_side_lives_only_while_it_compiles() -> None:
    alive = threading.Semaphore(3)

    class Heavy(FakeJob):
        def render(self) -> Any:
            assert alive.acquire(blocking=False), "more than -j recipes are alive"
            return super().render()

    def script(job: Any) -> Compiled:
        alive.release()
        return built()

    plan = [Heavy(f"matmul {i}", index=i) for i in range(50)]
    assert columns(run(plan, compiler=FakeCompiler(script), jobs=3).summary) == {"compiled": 50}
