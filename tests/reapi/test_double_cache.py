"""What the servers at hand do not do with blobs: inlined content, early ends."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.farm_double import FarmDouble, farm_double
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.reapi.backend import ReapiBackend, make_blob
from tilusbuild.remote.backend import RemoteTroubleError
from tilusbuild.remote.settings import make_settings

SMALL, LARGE = b"word " * 1000, b"sentence " * (1 << 19)
"""Below and above what goes into one message."""


@pytest.fixture
def cache() -> Iterator[tuple[FarmDouble, ReapiBackend]]:
    with farm_double() as (double, address):
        backend = ReapiBackend(make_settings(address, "test", timeout=20.0))
        yield double, backend
        backend.close()


def test_blobs_come_and_go_in_messages_and_streams(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    blobs = {make_blob(data): data for data in (SMALL, LARGE, b"", b"x")}
    backend.send_blobs(blobs)
    assert double.held.keys() == {blob.digest for blob in blobs}
    assert backend.read_blobs(blobs) == blobs


def test_an_upload_may_end_early(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    double.instead["Write"] = len(LARGE)
    backend.send_blobs({make_blob(LARGE): LARGE})
    double.instead["Write"] = 17
    with pytest.raises(RemoteTroubleError, match="keeps a blob in part"):
        backend.send_blobs({make_blob(LARGE): LARGE})


def test_streams_that_break_off_are_tried_again(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    double.keep(LARGE)

    def broken(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        yield next(honest)
        context.abort(grpc.StatusCode.INTERNAL, "in mid-stream")

    double.instead = {"Read": broken, "Write": grpc.StatusCode.INTERNAL}
    for ask in (backend.read_blobs, backend.send_blobs):
        with pytest.raises(RemoteTroubleError, match="INTERNAL") as caught:
            ask({make_blob(LARGE): LARGE})
        assert caught.value.retry


def test_a_result_whose_content_is_gone_is_a_miss(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    backend.send_file("key", SMALL)
    assert backend.has_file("key")
    double.held.clear()
    assert not backend.has_file("key")
    backend.fetch_files(["key"], lambda key, pieces: pytest.fail("there is nothing to take"))


@pytest.mark.parametrize(
    "file",
    [
        {"path": "another", "digest": reapi.Digest(hash="0" * 64, size_bytes=1)},
        {"path": "entry.zst"},
        {"path": "entry.zst", "digest": reapi.Digest(hash="../x", size_bytes=1)},
        {"path": "entry.zst", "digest": reapi.Digest(hash="0" * 64, size_bytes=-1)},
        {"path": "entry.zst", "digest": reapi.Digest(hash="0" * 64, size_bytes=1 << 40)},
    ],
)
def test_a_result_that_is_not_ours_is_a_miss(cache, file) -> None:
    double, backend = cache
    result = reapi.ActionResult()
    result.output_files.add(**file)
    double.instead["GetActionResult"] = lambda request, context, honest: iter([result])
    assert not backend.has_file("key")
    backend.fetch_files(["key"], lambda key, pieces: pytest.fail("there is nothing to take"))
    assert "BatchReadBlobs" not in double.names()
