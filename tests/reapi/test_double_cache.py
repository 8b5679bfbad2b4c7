"""What the servers at hand do not do with blobs: inlined content, early ends."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.farm_double import FarmDouble, farm_double
from support.remote_client import fill_with
from support.trees import published
from tilusbuild.reapi.backend import ReapiBackend
from tilusbuild.remote.backend import RemoteTroubleError, contents
from tilusbuild.remote.record import blob_for
from tilusbuild.remote.settings import RemoteSettings

SMALL, LARGE = b"word " * 1000, b"sentence " * (1 << 19)
"""Below and above what goes into one message."""


@pytest.fixture
def cache() -> Iterator[tuple[FarmDouble, ReapiBackend]]:
    with farm_double() as (double, address):
        backend = ReapiBackend(RemoteSettings(address, "test", timeout=20.0))
        yield double, backend
        backend.close()


def test_blobs_come_and_go_in_messages_and_streams(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    blobs = {blob_for(data): data for data in (SMALL, LARGE, b"", b"x")}
    backend.send(blobs)
    assert double.held.keys() == {blob.digest for blob in blobs}
    assert contents(backend, blobs) == blobs


def test_an_upload_may_end_early(cache: tuple[FarmDouble, ReapiBackend]) -> None:
    double, backend = cache
    double.instead["Write"] = len(LARGE)
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
    for ask in (partial(contents, backend), backend.send):
        with pytest.raises(RemoteTroubleError, match="INTERNAL") as caught:
            ask({blob_for(LARGE): LARGE})
        assert caught.value.retry


@pytest.mark.parametrize("lies", [False, True])
def test_a_record_that_comes_along_is_not_asked_for(lies, ask, origin) -> None:
    """One that is not what its digest says is."""

    def lie(request: Any, context: Any, honest: Iterator[Any]) -> Iterator[Any]:
        for result in honest:
            for file in result.output_files:
                file.contents = file.contents[:-1] + b"!"
            yield result

    with farm_double(inlines=True) as (double, address):
        fill_with(address, origin[1])
        double.instead = {"GetActionResult": lie} if lies else {}
        double.calls.clear()
        found = ask(address)
        read = {
            double.held[each.hash]
            for name, request in double.calls
            if name == "BatchReadBlobs"
            for each in request.digests
        }
    records = {data for path, data in origin[1].items() if path.startswith("/ac/")}
    assert (records <= read) == lies
    assert (found.hits, found.warnings) == (4, [])
    assert published(origin[0]).items() >= published(found.cache_path).items()
