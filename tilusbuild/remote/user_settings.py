"""What a user says of a remote cache, checked: in the environment, and in the settings at home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tilusbuild.errors import Diagnostic, InputError, input_error
from tilusbuild.manifest.document import read_document
from tilusbuild.manifest.sections import RemoteSection
from tilusbuild.manifest.settings import REMOTE_ADDRESSES, REMOTE_OFF, REMOTE_PREFIX, SWITCH
from tilusbuild.manifest.table import NOTHING, Entries, Text, checked


class UserRemote(RemoteSection, frozen=True):
    """`[remote]` of the user's settings: what a manifest may say, and what it may not."""

    headers: Entries[str] = NOTHING
    """Sent with each request."""
    credential_helper: Text | None = None
    """A program that answers `get`."""
    tls_ca: Text | None = None
    """Certificates to trust."""
    tls_certificate: Text | None = None
    """The client's own."""
    tls_key: Text | None = None
    """Its key."""


def of_user(path: str) -> dict[str, Any]:
    """Return what the user's settings have. Raises `InputError`."""
    document = read_document(path)
    others = [
        Diagnostic(f'unknown key "{key}"', document.key(key), "there is only the table [remote]")
        for key in document.data
        if key != "remote"
    ]
    if others:
        raise InputError(*others)
    try:
        table = checked(UserRemote, document.data.get("remote", {}))
    except ValidationError as error:
        raise InputError(
            *(
                Diagnostic(_said(each), document.value("remote", *each["loc"]))
                for each in error.errors(include_url=False)
            )
        ) from None
    return dict(table.given)


def _said(detail: Any) -> str:
    name = ".".join(map(str, detail["loc"])) or "remote"
    if detail["type"] == "extra_forbidden":
        return f'unknown key "{name}" in [remote]'
    if detail["type"] == "value_error":
        return f'"{name}" {detail["ctx"]["error"].message}'
    return f'"{name}" is wrong: {detail["msg"]}'


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the environment sets, checked. Raises `InputError` that names the variable."""
    off = {
        key: REMOTE_OFF
        for key in REMOTE_ADDRESSES
        if environment.get(REMOTE_PREFIX + key.upper()) == REMOTE_OFF
    }
    try:
        table = checked(UserRemote, dict(_read(environment)))
    except ValidationError as error:
        raise InputError(
            *(
                Diagnostic(
                    f"{REMOTE_PREFIX}{str(each['loc'][0]).upper().replace('-', '_')}: {_said(each)}"
                )
                for each in error.errors(include_url=False)
            )
        ) from None
    return dict(table.given) | off


def _read(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name in UserRemote.fields_by_key().values():
        variable = REMOTE_PREFIX + name.upper()
        # An empty variable is how a shell unsets one for a single command.
        if not (text := environment.get(variable)) or (
            name in REMOTE_ADDRESSES and text == REMOTE_OFF
        ):
            continue
        value: Any = text
        if name == "write":
            if (value := SWITCH.get(text.lower())) is None:
                raise input_error(f'{variable} must be 1 or 0, not "{text}"')
        elif name == "headers":
            value = dict(_header(variable, line) for line in text.splitlines() if line.strip())
        elif name == "properties":
            value = dict(_property(variable, word) for word in text.split(","))
        elif name == "jobs" and text.isdecimal():
            value = int(text)
        yield name.replace("_", "-"), value


def _property(variable: str, word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name.strip():
        raise input_error(f'{variable} must be as "NAME=VALUE,NAME=VALUE"')
    return name.strip(), value.strip()


def _header(variable: str, line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        # Without the line, which may be a secret.
        raise input_error(f"{variable} must hold lines of the form NAME: VALUE")
    return name.strip(), value.strip()
