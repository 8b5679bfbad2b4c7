"""A remote cache that speaks the Remote Execution API v2 over gRPC: Capabilities, ActionCache,
ContentAddressableStorage, ByteStream.

Capabilities are asked first, once: another digest function or version is said in words. Small blobs
go in batches below the server's limit of a message, large ones as streams. Messages are bytes
here: their names are not sent, so those of `reapi.proto` serve for the services' own. Price: blobs
go uncompressed; a server compresses what it keeps.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

# Before grpc is imported: no child process of this one uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from tilusbuild._version import __version__
from tilusbuild.cache import layout
from tilusbuild.reapi import reapi_pb2 as reapi
from tilusbuild.remote.archive import MAX_BYTES
from tilusbuild.remote.backend import (
    UNKNOWN_CLIENT,
    UNTRUSTED,
    Credentials,
    RemoteTroubleError,
    TakeFile,
    explain_credentials,
)
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

# The protocol's number of the digest function.
_SHA256 = 1
# The output that is the file of a key.
_ENTRY = "entry.zst"
V2 = "/build.bazel.remote.execution.v2"
_CAS = f"{V2}.ContentAddressableStorage"
# Bytes of a message that every gRPC server takes, unless it says something else.
_MESSAGE = 4 << 20
_MARGIN = 1 << 20
# Bytes of a message for each blob in it, besides its content: a digest in hex, a size, tags.
_OVERHEAD = 128
_CHUNK = 1 << 20
# Characters of a server's text that are shown.
_MAX_LINE = 200
# Many results are asked for at once, and each names one file.
_RESULT_LIMIT = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "build.bazel.remote.execution.v2.ActionCache"}],
                "maxResponseMessageBytes": 1 << 20,
            }
        ]
    }
)
_RETRIED_STATUS = ("UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL")
# What a status means, in words, of those that gRPC gives itself.
_STATUS_TEXTS = {
    "DEADLINE_EXCEEDED": "no answer in time",
    "UNAVAILABLE": "it cannot be reached (UNAVAILABLE)",
    "INTERNAL": "it is in trouble, or does not speak gRPC (INTERNAL)",
    "RESOURCE_EXHAUSTED": "it has too much to do, or says too much at once (RESOURCE_EXHAUSTED)",
    "UNKNOWN": "it is in trouble, or does not speak gRPC (UNKNOWN)",
}
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE),
    ("grpc.service_config", _RESULT_LIMIT),
    # ms. A server that vanished without a word is noticed in 40 s, also while an action runs.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class Blob(NamedTuple):
    """The name of a content: its sha256 and its size in bytes."""

    digest: str
    size: int


class BlobError(ValueError):
    """A message that names content in a way that is not of the protocol, or too large."""


Keep: TypeAlias = Callable[[Blob, Iterable[bytes]], None]
"""A function that gets a blob and its content, in pieces. It reads at most the blob's size."""


def make_blob(data: bytes) -> Blob:
    """Return the blob with this content."""
    return Blob(sha256_bytes(data), len(data))


