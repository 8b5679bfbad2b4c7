"""The section `[remote]`: a cache that other machines share. What is secret, or a program to run,
is not taken from a manifest, which may be someone else's work: see `remote.settings`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from tilusbuild.manifest.table import Duration, Entries, ManifestTable, Text, entries, fault
from tilusbuild.rooms import brought

SCHEMES = ("file", "http", "https", "grpc", "grpcs")


def checked_address(value: str) -> str:
    """Return the address of a remote cache. Raises pydantic's error for one that is none."""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise fault(f"is not an address: {error}", _EXAMPLE) from None
    if parts.scheme not in SCHEMES and parts.scheme not in brought("remote backend"):
        raise fault(f"must begin with one of {', '.join(f'{s}://' for s in SCHEMES)}", _EXAMPLE)
    if parts.query or parts.fragment or not value.isascii() or not value.isprintable():
        raise fault("must be a plain address, without query and fragment", _EXAMPLE)
    if "@" in parts.netloc:
        raise fault(
            "must hold no user and no password",
            "headers and a credential helper are of the user's settings: docs/remote.md",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise fault("must name an absolute directory", "as in file:///shared/kernels")
    elif not parts.hostname or port == 0:
        raise fault("must name a host", _EXAMPLE)
    elif parts.scheme in ("grpc", "grpcs") and (parts.path.strip("/") or port is None):
        raise fault("must be a host and a port", _EXAMPLE)
    return value.rstrip("/")


_EXAMPLE = "as in grpcs://cache.example:443, https://cache.example/kernels or file:///shared"

Address = Annotated[
    Text,
    AfterValidator(checked_address),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(SCHEMES)})://.+"}),
]


def _share(value: object) -> float:
    number = value
    if isinstance(value, str):  # of the environment
        with suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
        raise fault("must be a number from 0 to 1", "0.02 is one in fifty")
    return float(number)


Share = Annotated[
    float,
    PlainValidator(_share),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1}),
]


class RemoteSection(ManifestTable):
    """A cache that other machines share. Each key can be given in the environment, too, as
    `TILUSBUILD_REMOTE_CACHE` and so on, and in the user's settings: `docs/remote.md`."""

    cache: Address | None = Field(
        None,
        description="Where it is: `grpcs://` or `grpc://` and a server of the Remote Execution API "
        "v2, `https://` or `http://` and one of `/ac` and `/cas`, or `file://` and a directory. "
        "What is missing here is fetched from there instead of compiled.",
        examples=["grpcs://cache.example:443"],
    )
    executor: Address | None = Field(
        None,
        description="A server of the Remote Execution API v2 whose workers compile beside this "
        "machine's cores.",
        examples=["grpcs://farm.example:443"],
    )
    properties: Entries[str] = Field(
        default_factory=entries,
        description="What a worker must be, in the words of the server.",
        examples=[{"OSFamily": "linux"}],
    )
    jobs: int = Field(
        64,
        ge=1,
        le=10_000,
        description="How many programs workers compile at once.",
        examples=[200],
    )
    instance: str = Field(
        "", description="The server's instance, where it has several.", examples=["kernels"]
    )
    write: bool = Field(False, description="Send what is compiled here, too.")
    connect_timeout: Duration = Field(
        5.0, description="How long connecting may take before it is done without.", examples=["2s"]
    )
    timeout: Duration = Field(60.0, description="How long one request may take.", examples=["10s"])
    patience: Duration = Field(
        5.0,
        description="How long cores that have nothing to do wait for an answer before they compile "
        "what was asked for.",
        examples=["1m"],
    )
    send_timeout: Duration = Field(
        30.0,
        description="How long the end of a build waits for what is still to be sent.",
        examples=["2m"],
    )
    verify: Share = Field(
        0.0,
        description="The part of what is there that is compiled here as well and compared, 0 to 1. "
        "After a program with other bytes nothing of the cache is used.",
        examples=[0.02],
    )
