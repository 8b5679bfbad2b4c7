"""Answers to remote actions, honest and not: what comes in, and lies in every field."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.executed import Executed
from support.farm_double import COMPLETED, EXECUTING, QUEUED, operation
from tilusbuild.process.base import Command
from tilusbuild.reapi import reapi_pb2 as reapi

SMALL = b"word " * 1000


@pytest.mark.parametrize("how", [{}, {"inlines": True}])
def test_outputs_come_in_whatever_way(how, executed) -> None:
    remote = executed(output=SMALL, **how)
    done = remote.run(("out", "log"))
    assert done is not None
    assert (done.status, done.output) == (0, b"said\n")
    assert done.elsewhere is not None
    assert (
        (remote.directory / "out").read_bytes() == (remote.directory / "log").read_bytes() == SMALL
    )
    assert ("BatchReadBlobs" in remote.double.names()) != ("inlines" in how)


def test_where_an_action_is_is_told(executed: Callable[..., Executed]) -> None:
    remote = executed()
    stages: list[tuple[str, str]] = []

    def execute(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        name = "w-7\x1b[2J\n" + "x" * 1000
        yield operation(QUEUED)
        yield operation(EXECUTING, worker=name)
        result = remote.double.result(request)
        result.execution_metadata.CopyFrom(
            reapi.ExecutedActionMetadata(
                worker=name,
                queued_timestamp={"seconds": 1000},
                worker_start_timestamp={"seconds": 1000, "nanos": 1_000_000},
                execution_start_timestamp={"seconds": 2000},
                execution_completed_timestamp={"seconds": 2007},
            )
        )
        answer = reapi.ExecuteResponse(result=result, cached_result=bool(stages[3:]))
        yield operation(COMPLETED, answer)

    remote.double.instead["Execute"] = execute
    command = Command(("true",), str(remote.directory), {}, 30.0, outputs=("out",))

    def run() -> Any:
        tell: Any = lambda *stage: stages.append(stage)  # noqa: E731
        return remote.executor.run_command(command, threading.Event(), tell)

    done = run()
    shown = ("w-7[2J" + "x" * 1000)[:98]  # of what is shown of a hundred characters
    assert stages == [("sent", ""), ("queued", ""), ("executing", shown)]
    assert (done.elsewhere.worker, done.elsewhere.remembered, done.seconds) == (shown, False, 7.0)
    assert run().elsewhere.remembered
    executed_there = remote.executor.executed
    assert (executed_there.commands, executed_there.remembered) == (3, 1)
    assert executed_there.outputs > 0


Change = Callable[[reapi.ExecuteResponse], object]


def other(**how: Any) -> Change:
    """A change of the first output."""

    def change(answer: reapi.ExecuteResponse) -> None:
        file = answer.result.output_files[0]
        for name, value in how.items():
            target = file if name in ("path", "contents") else file.digest
            setattr(target, name, value)

    return change


LIES: dict[str, Change] = {
    "digest": other(hash="1" * 64),
    "no digest": other(hash="../../../etc/passwd"),
    "size": other(size_bytes=3),
    "negative size": other(size_bytes=-1),
    "enormous size": other(size_bytes=1 << 60),
    "inlined": other(contents=b"another one", hash="2" * 64),
    "output missing": lambda answer: answer.result.ClearField("output_files"),
    "other path": other(path="../out"),
    "stdout": lambda answer: answer.result.MergeFrom(
        reapi.ActionResult(stdout_raw=b"", stderr_digest={"hash": "3" * 64, "size_bytes": 4})
    ),
    "exit status": lambda answer: setattr(answer.result, "exit_code", -11),
    "killed": lambda answer: setattr(answer.result, "exit_code", 137),
    "not found": lambda answer: setattr(answer.result, "exit_code", 127),
    "silent failure": lambda answer: answer.result.CopyFrom(reapi.ActionResult(exit_code=1)),
    "no result": lambda answer: answer.ClearField("result"),
    "status": lambda answer: answer.status.MergeFrom(reapi.Status(code=13, message="no")),
    "inputs": lambda answer: answer.status.MergeFrom(reapi.Status(code=9, message="missing")),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_no_answer(name: str, executed: Callable[..., Executed]) -> None:
    remote = executed()

    def lie(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        answer = reapi.ExecuteResponse(result=remote.double.result(request))
        LIES[name](answer)
        yield operation(COMPLETED, answer)

    remote.double.instead["Execute"] = lie
    (remote.directory / "out").unlink(missing_ok=True)
    assert remote.run() is None
    assert len(remote.warnings) <= 1
    assert not (remote.directory / "out").exists()
    assert not (remote.directory.parent / "out").exists()


WRONG_OPERATIONS: dict[str, Any] = {
    "another type": operation(COMPLETED, done=True, response=reapi.Any(type_url="a/b.Other")),
    "no answer": reapi.Operation(name="operations/1", done=True),
    "an error": operation(COMPLETED, done=True, error=reapi.Status(code=7, message="not you")),
    "no message": b"\xff" * 20,
    "no answer's bytes": operation(
        COMPLETED, done=True, response=reapi.Any(type_url="a/b.ExecuteResponse", value=b"\xff")
    ),
}


@pytest.mark.parametrize("name", WRONG_OPERATIONS)
def test_an_operation_that_is_none(name: str, executed: Callable[..., Executed]) -> None:
    remote = executed()
    remote.double.instead["Execute"] = lambda *asked: iter([WRONG_OPERATIONS[name]])
    assert remote.run() is None
    assert len(remote.warnings) == 1


def test_more_outputs_than_were_asked_for_are_left_alone(executed) -> None:
    remote = executed()

    def more(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        result = remote.double.result(request)
        for path in ("more", "../more", "/tmp/more-of-tilusbuild"):
            result.output_files.add(path=path, digest=remote.double.keep(b"more"))
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    remote.double.instead["Execute"] = more
    assert remote.run() is not None
    assert sorted(path.name for path in remote.directory.iterdir()) == ["out"]


@pytest.mark.parametrize("by", ["response", "stream", "operation"])
def test_inputs_that_are_gone_are_sent_once_more(by, executed) -> None:
    """Servers say it in three ways."""
    remote = executed()

    def gone(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        action = reapi.Action.FromString(remote.double.held.get(request.action_digest.hash, b""))
        if action.command_digest.hash in remote.double.held:
            yield from honest
        elif by == "stream":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "missing blobs")
        elif by == "response":
            yield operation(COMPLETED, reapi.ExecuteResponse(status={"code": 5}))
        else:
            yield operation(COMPLETED, done=True, error=reapi.Status(code=9))

    remote.double.instead["Execute"] = gone
    for _ in range(2):
        assert remote.run() is not None
        remote.double.held.clear()
    assert remote.warnings == []
    # What cannot be had at all is the server's fault, and said in its words.
    remote.double.instead["Execute"] = grpc.StatusCode.FAILED_PRECONDITION
    assert remote.run() is None
    assert ["as told" in warning for warning in remote.warnings] == [True]