class ReapiBackend:
    """The server of a `grpc://` or `grpcs://` address."""

    batch = 16
    width = 4

    def __init__(self, settings: RemoteSettings) -> None:
        """Raises `RemoteTroubleError` for certificates that cannot be read."""
        self._settings = settings
        self._credentials = Credentials(settings)
        self._lock = threading.Lock()
        self._capabilities: reapi.ServerCapabilities | RemoteTroubleError | None = None
        self._limit = _MESSAGE - _MARGIN
        tool = reapi.ToolDetails(tool_name="tilusbuild", tool_version=__version__)
        metadata = reapi.RequestMetadata(tool_details=tool, tool_invocation_id=str(uuid.uuid4()))
        self._request_metadata = metadata.SerializeToString()
        target = urlsplit(settings.address).netloc
        self._channel: Any = (
            grpc.secure_channel(target, _load_credentials(settings), options=_OPTIONS)
            if settings.scheme == "grpcs"
            else grpc.insecure_channel(target, options=_OPTIONS)
        )

    def check_access(self, *, write: bool) -> str:
        """Return a text on the server's version, limit and abilities. Raises `RemoteTroubleError`,
        also, with `write`, for a server that takes no records."""
        server = self._require_capabilities()
        low, high = server.low_api_version, server.high_api_version
        cache = server.cache_capabilities
        takes_records = cache.action_cache_update_capabilities.update_enabled
        if write and not takes_records:
            raise RemoteTroubleError("the server takes no records from this client", retry=False)
        parts = [
            f"Remote Execution API {low.major}.{low.minor} to {high.major}.{high.minor}, SHA256",
            f"messages up to {(self._limit + _MARGIN) >> 20} MiB",
            "takes records" if takes_records else "takes no records",
            "executes" if server.execution_capabilities.exec_enabled else "executes nothing",
        ]
        return ", ".join(parts)

    def fetch_files(self, keys: Sequence[str], take: TakeFile) -> None:
        """Call `take` with the content of each key's file, as `Backend.fetch_files`. Results are
        asked for together, and then the contents."""
        keys_by_blob: dict[Blob, list[str]] = {}
        for key, blob in zip(keys, self._find_entry_blobs(keys), strict=True):
            if blob is not None:
                keys_by_blob.setdefault(blob, []).append(key)

        def keep_blob(blob: Blob, pieces: Iterable[bytes]) -> None:
            # Two keys have one blob only where a writer lies: the second has no content.
            for key in keys_by_blob[blob]:
                take(key, pieces)

        self.fetch_blobs(keys_by_blob.keys(), keep_blob)

    def has_file(self, key: str) -> bool:
        (blob,) = self._find_entry_blobs([key])
        return blob is not None and not self.find_missing([blob])

    def send_file(self, key: str, data: bytes) -> None:
        """Send the content, and record its blob as the output of an action whose digest is that of
        the key. Raises `RemoteTroubleError`."""
        blob = make_blob(data)
        # First the content: a server may refuse a result whose files it does not have.
        self.send_blobs({blob: data})
        result = reapi.ActionResult()
        result.output_files.add(path=_ENTRY, digest=make_digest(blob))
        request = reapi.UpdateActionResultRequest(
            instance_name=self._settings.instance,
            action_digest=make_digest(make_blob(key.encode())),
            action_result=result,
        )
        self._call_method(f"{V2}.ActionCache/UpdateActionResult", request, reapi.ActionResult)

    def _find_entry_blobs(self, keys: Sequence[str]) -> list[Blob | None]:
        """Return the blob of each key's file; None for a key without a file."""
        self._require_capabilities()
        # All calls are started before the first is waited for: one round trip, not sixteen.
        calls = []
        for key in keys:
            request = reapi.GetActionResultRequest(
                instance_name=self._settings.instance,
                action_digest=make_digest(make_blob(key.encode())),
            )
            calls.append(self._start_call(f"{V2}.ActionCache/GetActionResult", request))
        results = [self._finish_call(call, reapi.ActionResult, absent=True) for call in calls]
        return [_find_entry_blob(result) for result in results]

    def fetch_blobs(self, blobs: Collection[Blob], keep: Keep) -> None:
        """Call `keep` with the content of each blob that the server has, unchecked. Raises
        `RemoteTroubleError`, and the exceptions of `keep`."""
        self._require_capabilities()
        small = [blob for blob in blobs if blob.size <= self._limit - _OVERHEAD]
        for batch in split_into_batches(small, self._limit):
            request = reapi.BatchReadBlobsRequest(
                instance_name=self._settings.instance, digests=map(make_digest, batch)
            )
            answer = self._call_method(
                f"{_CAS}/BatchReadBlobs", request, reapi.BatchReadBlobsResponse
            )
            for response in answer.responses:
                blob = Blob(response.digest.hash, response.digest.size_bytes)
                # A server may send what was not asked for.
                if not response.status.code and blob in batch:
                    keep(blob, (response.data,))
        for blob in blobs:
            if blob.size > self._limit - _OVERHEAD:
                self._fetch_stream(blob, keep)

    def read_blobs(self, blobs: Collection[Blob]) -> Mapping[Blob, bytes]:
        """Return the content of small blobs, unchecked. Raises `RemoteTroubleError`."""
        contents: dict[Blob, bytes] = {}

        def keep_blob(blob: Blob, pieces: Iterable[bytes]) -> None:
            data = bytearray()
            for piece in pieces:
                # Of content that is too long, one byte too many is kept: then its digest is wrong,
                # and the caller refuses the content.
                data += piece[: blob.size + 1 - len(data)]
                if len(data) > blob.size:
                    break
            contents[blob] = bytes(data)

        self.fetch_blobs(blobs, keep_blob)
        return contents

    def find_missing(self, blobs: Collection[Blob]) -> Collection[Blob]:
        """Return the blobs that the server does not have. Raises `RemoteTroubleError`."""
        self._require_capabilities()
        missing: list[Blob] = []
        batch_size = self._limit // _OVERHEAD
        all_blobs = list(blobs)
        for start in range(0, len(all_blobs), batch_size):
            request = reapi.FindMissingBlobsRequest(
                instance_name=self._settings.instance,
                blob_digests=map(make_digest, all_blobs[start : start + batch_size]),
            )
            answer = self._call_method(
                f"{_CAS}/FindMissingBlobs", request, reapi.FindMissingBlobsResponse
            )
            missing += [Blob(d.hash, d.size_bytes) for d in answer.missing_blob_digests]
        # A server may name blobs that were not asked for.
        return set(missing).intersection(all_blobs)

    def send_blobs(self, blobs: Mapping[Blob, bytes]) -> None:
        """Send the contents of blobs, small ones in batches and large ones as streams. Raises
        `RemoteTroubleError`, also for a blob that the server does not take."""
        self._require_capabilities()
        small = [blob for blob in blobs if blob.size <= self._limit - _OVERHEAD]
        for batch in split_into_batches(small, self._limit):
            request = reapi.BatchUpdateBlobsRequest(instance_name=self._settings.instance)
            for blob in batch:
                request.requests.add(digest=make_digest(blob), data=blobs[blob])
            answer = self._call_method(
                f"{_CAS}/BatchUpdateBlobs", request, reapi.BatchUpdateBlobsResponse
            )
            for response in answer.responses:
                if response.status.code:
                    why = describe_status(response.status)
                    raise RemoteTroubleError(f"{self._settings.address} takes no blob: {why}")
        for blob in blobs.keys() - set(small):
            self._write_stream(blob, blobs[blob])

    def open_stream(self, name: str, request: Any) -> Any:
        """Begin a call that answers with messages, as bytes. Raises `RemoteTroubleError`."""
        self._require_capabilities()
        return self._begin_call(self._channel.unary_stream(name), request.SerializeToString())

    def attempt_call(self, name: str, request: Any, seconds: float) -> None:
        """Call a method that the server need not have, and wait at most `seconds` for its end. The
        answer and errors are ignored."""
        with suppress(RemoteTroubleError):
            self._finish_call(self._start_call(name, request, seconds))

    def is_alive(self) -> bool:
        """Return whether the server answers at all."""
        with suppress(RemoteTroubleError):
            self._ask_capabilities()
            return True
        return False

    def close(self) -> None:
        self._channel.close()

    def _require_capabilities(self) -> reapi.ServerCapabilities:
        """Return the server's capabilities, which are asked once.

        An error is kept and raised to every caller: threads that wait here would each wait as long.
        """
        with self._lock:
            if self._capabilities is None:
                try:
                    self._capabilities = self._ask_capabilities()
                except RemoteTroubleError as error:
                    # `retry=False`: the next attempt would fail alike, and take as long.
                    self._capabilities = RemoteTroubleError(str(error), retry=False)
            if isinstance(self._capabilities, RemoteTroubleError):
                raise self._capabilities
            return self._capabilities

    def _ask_capabilities(self) -> reapi.ServerCapabilities:
        """Ask the server for its capabilities, and lower `_limit` to its limit of a message. Raises
        `RemoteTroubleError`, also for a server without SHA256."""
        request = reapi.GetCapabilitiesRequest(instance_name=self._settings.instance)
        name, seconds = f"{V2}.Capabilities/GetCapabilities", self._settings.connect_timeout
        server: reapi.ServerCapabilities = self._finish_call(
            self._start_call(name, request, seconds), reapi.ServerCapabilities
        )
        if _SHA256 not in server.cache_capabilities.digest_functions:
            raise RemoteTroubleError(f"{self._settings.address} does not name content by SHA256")
        server_limit = server.cache_capabilities.max_batch_total_size_bytes
        if 0 < server_limit < _MESSAGE:
            # The server's limit is for the blobs' contents, and its gRPC counts the whole message.
            margin = min(_MARGIN, server_limit // 4)
            self._limit = max(server_limit - margin, _OVERHEAD * 2)
        return server

    def _make_metadata(self) -> list[tuple[str, str | bytes]]:
        headers = [
            (name.lower(), value) for name, value in self._credentials.collect_headers().items()
        ]
        key = "build.bazel.remote.execution.v2.requestmetadata-bin"
        return [*headers, (key, self._request_metadata)]

    def _begin_call(self, call: Callable[..., Any], data: Any, seconds: float | None = None) -> Any:
        """Start a call with the client's headers, and a timeout in seconds (by default that of the
        settings). Return grpc's object for its answer. Raises `RemoteTroubleError`."""
        timeout = self._settings.timeout if seconds is None else seconds
        metadata = self._make_metadata()
        try:
            return call(data, timeout=timeout, metadata=metadata)
        except ValueError:  # grpc's word for a channel that was closed
            raise RemoteTroubleError("closed", retry=False) from None

    def _start_call(self, name: str, request: Any, seconds: float | None = None) -> Any:
        call = self._channel.unary_unary(name).future
        return self._begin_call(call, request.SerializeToString(), seconds)

    def _finish_call(self, call: Any, kind: Any = None, *, absent: bool = False) -> Any:
        """Wait for a call. Return its answer as a message of class `kind`, or None without a
        `kind`. With `absent`, the status NOT_FOUND also gives None. Raises
        `RemoteTroubleError`."""
        try:
            data = call.result()
        except grpc.FutureCancelledError:
            raise RemoteTroubleError("closed", retry=False) from None
        except grpc.RpcError as error:
            if absent and error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise self.explain_error(error) from None
        return None if kind is None else parse_message(kind, data)

    def _call_method(self, name: str, request: Any, kind: Any) -> Any:
        return self._finish_call(self._start_call(name, request), kind)

    def _fetch_stream(self, blob: Blob, keep: Keep) -> None:
        """Call `keep` with the content of a large blob, unless the server does not have the
        blob."""
        name = f"{self._instance}blobs/{blob.digest}/{blob.size}"
        request = reapi.ReadRequest(resource_name=name)
        answers = self.open_stream("/google.bytestream.ByteStream/Read", request)
        try:
            keep(blob, (parse_message(reapi.ReadResponse, data).data for data in answers))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise self.explain_error(error) from None
        finally:
            answers.cancel()  # `keep` may have stopped before the end of content that is too long

    def _write_stream(self, blob: Blob, data: bytes) -> None:
        """Send the content of a large blob as a stream. Raises `RemoteTroubleError`."""
        name = f"{self._instance}uploads/{uuid.uuid4()}/blobs/{blob.digest}/{blob.size}"

        def generate_requests() -> Iterator[bytes]:
            for start in range(0, len(data), _CHUNK):
                yield reapi.WriteRequest(
                    # The protocol wants it in the first message only.
                    resource_name=name if start == 0 else "",
                    write_offset=start,
                    data=data[start : start + _CHUNK],
                    finish_write=start + _CHUNK >= len(data),
                ).SerializeToString()

        call = self._channel.stream_unary("/google.bytestream.ByteStream/Write").future
        answer = self._finish_call(self._begin_call(call, generate_requests()), reapi.WriteResponse)
        # A server that has the blob already ends the call early, and answers with the whole size.
        if answer.committed_size != blob.size:
            raise RemoteTroubleError(f"{self._settings.address} keeps a blob in part")

    @property
    def _instance(self) -> str:
        return f"{self._settings.instance}/" if self._settings.instance else ""

    def explain_error(self, error: Any) -> RemoteTroubleError:
        """Return a gRPC error as `RemoteTroubleError`. The text is ours, with one line of the
        server's message where we have no text."""
        code = error.code().name
        details = clean_line(error.details() or "")
        server_text = f": {details}" if details else ""
        why = _STATUS_TEXTS.get(code) or f"it answers {code}{server_text}"
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            why = f"it answers {code}; {explain_credentials(self._settings)}"
        elif "CERTIFICATE_VERI" in details:  # …FY_FAILED; gRPC cuts it
            why = UNTRUSTED
        elif (
            self._settings.scheme == "grpcs"
            and details.endswith("header with status: 400")
            and not self._settings.tls_certificate
        ):
            why += f"; {UNKNOWN_CLIENT}"
        return RemoteTroubleError(f"{self._settings.address}: {why}", retry=code in _RETRIED_STATUS)


def clean_line(text: str) -> str:
    """Return the first line of a server's text without unprintable characters, cut to
    `_MAX_LINE`."""
    first_line = text.partition("\n")[0][:_MAX_LINE]
    return "".join(letter for letter in first_line if letter.isprintable())


def describe_status(status: reapi.Status) -> str:
    """Return a status as one line for people."""
    return clean_line(status.message) or f"code {status.code}"


def split_into_batches(blobs: Iterable[Blob], limit: int) -> Iterator[list[Blob]]:
    """Yield blobs in lists that make messages of at most `limit` bytes; a larger blob comes
    alone."""
    batch: list[Blob] = []
    size = 0
    for blob in blobs:
        if batch and size + blob.size + _OVERHEAD > limit:
            yield batch
            batch, size = [], 0
        batch.append(blob)
        size += blob.size + _OVERHEAD
    if batch:
        yield batch


def make_digest(blob: Blob) -> reapi.Digest:
    """Return the `Digest` message of a blob."""
    return reapi.Digest(hash=blob.digest, size_bytes=blob.size)


def parse_message(kind: Any, data: bytes) -> Any:
    """Return the message in these bytes. Raises `RemoteTroubleError`."""
    try:
        return kind.FromString(data)
    except Exception:  # protobuf's DecodeError, of whichever implementation
        raise RemoteTroubleError("the server's answer cannot be read") from None


def _load_credentials(settings: RemoteSettings) -> Any:
    """Return grpc's credentials with the CA and the client's certificate of the settings. Raises
    `RemoteTroubleError` for files that cannot be read."""
    paths = (settings.tls_ca, settings.tls_key, settings.tls_certificate)
    try:
        texts = [read_bytes(os.path.expanduser(path)) if path else None for path in paths]
    except OSError as error:
        why = f"tls-ca, tls-certificate or tls-key: {error.strerror}"
        raise RemoteTroubleError(why, retry=False) from None
    return grpc.ssl_channel_credentials(*texts)


def parse_digest(digest: reapi.Digest) -> Blob:
    """Return the blob that a digest message names. Raises `BlobError` for a malformed digest."""
    if not layout.is_hash(digest.hash) or not 0 <= digest.size_bytes <= MAX_BYTES:
        raise BlobError(f"no such digest: {digest.hash[:80]!r} of {digest.size_bytes} bytes")
    return Blob(digest.hash, digest.size_bytes)


def _find_entry_blob(result: reapi.ActionResult | None) -> Blob | None:
    """Return the blob of the file that a result names; None for a result without one."""
    if result is None:
        return None
    for file in result.output_files:
        if file.path == _ENTRY:
            with suppress(BlobError):
                return parse_digest(file.digest)
    return None
