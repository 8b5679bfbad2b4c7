"""Random plans, outcomes, histories and widths against an oracle that knows no threads."""

import threading
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, Listener, built, failed
from support.processes import no_thread_left
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.history import History
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import ACCIDENTS, Compiled

RETRIED = ("crashed", "no_output")
OUTCOMES = ("built", "failed", "pruned", "crashed", "timed_out", "no_output", "killed")
COLUMNS = {"built": "compiled", "failed": "failed", "pruned": "pruned"}
"""Of a summary; the others are crashed."""

programs = st.dictionaries(
    st.integers(0, 30).map(lambda n: f"program {n}"), st.sampled_from(OUTCOMES), max_size=25
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, str], list[FakeJob]]:
    """What comes of each program, and jobs that ask for them, some for the same."""
    outcomes = draw(programs)
    if not outcomes:
        return outcomes, []
    asked = draw(st.lists(st.sampled_from(sorted(outcomes)), max_size=40))
    scripts = draw(st.lists(st.sampled_from(("a", "b")), min_size=len(asked), max_size=len(asked)))
    default = draw(st.integers(0, 9))
    jobs = [
        FakeJob(text, script=script, index=index, is_default=index == default)
        for index, (text, script) in enumerate(zip(asked, scripts, strict=True))
    ]
    return outcomes, jobs


def compiler_of(outcomes: dict[str, str]) -> FakeCompiler:
    def script(job: Any) -> Compiled:
        status = outcomes[job.text]
        return built() if status == "built" else failed(status=status)

    return FakeCompiler(script)


@settings(max_examples=150)
@given(plans(), st.integers(1, 9), st.sets(st.integers(0, 30)), st.data())
def test_a_build_gives_what_each_program_gives_alone(plan, width, before, data) -> None:
    outcomes, jobs = plan
    store, history = FakeStore(), History(None)
    known = [job for job in jobs if job.index in before]
    build_jobs(
        known, store, compiler_of(outcomes), Listener(), BuildConfig(keep_going=0, jobs=width)
    )
    recorded = set(store.entries)
    for job in jobs:
        history.record_compile(job, data.draw(st.floats(0, 100)), 0)

    compiler, listener = compiler_of(outcomes), Listener()
    config = BuildConfig(keep_going=0, jobs=width, history=history)
    with no_thread_left():
        result = build_jobs(jobs, store, compiler, listener, config)
    asked = {job.text: job for job in jobs}
    assert result.statuses == {job.hash: outcomes[text] for text, job in asked.items()}
    compiled = [text for text, job in asked.items() if job.hash not in recorded]
    ends = Counter(outcomes[text] for text in compiled)
    retried = min(4, sum(ends[status] for status in RETRIED))
    assert sum(compiler.runs.values()) == len(compiled) + ends["killed"] + retried
    assert max(compiler.runs.values(), default=0) <= 2
    assert set(compiler.runs) == set(compiled)
    summary = result.summary
    assert summary.programs == len(asked)
    columns = Counter(COLUMNS.get(outcomes[text], "crashed") for text in asked)
    columns["cached"] = [outcomes[t] for t in asked if t not in compiled].count("built")
    columns["compiled"] -= columns["cached"]
    assert {name: getattr(summary, name) for name in columns} == columns
    assert summary.skipped == 0
    assert summary.attempts == compiler.runs.total()
    assert set(store.entries) == {
        job.hash for text, job in asked.items() if outcomes[text] in ("built", "failed", "pruned")
    }
    assert not any(stage.open for stage in store.stages)
    assert not store.held
    for verdict in summary.scripts:
        mine = [outcomes[job.text] for job in jobs if job.script == verdict.script]
        defaults = {outcomes[j.text] for j in jobs if j.script == verdict.script and j.is_default}
        assert (verdict.schedules, verdict.built) == (len(mine), mine.count("built"))
        right = defaults <= {"built"} and "built" in mine and not {*mine} & {*ACCIDENTS}
        assert verdict.ok == right, (verdict, mine)
    assert summary.exit_status == any(not verdict.ok for verdict in summary.scripts)
    assert listener.events[-1] is summary


@settings(max_examples=40)
@given(plans(), st.integers(1, 4), st.integers(2, 4))
def test_builders_that_share_a_store_never_compile_a_program_twice(plan, width, builders) -> None:
    outcomes, jobs = plan
    answered = {"built", "failed", "pruned"}
    outcomes = {text: s if s in answered else "failed" for text, s in outcomes.items()}
    store, compiler = FakeStore(), compiler_of(outcomes)
    statuses: list[object] = []

    def builder() -> None:
        result = build_jobs(
            jobs, store, compiler, Listener(), BuildConfig(keep_going=0, jobs=width)
        )
        statuses.append(result.statuses)

    threads = [threading.Thread(target=builder) for _ in range(builders)]
    with no_thread_left():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(compiler.runs) == {job.text for job in jobs}
    assert set(compiler.runs.values()) <= {1}
    assert statuses == [{job.hash: outcomes[job.text] for job in jobs}] * builders


@settings(max_examples=60)
@given(plans(), st.integers(1, 5), st.integers(1, 20))
def test_a_crashed_build_keeps_what_is_done_and_the_next_one_completes_it(
    plan: tuple[dict[str, str], list[FakeJob]], width: int, breaks_at: int
) -> None:
    outcomes, jobs = plan
    store, first = FakeStore(), compiler_of(outcomes)
    healthy = first._script

    def breaking(job: Any) -> Compiled:
        if first.runs.total() >= breaks_at:
            raise OSError(28, "No space left on device")
        return healthy(job)

    first._script = breaking
    with no_thread_left():
        build_jobs(jobs, store, first, Listener(), BuildConfig(keep_going=0, jobs=width))
    kept = set(store.entries)
    second = compiler_of(outcomes)
    result = build_jobs(jobs, store, second, Listener(), BuildConfig(keep_going=0, jobs=width))
    assert result.statuses == {job.hash: outcomes[job.text] for job in jobs}
    assert not kept & {job.hash for job in jobs if job.text in second.runs}
