"""What the servers at hand do not do: compression, inlined content, and lies in every field."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.farm_double import COMPLETED, EXECUTING, QUEUED, FarmDouble, farm_double, operation
from support.processes import wait_until
from support.project import NewProject
from support.remote_client import Asked
from support.trees import published
from tilusbuild.process.base import CancelledError, Command, CompletedCommand
from tilusbuild.process.elsewhere import Places, SharingRunner, untold
from tilusbuild.remote import reapi_pb2 as reapi
from tilusbuild.remote import zstd
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.execute import RemoteExecutor
from tilusbuild.remote.reapi import ReapiBackend
from tilusbuild.remote.record import Blob, blob_for
from tilusbuild.remote.settings import RemoteSettings

SMALL, LARGE = b"word " * 1000, b"sentence " * (1 << 19)
"""Below and above what goes into one message."""
RANDOM = os.urandom(5000)


@pytest.fixture(params=[False, True], ids=["plain", "zstd"])
def cache(request: pytest.FixtureRequest) -> Iterator[tuple[FarmDouble, ReapiBackend]]:
    with farm_double(zstd=request.param) as (double, address):
        backend = ReapiBackend(RemoteSettings(address, "test", timeout=20.0))
        yield double, backend
        backend.close()


def test_blobs_are_compressed_where_that_is_announced(
    cache: tuple[FarmDouble, ReapiBackend],
) -> None:
    double, backend = cache
    blobs = {blob_for(data): data for data in (SMALL, LARGE, RANDOM, b"", b"x")}
    backend.send(blobs)
    assert double.held.keys() == {blob.digest for blob in blobs}
    sent, double.passed = double.passed, 0
    assert backend.blobs(blobs) == blobs
    for passed in (sent, double.passed):
        whole = sum(map(len, blobs.values()))
        assert passed < whole / 10 if double.zstd else passed == whole
    assert ("zstd" in backend.check(write=True)) == double.zstd


def test_an_upload_may_end_early(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    double.instead["Write"] = -1 if double.zstd else len(LARGE)
    backend.send({blob_for(LARGE): LARGE})
    double.instead["Write"] = 17
    with pytest.raises(RemoteTroubleError, match="keeps a blob in part"):
        backend.send({blob_for(LARGE): LARGE})


def test_streams_that_break_off_are_tried_again(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    double.keep(LARGE)

    def broken(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield next(honest)
        context.abort(grpc.StatusCode.INTERNAL, "in mid-stream")

    double.instead = {"Read": broken, "Write": grpc.StatusCode.INTERNAL}
    for ask in (backend.blobs, backend.send):
        with pytest.raises(RemoteTroubleError, match="INTERNAL") as caught:
            ask({blob_for(LARGE): LARGE})
        assert caught.value.retry


@pytest.mark.parametrize("size", [0, 10, len(LARGE) - 1])
def test_no_more_is_unpacked_than_a_blob_has(size: int) -> None:
    with farm_double(zstd=True) as (double, address):
        digest = double.keep(LARGE)
        backend = ReapiBackend(RemoteSettings(address, "test", timeout=20.0))
        found = backend.blobs([Blob(digest.hash, size)])
        backend.close()
    assert found[Blob(digest.hash, size)] == LARGE[: size + 1]


@pytest.mark.parametrize("sent", [b"", b"no frame", zstd.compressed(SMALL)[:-9]])
def test_a_frame_that_is_none_is_other_content(sent: bytes) -> None:
    assert blob_for(zstd.decompressed(sent, len(SMALL))) != blob_for(SMALL)
    pieces = zstd.Pieces(iter([sent[:3], b"", sent[3:]]))
    assert blob_for(zstd.decompressed(pieces, len(SMALL))) != blob_for(SMALL)


# A whole build against it.


@pytest.mark.parametrize("how", [{"zstd": True}, {"inlines": True}], ids=["zstd", "inlined"])
def test_programs_come_and_go(how: dict[str, bool], new_user: NewProject) -> None:
    with farm_double(**how) as (double, address):
        users = [new_user(address, WRITE="1"), new_user(address)]
        assert users[0].build()["remote"]["sent"] == 2
        double.calls.clear()
        assert users[1].build()["remote"]["hits"] == 2
        assert published(users[0].cache) == published(users[1].cache)
        reads = [each for name, each in double.calls if name == "BatchReadBlobs"]
        if "inlines" in how:  # what is left is the Trees of headers, and what is in them
            names = {each.hash for read in reads for each in read.digests}
            own = {blob.digest for blob in map(blob_for, users[0].libraries.values())}
            assert own
            assert not own & names


def test_inlined_content_is_held_against_its_digest(
    ask: Callable[..., Asked], origin: tuple[Path, dict[str, bytes]]
) -> None:
    def lie(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        for result in honest:
            for file in result.output_files:
                file.contents = file.contents[:-1] + b"!"
            yield result

    with farm_double(inlines=True, instead={"GetActionResult": lie}) as (double, address):
        for path, data in origin[1].items():
            kind, name = path.strip("/").split("/")
            (double.records if kind == "ac" else double.held)[name] = data
        found = ask(address)
    # Then it is fetched by its digest, as if nothing had been inlined.
    assert (found.hits, found.warnings) == (4, [])
    assert published(origin[0]).items() >= published(found.cache_path).items()


# Execution.


class Nobody:
    """A runner that runs nothing."""

    def run(self, command: Command) -> CompletedCommand:
        raise AssertionError("nothing is to run here")

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Executed:
    """An executor whose workers are proved, before a double."""

    double: FarmDouble
    executor: RemoteExecutor
    directory: Path
    warnings: list[str] = field(default_factory=list)

    @property
    def heard(self) -> int:
        """How many actions the server has said something of."""
        return sum(each.heard for each in [*self.executor._running.values()])

    def run(
        self, outputs: tuple[str, ...] = ("out",), cancelled: threading.Event | None = None
    ) -> CompletedCommand | None:
        command = Command(("true",), str(self.directory), {}, 1.0, outputs=outputs)
        return self.executor.run(command, cancelled or threading.Event(), untold)


@pytest.fixture
def executed(tmp_path: Path) -> Iterator[Callable[..., Executed]]:
    """executed(timeout=…, **double) is ready to run."""
    opened: list[Any] = []

    def make(timeout: float = 20.0, jobs: int = 64, **how: Any) -> Executed:
        opened.append(farm_double(**how))
        double, address = opened[-1].__enter__()
        warned: list[str] = []
        settings = RemoteSettings(address, "test", timeout=timeout, jobs=jobs)
        executor = RemoteExecutor(settings, lambda there: None, warned.append)
        opened.append(executor)
        (tmp_path / "work").mkdir(exist_ok=True)
        made = Executed(double, executor, tmp_path / "work", warned)
        made.run()
        wait_until(lambda: executor._proved is not None)
        double.calls.clear()
        return made

    yield make
    for each in reversed(opened):
        each.close() if isinstance(each, RemoteExecutor) else each.__exit__(None, None, None)


@pytest.mark.parametrize("how", [{}, {"inlines": True}, {"zstd": True}])
def test_outputs_come_in_whatever_way(
    how: dict[str, bool], executed: Callable[..., Executed]
) -> None:
    there = executed(output=SMALL, **how)
    done = there.run(("out", "log"))
    assert done is not None
    assert (done.status, done.output) == (0, b"said\n")
    assert done.elsewhere is not None
    assert (there.directory / "out").read_bytes() == (there.directory / "log").read_bytes() == SMALL
    assert ("BatchReadBlobs" in there.double.names()) != ("inlines" in how)


def test_where_an_action_is_is_told(executed: Callable[..., Executed]) -> None:
    there = executed()
    told: list[tuple[str, str]] = []

    def said(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        name = "w-7\x1b[2J\n" + "x" * 1000
        yield operation(QUEUED)
        yield operation(EXECUTING, worker=name)
        result = there.double.result(request)
        result.execution_metadata.CopyFrom(
            reapi.ExecutedActionMetadata(
                worker=name,
                queued_timestamp={"seconds": 1000},
                worker_start_timestamp={"seconds": 1000, "nanos": 1_000_000},
                execution_start_timestamp={"seconds": 2000},
                execution_completed_timestamp={"seconds": 2007},
            )
        )
        answer = reapi.ExecuteResponse(result=result, cached_result=bool(told[3:]))
        yield operation(COMPLETED, answer)

    there.double.instead["Execute"] = said
    command = Command(("true",), str(there.directory), {}, 30.0, outputs=("out",))

    def tell(place: str, worker: str) -> None:
        told.append((place, worker))

    done = there.executor.run(command, threading.Event(), tell)
    shown = ("w-7[2J" + "x" * 1000)[:98]  # of what is shown of a hundred characters
    assert told == [("sent", ""), ("queued", ""), ("executing", shown)]
    assert done is not None
    assert done.elsewhere is not None
    assert (done.elsewhere.worker, done.elsewhere.remembered, done.seconds) == (shown, False, 7.0)
    # A server cannot say that an action was queued for longer than it took.
    assert done.elsewhere.queued == 0
    done = there.executor.run(command, threading.Event(), tell)
    assert done is not None
    assert done.elsewhere is not None
    assert done.elsewhere.remembered
    executed_there = there.executor.executed
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
    there = executed()

    def lie(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        answer = reapi.ExecuteResponse(result=there.double.result(request))
        LIES[name](answer)
        yield operation(COMPLETED, answer)

    there.double.instead["Execute"] = lie
    (there.directory / "out").unlink(missing_ok=True)
    assert there.run() is None
    assert len(there.warnings) <= 1
    assert not (there.directory / "out").exists()
    assert not (there.directory.parent / "out").exists()


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
    there = executed()
    there.double.instead["Execute"] = lambda *asked: iter([WRONG_OPERATIONS[name]])
    assert there.run() is None
    assert len(there.warnings) == 1


def test_more_outputs_than_were_asked_for_are_left_alone(
    executed: Callable[..., Executed],
) -> None:
    there = executed()

    def more(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        result = there.double.result(request)
        for path in ("more", "../more", "/tmp/more-of-tilusbuild"):
            result.output_files.add(path=path, digest=there.double.keep(b"more"))
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    there.double.instead["Execute"] = more
    assert there.run() is not None
    assert sorted(path.name for path in there.directory.iterdir()) == ["out"]


@pytest.mark.parametrize("by", ["response", "stream", "operation"])
def test_inputs_that_are_gone_are_sent_once_more(
    by: str, executed: Callable[..., Executed]
) -> None:
    """Servers say it in three ways."""
    there = executed()

    def gone(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        action = reapi.Action.FromString(there.double.held.get(request.action_digest.hash, b""))
        if action.command_digest.hash in there.double.held:
            yield from honest
        elif by == "stream":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "missing blobs")
        elif by == "response":
            yield operation(COMPLETED, reapi.ExecuteResponse(status={"code": 5}))
        else:
            yield operation(COMPLETED, done=True, error=reapi.Status(code=9))

    there.double.instead["Execute"] = gone
    for _ in range(2):
        assert there.run() is not None
        there.double.held.clear()
    assert there.warnings == []
    # What cannot be had at all is the server's fault, and said in its words.
    there.double.instead["Execute"] = grpc.StatusCode.FAILED_PRECONDITION
    assert there.run() is None
    assert ["as told" in each for each in there.warnings] == [True]


def test_an_action_that_no_worker_takes_is_given_up(executed: Callable[..., Executed]) -> None:
    there = executed(timeout=1.0)

    def queued(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(QUEUED)
        there.double.ended.wait(30)

    there.double.instead["Execute"] = queued
    assert there.run() is None
    assert len(there.warnings) == 1
    assert "no worker took a compile in time; this build compiles here" in there.warnings[0]
    assert there.double.cancelled == ["operations/1"]
    assert there.run() is None
    assert there.double.names().count("Execute") == 1


def test_a_server_that_says_nothing_is_given_up(executed: Callable[..., Executed]) -> None:
    there = executed(timeout=1.0)
    there.double.instead["Execute"] = lambda *asked: iter(
        [b""] if there.double.ended.wait(30) else []
    )
    assert there.run() is None
    assert ["no answer in time" in each for each in there.warnings] == [True]


def test_a_lost_stream_is_taken_up_again(executed: Callable[..., Executed]) -> None:
    there = executed()
    asked: list[Any] = []

    def breaks(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        asked.append(request)
        yield operation(EXECUTING)
        context.abort(grpc.StatusCode.INTERNAL, "in mid-stream")

    def waits(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        if there.double.names().count("WaitExecution") < 3:
            yield from breaks(asked[0], context, honest)
        result = there.double.result(asked[0])
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    there.double.instead |= {"Execute": breaks, "WaitExecution": waits}
    assert there.run() is not None
    assert there.double.names().count("Execute") == 1
    assert there.double.names().count("WaitExecution") == 3
    assert there.warnings == []


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_streams_that_never_say_more_are_given_up(
    ends: str, executed: Callable[..., Executed]
) -> None:
    there = executed()

    def stops(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(EXECUTING)
        if ends == "badly":
            context.abort(grpc.StatusCode.UNAVAILABLE, "again")

    there.double.instead |= {"Execute": stops, "WaitExecution": stops}
    assert there.run() is None
    assert len(there.warnings) == 1
    assert there.double.names().count("WaitExecution") < 10
    assert there.double.cancelled == ["operations/1"]


def test_what_is_cancelled_here_is_cancelled_there(executed: Callable[..., Executed]) -> None:
    there, cancelled = executed(), threading.Event()

    def waits(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(EXECUTING)
        there.double.ended.wait(30)

    there.double.instead["Execute"] = waits
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(there.run, ("out",), cancelled)
        wait_until(lambda: there.heard == 1)
        cancelled.set()
        there.executor.cancel(cancelled)
        with pytest.raises(CancelledError):
            running.result()
    assert there.double.cancelled == ["operations/1"]
    assert there.warnings == []


def test_one_of_two_that_run_there_is_cancelled(executed: Callable[..., Executed]) -> None:
    """As a save under `watch` cancels the programs that it made stale, and no other."""
    there, go_on = executed(jobs=2), threading.Event()
    names = iter(["operations/1", "operations/2"])

    def waits(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield operation(EXECUTING, name=next(names))
        go_on.wait(30)
        result = there.double.result(request)
        yield operation(COMPLETED, reapi.ExecuteResponse(result=result))

    there.double.instead["Execute"] = waits
    runners = [SharingRunner(Nobody(), there.executor, Places(lambda: 0), untold) for _ in range(2)]
    command = Command(("true",), str(there.directory), {}, outputs=("out",))
    with ThreadPoolExecutor(2) as threads:
        running = []
        for number, runner in enumerate(runners):
            running.append(threads.submit(runner.run, command))
            wait_until(lambda: there.heard == number + 1)  # noqa: B023 - asked at once
        assert not there.executor.ready()  # of `jobs`
        runners[0].cancel()
        with pytest.raises(CancelledError):
            running[0].result()
        assert there.double.cancelled == ["operations/1"]
        go_on.set()
        assert running[1].result().elsewhere
    assert there.executor.ready()


def test_an_action_has_the_time_of_its_command(executed: Callable[..., Executed]) -> None:
    there = executed()
    there.run()
    (request,) = [each for name, each in there.double.calls if name == "Execute"]
    action = reapi.Action.FromString(there.double.held[request.action_digest.hash])
    assert action.timeout.seconds == 1
    there.double.instead["Execute"] = lambda *asked: iter(
        [operation(COMPLETED, reapi.ExecuteResponse(status={"code": 4}))]
    )
    done = there.run()
    assert done is not None
    assert done.timed_out
