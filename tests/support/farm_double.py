"""A server of the Remote Execution API that does what the real ones here do not: it
inlines, ends uploads early, breaks off, and lies wherever it is told to.

Blobs and records are kept in memory. Actions are not run: `work` says what comes of one.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import Blob, make_blob

COMPLETED, EXECUTING, QUEUED = 4, 3, 2
_REQUESTS: dict[str, Any] = {
    "GetCapabilities": reapi.GetCapabilitiesRequest,
    "GetActionResult": reapi.GetActionResultRequest,
    "UpdateActionResult": reapi.UpdateActionResultRequest,
    "FindMissingBlobs": reapi.FindMissingBlobsRequest,
    "BatchUpdateBlobs": reapi.BatchUpdateBlobsRequest,
    "BatchReadBlobs": reapi.BatchReadBlobsRequest,
    "Read": reapi.ReadRequest,
    "Execute": reapi.ExecuteRequest,
    "WaitExecution": reapi.WaitExecutionRequest,
    "CancelOperation": reapi.CancelOperationRequest,
}
_STREAMS = ("Read", "Execute", "WaitExecution")


def packed(message: Any, name: str) -> reapi.Any:
    """A message as an Any of the protocol's own package."""
    url = f"type.googleapis.com/build.bazel.remote.execution.v2.{name}"
    return reapi.Any(type_url=url, value=message.SerializeToString())


def operation(
    stage: int, answer: reapi.ExecuteResponse | None = None, worker: str = "", **how: Any
) -> Any:
    """An operation in a stage; with an answer it is done."""
    so_far = reapi.ExecutedActionMetadata(worker=worker)
    stages = reapi.ExecuteOperationMetadata(stage=stage, partial_execution_metadata=so_far)
    about = packed(stages, "ExecuteOperationMetadata")
    response = None if answer is None else packed(answer, "ExecuteResponse")
    fields = {"name": "operations/1", "done": answer is not None, "response": response, **how}
    return reapi.Operation(metadata=about, **fields)


