"""The Remote Execution API: with a real server, buildbox-casd, and with a double for what it does
not do."""

import hashlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.casd import Casd
from support.farm_double import FarmDouble, farm_double
from support.project import NewProject
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import Blob, ReapiBackend, make_blob, split_into_batches
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import make_settings


@pytest.fixture
def casd(tmp_path: Path) -> Iterator[Casd]:
    server = Casd(tmp_path / "casd")
    yield server
    server.kill()


def backend(address: str, **settings: Any) -> ReapiBackend:
    return ReapiBackend(make_settings(address, "test", **settings))


def test_the_services_that_a_cache_has(casd: Casd) -> None:
    server = backend(casd.address)
    assert "Remote Execution API 2." in server.check_access(write=True)
    small = {make_blob(data): data for data in (b"", b"x", os.urandom(50_000))}
    large = os.urandom(10 << 20)
    every = {**small, make_blob(large): large}
    assert set(server.find_missing(every)) == every.keys() - {make_blob(b"")}
    server.send_blobs(every)
    server.send_blobs(every)  # again: a stream of what is there may end early
    assert list(server.find_missing(every)) == []
    gone = Blob("0" * 64, 5 << 20)
    assert server.read_blobs([*every, gone, Blob("1" * 64, 5)]) == every
    server.send_file("key", b"data")
    assert (server.has_file("key"), server.has_file("another key")) == (True, False)
    data_by_key = {}
    server.fetch_files(
        ["another key", "key"], lambda key, data: data_by_key.update({key: b"".join(data)})
    )
    assert data_by_key == {"key": b"data"}
    server.close()


def test_batches_count_the_message() -> None:
    blobs = [Blob(hashlib.sha256(bytes([n])).hexdigest(), n * 100) for n in range(200)]
    batches = list(split_into_batches(blobs, 10_000))
    assert [blob for batch in batches for blob in batch] == blobs
    for batch in batches:
        request = reapi.BatchUpdateBlobsRequest()
        for blob in batch:
            digest = reapi.Digest(hash=blob.digest, size_bytes=blob.size)
            request.requests.add(digest=digest, data=b"x" * blob.size)
        assert request.ByteSize() <= 10_000 or len(batch) == 1


# What casd does not do, a double does.


@pytest.fixture
def double() -> Iterator[tuple[FarmDouble, str]]:
    with farm_double() as double_and_address:
        yield double_and_address


def says(answer: Any) -> Any:
    """What has a method of the double answer with this, whatever is asked."""
    return lambda request, context, honest: iter([answer])


def capabilities(functions: tuple[int, ...] = (1,), most: int = 0) -> Any:
    cache = reapi.CacheCapabilities(digest_functions=functions, max_batch_total_size_bytes=most)
    return says(reapi.ServerCapabilities(cache_capabilities=cache))


def test_another_digest_function_is_said_in_words(double: tuple[FarmDouble, str]) -> None:
    handler, address = double
    handler.instead["GetCapabilities"] = capabilities((9,))
    with pytest.raises(RemoteTroubleError, match="does not name content by SHA256"):
        backend(address).has_file("key")


@pytest.mark.parametrize(
    ("status", "retry"), [("UNAVAILABLE", True), ("INTERNAL", True), ("PERMISSION_DENIED", False)]
)
def test_what_may_pass_is_tried_again(double, status, retry) -> None:
    handler, address = double
    handler.instead["GetActionResult"] = grpc.StatusCode[status]
    with pytest.raises(RemoteTroubleError, match=status) as caught:
        backend(address).has_file("key")
    assert caught.value.retry == retry
    assert "as told" not in str(caught.value)
    wants = "headers or credential-helper in [remote] of ~/.config" in str(caught.value)
    assert wants == (status == "PERMISSION_DENIED")


def test_where_nobody_listens_grpc_is_not_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RemoteTroubleError, match="cannot be reached") as caught:
        backend(f"grpc://127.0.0.1:{port}").has_file("key")
    assert "ipv4" not in str(caught.value)


def test_answers_that_cannot_be_read(double: tuple[FarmDouble, str]) -> None:
    handler, address = double
    handler.instead["BatchReadBlobs"] = says(b"\xff" * 9)
    with pytest.raises(RemoteTroubleError, match="cannot be read"):
        backend(address).read_blobs([Blob("0" * 64, 1)])
    answer = reapi.BatchReadBlobsResponse()  # with a blob that was not asked for
    answer.responses.add(digest=reapi.Digest(hash="1" * 64, size_bytes=1), data=b"x")
    handler.instead["BatchReadBlobs"] = says(answer)
    assert backend(address).read_blobs([Blob("0" * 64, 1)]) == {}


def test_each_request_has_headers_and_says_who_asks(double: tuple[FarmDouble, str]) -> None:
    handler, address = double
    seen: list[dict[str, Any]] = []

    def look(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        seen.append(dict(context.invocation_metadata()))
        return honest

    handler.instead = {"GetCapabilities": look, "GetActionResult": look}
    assert backend(address, headers={"X-Key": "k"}).has_file("key") is False
    assert len(seen) == 2
    for metadata in seen:
        about = metadata["build.bazel.remote.execution.v2.requestmetadata-bin"]
        assert reapi.RequestMetadata.FromString(about).tool_details.tool_name == "tilusbuild"
        assert metadata["x-key"] == "k"


def test_a_small_limit_of_a_message_is_kept(double: tuple[FarmDouble, str]) -> None:
    handler, address = double
    handler.instead["GetCapabilities"] = capabilities(most=10_000)
    data = [os.urandom(3_000) for _ in range(10)]
    backend(address).send_blobs({make_blob(content): content for content in data})
    assert handler.names().count("BatchUpdateBlobs") == 5


def test_doctor_asks_the_executor(new_user: NewProject) -> None:
    user = new_user("off", EXECUTOR="grpc://127.0.0.1:1", CONNECT_TIMEOUT="1s")
    assert "remote executor: grpc://127.0.0.1:1" in user.run("doctor", status=None).out
    with farm_double() as (_, address):
        output = user.run("doctor", status=None, TILUSBUILD_REMOTE_EXECUTOR=address).out
    (line,) = [line for line in output.splitlines() if "remote executor" in line]
    assert line.startswith(
        f"ok       remote executor: {address}, asked to execute: Remote Execution"
    )
    assert re.search(r"SHA256, .*, executes, a round trip in \d+\.\d ms$", line)
