"""The streams of remote actions: lost, silent, queued and cancelled."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.executed import Executed
from support.farm_double import COMPLETED, EXECUTING, QUEUED, operation
from support.processes import wait_until
from tilusbuild.process.base import CancelledError, Command
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.operations import ignore_place
from tilusbuild.reapi.sharing import CompileSlots, SharingRunner
from tilusbuild.remote.backend import RemoteTroubleError


def holds(remote: Executed, *stages: int) -> Any:
    """An answer that reports these stages, and no more."""

    def answer(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield from map(operation, stages)
        remote.double.ended.wait(30)

    return answer


def test_an_action_that_no_worker_takes_is_given_up(executed: Callable[..., Executed]) -> None:
    remote = executed(timeout=1.0)
    remote.double.instead["Execute"] = holds(remote, QUEUED)
    assert remote.run() is None
    assert len(remote.warnings) == 1
    assert "no worker took a compile in time; this build compiles here" in remote.warnings[0]
    assert remote.double.cancelled == ["operations/1"]
    assert remote.run() is None
    assert remote.double.names().count("Execute") == 1


def test_a_server_that_says_nothing_is_given_up(executed: Callable[..., Executed]) -> None:
    remote = executed(timeout=1.0)
    remote.double.instead["Execute"] = holds(remote)
    assert remote.run() is None
    assert ["no answer in time" in warning for warning in remote.warnings] == [True]


def test_a_lost_stream_is_taken_up_again(executed: Callable[..., Executed]) -> None:
    remote = executed()
    asked: list[Any] = []

    def breaks(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        asked.append(request)
        yield operation(EXECUTING)
        context.abort(grpc.StatusCode.INTERNAL, "in mid-stream")

    def waits(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        if remote.double.names().count("WaitExecution") < 3:
            yield from breaks(asked[0], context, honest)
        result = remote.double.result(asked[0])
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    remote.double.instead |= {"Execute": breaks, "WaitExecution": waits}
    assert remote.run() is not None
    assert remote.double.names().count("Execute") == 1
    assert remote.double.names().count("WaitExecution") == 3
    assert remote.warnings == []


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_streams_that_never_say_more_are_given_up(ends, executed) -> None:
    remote = executed()

    def stops(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(EXECUTING)
        if ends == "badly":
            context.abort(grpc.StatusCode.UNAVAILABLE, "again")

    remote.double.instead |= {"Execute": stops, "WaitExecution": stops}
    assert remote.run() is None
    assert len(remote.warnings) == 1
    assert remote.double.names().count("WaitExecution") < 10
    assert remote.double.cancelled == ["operations/1"]


def test_what_is_cancelled_here_is_cancelled_there(executed: Callable[..., Executed]) -> None:
    remote, cancelled = executed(), threading.Event()
    remote.double.instead["Execute"] = holds(remote, EXECUTING)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(remote.run, ("out",), cancelled)
        wait_until(lambda: remote.heard == 1)
        cancelled.set()
        remote.executor.cancel_command(cancelled)
        with pytest.raises(CancelledError):
            running.result()
    assert remote.double.cancelled == ["operations/1"]
    assert remote.warnings == []


def test_one_of_two_that_run_there_is_cancelled(executed: Callable[..., Executed]) -> None:
    """As a save under `watch` cancels the programs that it made stale, and no other."""
    remote, go_on = executed(jobs=2), threading.Event()
    names = iter(["operations/1", "operations/2"])

    def waits(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(EXECUTING, name=next(names))
        go_on.wait(30)
        result = remote.double.result(request)
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    remote.double.instead["Execute"] = waits
    local_runner = Mock(**{"run.side_effect": AssertionError("nothing is to run here")})
    runners = [
        SharingRunner(local_runner, lambda: remote.executor, CompileSlots(lambda: 0), ignore_place)
        for _ in range(2)
    ]
    command = Command(("true",), str(remote.directory), {}, outputs=("out",))
    with ThreadPoolExecutor(2) as threads:
        running = []
        for number, runner in enumerate(runners):
            running.append(threads.submit(runner.run, command))
            wait_until(lambda: remote.heard == number + 1)  # noqa: B023 - asked at once
        assert not remote.executor.is_ready()  # of `jobs`
        runners[0].cancel()
        with pytest.raises(CancelledError):
            running[0].result()
        assert remote.double.cancelled == ["operations/1"]
        go_on.set()
        assert running[1].result().elsewhere
    assert remote.executor.is_ready()


def test_an_action_has_the_time_of_its_command(executed: Callable[..., Executed]) -> None:
    remote = executed()
    remote.run()
    (request,) = [message for name, message in remote.double.calls if name == "Execute"]
    action = reapi.Action.FromString(remote.double.held[request.action_digest.hash])
    assert action.timeout.seconds == 1
    remote.double.instead["Execute"] = lambda *asked: iter(
        [operation(COMPLETED, reapi.ExecuteResponse(status={"code": 4}))]
    )
    done = remote.run()
    assert done is not None
    assert done.timed_out


def test_the_probe_begins_again_after_trouble(executed, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = executed().executor
    run_action = Mock(side_effect=[RemoteTroubleError("a lost stream"), None])
    monkeypatch.setattr(executor, "_run_action", run_action)
    monkeypatch.setattr(executor, "_probe", lambda run: run(Command((), "", {})))
    executor._probe_worker()
    (_, first), (_, second) = (call.args for call in run_action.call_args_list)
    assert first is not second
