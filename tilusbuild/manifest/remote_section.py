"""`[remote]`: the cache that machines share, in a manifest and in the user's settings."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from tilusbuild.manifest.table import NOTHING, Entries, Key, Table, ValueFault
from tilusbuild.manifest.values import Duration, Text
from tilusbuild.rooms import find_contribution, find_contributions, import_value

if TYPE_CHECKING:
    from urllib.parse import SplitResult


def check_address(value: str) -> str:
    """Return the address of a remote cache without its last slash.

    Raises `ValueFault` if it is not valid, also by the rule of its scheme.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - raises for a wrong one
    except ValueError:  # its text holds a part of the value, which may be a password
        raise ValueFault("is not an address", _ADDRESSES) from None
    if find_contribution("remote backend", parts.scheme) is None:
        prefixes = ", ".join(f"{scheme}://" for scheme in find_contributions("remote backend"))
        raise ValueFault(f"must begin with one of {prefixes}", _ADDRESSES)
    if parts.query or parts.fragment or not value.isascii() or not value.isprintable():
        raise ValueFault("must be a plain address, without query and fragment", _ADDRESSES)
    # A manifest is committed, and a secret in it with it.
    if "@" in parts.netloc:
        raise ValueFault(
            "must hold no user and no password",
            "headers and a credential helper belong to the user's settings: docs/remote.md",
        )
    rule = find_contribution("remote address", parts.scheme)
    problem = import_value(rule)(parts) if rule else None
    if problem is not None:
        raise ValueFault(*problem)
    return value.rstrip("/")


def find_directory_problem(parts: "SplitResult") -> tuple[str, str] | None:
    """Return a message and a hint for an address that names no directory; None for a right one."""
    if parts.netloc in ("", "localhost") and parts.path.strip("/"):
        return None
    return "must name an absolute directory", "as in file:///shared/kernels"


def find_host_problem(parts: "SplitResult") -> tuple[str, str] | None:
    """Return a message and a hint for an address without a host; None for a right one."""
    return None if parts.hostname and parts.port != 0 else ("must name a host", _ADDRESSES)


_ADDRESSES = "as in https://cache.example/kernels or file:///shared"

_ADDRESS_SCHEMA = {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://.+"}
Address = Annotated[Text, Key(after=check_address, schema=_ADDRESS_SCHEMA)]


def _check_share(value: object) -> float:
    """Return a number from 0 to 1, also of the environment's text. Raises `ValueFault`."""
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
        raise ValueFault("must be a number from 0 to 1", "0.02 is one in fifty")
    return float(number)


Share = Annotated[
    float, Key(plain=_check_share, schema={"type": "number", "minimum": 0, "maximum": 1})
]


class RemoteSection(Table, frozen=True):
    """A cache that other machines share, and workers that compile."""

    # What is secret, or a program to run, is not taken from a manifest, which may be someone
    # else's work: see `remote.user_settings`.

    cache: Annotated[Address | None, Key(examples=["grpcs://cache.example:443"])] = None
    """The address of the cache: `grpcs://`, `grpc://`, `https://`, `http://` or `file://`. A build
    fetches the programs that it misses."""
    executor: Annotated[Address | None, Key(examples=["grpcs://farm.example:443"])] = None
    """A server of the Remote Execution API v2, whose workers compile beside this machine's
    cores."""
    properties: Annotated[Entries[str], Key(examples=[{"OSFamily": "linux"}])] = NOTHING
    """Properties that a worker must have. The server defines their names."""
    jobs: Annotated[int, Key(ge=1, le=10_000, examples=[200])] = 64
    """The number of programs that workers compile at once."""
    instance: Annotated[str, Key(examples=["kernels"])] = ""
    """The instance, for a server that has several."""
    write: bool = False
    """Also send the programs that this machine compiles."""
    connect_timeout: Annotated[Duration, Key(examples=["2s"])] = 5.0
    """The longest time for a connection. After it, the build goes on without the server."""
    timeout: Annotated[Duration, Key(examples=["10s"])] = 60.0
    """The longest time for one request."""
    patience: Annotated[Duration, Key(examples=["1m"])] = 5.0
    """The time that idle cores wait for an answer. After it, they compile the requested program."""
    send_timeout: Annotated[Duration, Key(examples=["2m"])] = 30.0
    """The time that a build waits at its end for programs that are still being sent."""
    verify: Annotated[Share, Key(examples=[0.02])] = 0.0
    """The part of the fetched programs that this machine compiles again and compares, 0 to 1. If
    one has other bytes, the build stops using the cache."""