@dataclass
class FarmDouble(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers each method honestly, unless `instead` has something for it: a status to abort with,
    or a function that takes the request, the context and the honest answers and yields others."""

    inlines: bool = False
    most: int = 0
    instead: dict[str, Any] = field(default_factory=dict)
    held: dict[str, bytes] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    output: bytes = b"made"
    """Of each output of an action."""
    cancelled: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def names(self) -> list[str]:
        """The methods that were called, in order."""
        return [name for name, _ in self.calls]

    def keep(self, data: bytes) -> reapi.Digest:
        blob = make_blob(data)
        self.held[blob.digest] = data
        return reapi.Digest(hash=blob.digest, size_bytes=blob.size)

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name == "Write":
            return grpc.stream_unary_rpc_method_handler(self._write)

        def answers(request: bytes, context: Any) -> Iterator[bytes]:
            message = _REQUESTS[name].FromString(request)
            self.calls.append((name, message))
            honest = getattr(self, re.sub("([A-Z])", r"_\1", name).lower())
            other = self.instead.get(name)
            if isinstance(other, grpc.StatusCode):
                context.abort(other, "as told")
            responses = honest(message, context)
            for response in responses if other is None else other(message, context, responses):
                yield response if isinstance(response, bytes) else response.SerializeToString()

        if name in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(answers)
        return grpc.unary_unary_rpc_method_handler(lambda *asked: next(answers(*asked)))

    def _get_capabilities(self, request: Any, context: Any) -> Iterator[Any]:
        cache = reapi.CacheCapabilities(
            digest_functions=[1],
            max_batch_total_size_bytes=self.most,
            action_cache_update_capabilities={"update_enabled": True},
        )
        yield reapi.ServerCapabilities(
            cache_capabilities=cache, execution_capabilities={"exec_enabled": True}
        )

    def _get_action_result(self, request: Any, context: Any) -> Iterator[Any]:
        data = self.records.get(request.action_digest.hash)
        if data is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such record")
        result = reapi.ActionResult.FromString(data or b"")
        for file in result.output_files:
            if self.inlines and file.path in request.inline_output_files:
                file.contents = self.held[file.digest.hash]
        yield result

    def _update_action_result(self, request: Any, context: Any) -> Iterator[Any]:
        self.records[request.action_digest.hash] = request.action_result.SerializeToString()
        yield request.action_result

    def _find_missing_blobs(self, request: Any, context: Any) -> Iterator[Any]:
        missing = [digest for digest in request.blob_digests if digest.hash not in self.held]
        yield reapi.FindMissingBlobsResponse(missing_blob_digests=missing)

    def _batch_update_blobs(self, request: Any, context: Any) -> Iterator[Any]:
        answer = reapi.BatchUpdateBlobsResponse()
        for upload in request.requests:
            assert make_blob(upload.data) == Blob(upload.digest.hash, upload.digest.size_bytes)
            self.keep(upload.data)
            answer.responses.add(digest=upload.digest)
        yield answer

    def _batch_read_blobs(self, request: Any, context: Any) -> Iterator[Any]:
        answer = reapi.BatchReadBlobsResponse()
        for digest in request.digests:
            data = self.held.get(digest.hash)
            if data is None:
                answer.responses.add(digest=digest, status={"code": 5})
            else:
                answer.responses.add(digest=digest, data=data)
        yield answer

    def _read(self, request: Any, context: Any) -> Iterator[Any]:
        *_, digest, _ = request.resource_name.split("/")
        data = self.held.get(digest)
        if data is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such blob")
        for offset in range(0, len(data or b""), 1000):
            yield reapi.ReadResponse(data=(data or b"")[offset : offset + 1000])

    def _write(self, requests: Iterator[bytes], context: Any) -> bytes:
        pieces: list[bytes] = []
        name = ""
        other = self.instead.get("Write")
        for data in requests:
            request = reapi.WriteRequest.FromString(data)
            name = name or request.resource_name
            pieces.append(request.data)
            if isinstance(other, grpc.StatusCode):
                context.abort(other, "as told, in mid-stream")
            if isinstance(other, int):
                break
        self.calls.append(("Write", name))
        *_, digest, size = name.split("/")
        content = b"".join(pieces)
        if other is None:
            assert make_blob(content) == Blob(digest, int(size))
            self.keep(content)
        committed = len(content) if other is None else other
        answer: bytes = reapi.WriteResponse(committed_size=committed).SerializeToString()
        return answer

    def result(self, request: reapi.ExecuteRequest) -> reapi.ActionResult:
        """What comes of an action when all is well."""
        action = reapi.Action.FromString(self.held[request.action_digest.hash])
        command = reapi.Command.FromString(self.held[action.command_digest.hash])
        result = reapi.ActionResult(stdout_raw=b"said\n")
        for path in command.output_paths:
            file = result.output_files.add(path=path, digest=self.keep(self.output))
            if self.inlines and path in request.inline_output_files:
                file.contents = self.output
        return result

    def _execute(self, request: Any, context: Any) -> Iterator[Any]:
        yield operation(QUEUED)
        yield operation(EXECUTING)
        yield operation(COMPLETED, reapi.ExecuteResponse(result=self.result(request)))

    def _wait_execution(self, request: Any, context: Any) -> Iterator[Any]:
        context.abort(grpc.StatusCode.NOT_FOUND, "no such operation")
        yield b""

    def _cancel_operation(self, request: Any, context: Any) -> Iterator[Any]:
        self.cancelled.append(request.name)
        yield b""


Instead = Callable[[Any, Any, Iterator[Any]], Iterator[Any]]


@contextlib.contextmanager
def farm_double(**how: Any) -> Iterator[tuple[FarmDouble, str]]:
    """A double that serves, and its address."""
    double = FarmDouble(**how)
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((double,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield double, f"grpc://127.0.0.1:{port}"
        finally:
            double.ended.set()
            server.stop(None).wait()
