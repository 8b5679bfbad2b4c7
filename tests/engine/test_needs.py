"""Programs that need others: compiled when all of those are built, and never before."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, Listener, built, failed
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import Compiled, Status


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[FakeJob], set[str]]:
    """Objects, and libraries of some of them in any place of the plan; who does not compile."""
    count = draw(st.integers(1, 12))
    numbers = range(count)
    objects = [FakeJob(f"object {n}", script="objects", index=n, is_part=True) for n in numbers]
    hashes = [job.hash for job in objects]
    libraries = [
        FakeJob(
            f"library {n}",
            script=f"library {n}",
            is_part=True,
            needs=tuple(draw(st.lists(st.sampled_from(hashes), min_size=1, unique=True))),
        )
        # More than the queue looks at to find one that fits.
        for n in range(draw(st.integers(1, 40)))
    ]
    jobs = draw(st.permutations([*objects, *libraries]))
    return jobs, draw(st.sets(st.sampled_from([job.text for job in objects])))


@given(graphs(), st.integers(1, 5), st.sets(st.integers(0, 11)))
def test_what_needs_others_comes_after_them_or_not_at_all(graph, width, before) -> None:
    jobs, broken = graph
    store = FakeStore()

    def outcome(job: Any) -> Compiled:
        for need in job.needs:
            entry = store.find_entry(need)
            assert entry is not None
            assert entry.status == Status.BUILT, "its needs are in the store"
        return failed() if job.text in broken else built()

    config = BuildConfig(jobs=width, keep_going=0)
    known = [replace(job) for job in jobs if not job.needs and job.index in before]
    build_jobs(known, store, FakeCompiler(outcome), Listener(), config)
    result = build_jobs(jobs, store, FakeCompiler(outcome), Listener(), config)
    texts = {job.hash: job.text for job in jobs}
    for job in jobs:
        if any(texts[need] in broken for need in job.needs):
            assert result.statuses[job.hash] == Status.SKIPPED
        else:
            expected = Status.FAILED if job.text in broken else Status.BUILT
            assert result.statuses[job.hash] == expected
    assert result.summary.exit_status == bool(broken)


def test_a_dry_run_and_a_stop_leave_no_library_waiting() -> None:
    first = FakeJob("object", is_part=True)
    library = FakeJob("library", needs=(first.hash,), is_part=True)
    store = FakeStore()
    dry = build_jobs(
        [library, first], store, FakeCompiler(lambda job: built()), Listener(),
        BuildConfig(dry_run=True),
    )  # fmt: skip
    assert set(dry.statuses.values()) == {Status.SKIPPED}
    stopped = build_jobs(
        [library, first], store, FakeCompiler(lambda job: failed()), Listener(),
        BuildConfig(keep_going=1),
    )  # fmt: skip
    assert stopped.statuses == {first.hash: Status.FAILED, library.hash: Status.SKIPPED}
    assert stopped.summary.exit_status == 1
