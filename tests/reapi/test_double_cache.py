"""What the servers at hand do not do with blobs: compression, inlined content, early ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs tilusbuild[remote]")

import grpc

from support.farm_double import FarmDouble, farm_double
from support.project import NewProject
from support.remote_client import Asked, fill_with
from support.trees import published
from tilusbuild.reapi import zstd
from tilusbuild.reapi.backend import ReapiBackend
from tilusbuild.remote.backend import RemoteTroubleError
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


# Whole builds against it.


def test_compressed_programs_come_and_go(new_user: NewProject) -> None:
    with farm_double(zstd=True) as (_, address):
        users = [new_user(address, WRITE="1"), new_user(address)]
        assert users[0].build()["remote"]["sent"] == 2
        assert users[1].build()["remote"]["hits"] == 2
        assert published(users[0].cache) == published(users[1].cache)


@pytest.mark.parametrize("lies", [False, True])
def test_a_record_that_comes_along_is_not_asked_for(
    lies: bool, ask: Callable[..., Asked], origin: tuple[Path, dict[str, bytes]]
) -> None:
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
