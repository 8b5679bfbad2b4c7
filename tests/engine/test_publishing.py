"""A slow disk holds no core up: the next compile begins while the last one is published."""

import threading
from collections.abc import Mapping
from typing import Any

from support.fake_engine import FakeCompiler, FakeJob, FakeStage, FakeStore, Listener, built
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.interfaces import Job
from tilusbuild.engine.running import BuildConfig
from tilusbuild.status import Compiled


class SlowStage(FakeStage):
    """Publishes when it is allowed to."""

    def publish_program(
        self, program: str, program_txt: str, options_txt: str, meta: Mapping[str, Any], /
    ) -> None:
        store = self._store
        assert isinstance(store, SlowStore)
        with store.count:
            store.waiting += 1
            store.most = max(store.most, store.waiting)
        assert store.allowed.wait(60)
        with store.count:
            store.waiting -= 1
        super().publish_program(program, program_txt, options_txt, meta)


class SlowStore(FakeStore):
    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Event()
        self.count = threading.Lock()
        self.waiting = self.most = 0

    def open_stage(self) -> FakeStage:
        return SlowStage(self)


def test_the_next_compile_begins_while_one_is_published() -> None:
    store = SlowStore()
    compiled: list[str] = []

    def script(job: Job) -> Compiled:
        compiled.append(job.label)
        if len(compiled) == 2:  # of one worker that compiles: the first is not published yet
            assert not store.entries
            store.allowed.set()
        return built()

    jobs = [FakeJob(f"matmul {i}", script="matmul", index=i) for i in range(3)]
    result = build_jobs(jobs, store, FakeCompiler(script), Listener(), BuildConfig(jobs=1))
    assert result.summary.compiled == len(store.entries) == 3


def test_so_many_wait_for_the_disk_and_no_more() -> None:
    store = SlowStore()
    compiler = FakeCompiler()
    jobs = [FakeJob(f"matmul {i}", script="matmul", index=i) for i in range(30)]
    thread = threading.Thread(
        target=build_jobs, args=(jobs, store, compiler, Listener(), BuildConfig(jobs=2))
    )
    thread.start()
    thread.join(0.5)
    assert 2 < len(compiler.order) < 12
    store.allowed.set()
    thread.join(60)
    assert len(store.entries) == 30
    assert store.most < 12
