"""Programs of several toolchains on other machines: what a worker has is compared for each."""

from pathlib import Path
from typing import Any

import pytest

from support.fake_engine import FakeJob, FakeStore
from support.fake_runner import FakeRunner
from tilusbuild.cache.tree import Tree
from tilusbuild.reapi import execute
from tilusbuild.reapi.execute import ExecutionCounts
from tilusbuild.remote.lazy import LazyRemote
from tilusbuild.remote.settings import make_settings


class Opened:
    """An executor that was opened for a toolchain, and ran some commands."""

    instances: "list[Opened]"
    ran = True

    def __init__(self, settings: Any, probe: Any, warn: Any) -> None:
        self.executed = ExecutionCounts(
            commands=self.ran * (len(self.instances) + 1), seconds=1.0, inputs=10, outputs=20
        )
        self.closed = False
        self.instances.append(self)

    def close(self) -> None:
        self.closed = True


def test_an_executor_has_one_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Opened.instances = []
    monkeypatch.setattr(execute, "RemoteExecutor", Opened)
    tools: Any = ["of one", "of another"]
    with LazyRemote(None, FakeStore(), Tree(str(tmp_path))) as remote:
        shared = remote.open_executors(
            make_settings("grpc://there", "test"), FakeRunner(), lambda: 1
        )
        assert shared is not None
        assert remote.summary() is None
        asked: Any = [
            shared(FakeRunner(), FakeJob(text), toolchain)
            for text in ("first", "second")
            for toolchain in tools
        ]
        assert Opened.instances == []  # until this machine's places are taken
        executors = [item._find_executor() for item in asked]
        assert executors == [*Opened.instances, *Opened.instances]
        assert len(Opened.instances) == 2
        summary = remote.summary()
        assert summary is not None
        assert (summary.executed, summary.executed_seconds) == (3, 2.0)
        assert (summary.inputs_bytes, summary.outputs_bytes) == (20, 40)
        assert summary.executor == "grpc://there"
    assert all(item.closed for item in Opened.instances)


def test_an_executor_that_ran_nothing_is_not_said_to_have_compiled(tmp_path, monkeypatch) -> None:
    Opened.instances = []
    monkeypatch.setattr(Opened, "ran", False)
    monkeypatch.setattr(execute, "RemoteExecutor", Opened)
    with LazyRemote(None, FakeStore(), Tree(str(tmp_path))) as remote:
        settings = make_settings("grpc://there", "test")
        shared: Any = remote.open_executors(settings, FakeRunner(), lambda: 1)
        shared(FakeRunner(), FakeJob("first"), "tools")._find_executor()
        assert len(Opened.instances) == 1
        assert remote.summary() is None


def test_what_nothing_here_speaks_to_compiles_nothing(tmp_path: Path) -> None:
    with LazyRemote(None, FakeStore(), Tree(str(tmp_path))) as remote:
        settings = make_settings("x://there", "test")
        assert remote.open_executors(settings, FakeRunner(), lambda: 1) is None
