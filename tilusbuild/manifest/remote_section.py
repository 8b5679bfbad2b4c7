"""The section `[remote]`: a cache that other machines share. What is secret, or a program to run,
is not taken from a manifest, which may be someone else's work: see `remote.settings`."""

from contextlib import suppress
from typing import Annotated

from tilusbuild.manifest.table import NOTHING, Duration, Entries, Fault, Key, Table, Text

SCHEMES = ("file", "http", "https", "grpc", "grpcs")


def checked_address(value: str) -> str:
    """Return the address of a remote cache. Raises `Fault` for one that is none."""
    from urllib.parse import urlsplit

    from tilusbuild.rooms import brought

    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise Fault(f"is not an address: {error}", _EXAMPLE) from None
    if parts.scheme not in SCHEMES and parts.scheme not in brought("remote backend"):
        raise Fault(f"must begin with one of {', '.join(f'{s}://' for s in SCHEMES)}", _EXAMPLE)
    if parts.query or parts.fragment or not value.isascii() or not value.isprintable():
        raise Fault("must be a plain address, without query and fragment", _EXAMPLE)
    if "@" in parts.netloc:
        raise Fault(
            "must hold no user and no password",
            "headers and a credential helper are of the user's settings: docs/remote.md",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise Fault("must name an absolute directory", "as in file:///shared/kernels")
    elif not parts.hostname or port == 0:
        raise Fault("must name a host", _EXAMPLE)
    elif parts.scheme in ("grpc", "grpcs") and (parts.path.strip("/") or port is None):
        raise Fault("must be a host and a port", _EXAMPLE)
    return value.rstrip("/")


_EXAMPLE = "as in grpcs://cache.example:443, https://cache.example/kernels or file:///shared"

Address = Annotated[
    Text,
    Key(
        after=checked_address,
        schema={"type": "string", "pattern": f"^({'|'.join(SCHEMES)})://.+"},
    ),
]


def _share(value: object) -> float:
    number = value
    if isinstance(value, str):  # of the environment
        with suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
        raise Fault("must be a number from 0 to 1", "0.02 is one in fifty")
    return float(number)


Share = Annotated[float, Key(plain=_share, schema={"type": "number", "minimum": 0, "maximum": 1})]


class RemoteSection(Table, frozen=True):
    """A cache that other machines share. Each key can be given in the environment, too, as
    `TILUSBUILD_REMOTE_CACHE` and so on, and in the user's settings: `docs/remote.md`."""

    cache: Annotated[Address | None, Key(examples=["grpcs://cache.example:443"])] = None
    """Where it is: `grpcs://` or `grpc://` and a server of the Remote Execution API v2, `https://`
    or `http://` and one of `/ac` and `/cas`, or `file://` and a directory. What is missing here is
    fetched from there instead of compiled."""
    executor: Annotated[Address | None, Key(examples=["grpcs://farm.example:443"])] = None
    """A server of the Remote Execution API v2 whose workers compile beside this machine's cores."""
    properties: Annotated[Entries[str], Key(examples=[{"OSFamily": "linux"}])] = NOTHING
    """What a worker must be, in the words of the server."""
    jobs: Annotated[int, Key(ge=1, le=10_000, examples=[200])] = 64
    """How many programs workers compile at once."""
    instance: Annotated[str, Key(examples=["kernels"])] = ""
    """The server's instance, where it has several."""
    write: bool = False
    """Send what is compiled here, too."""
    connect_timeout: Annotated[Duration, Key(examples=["2s"])] = 5.0
    """How long connecting may take before it is done without."""
    timeout: Annotated[Duration, Key(examples=["10s"])] = 60.0
    """How long one request may take."""
    patience: Annotated[Duration, Key(examples=["1m"])] = 5.0
    """How long cores that have nothing to do wait for an answer before they compile what was asked
    for."""
    send_timeout: Annotated[Duration, Key(examples=["2m"])] = 30.0
    """How long the end of a build waits for what is still to be sent."""
    verify: Annotated[Share, Key(examples=[0.02])] = 0.0
    """The part of what is there that is compiled here as well and compared, 0 to 1. After a program
    with other bytes nothing of the cache is used."""
