"""What a user says of a remote cache, checked: in the environment, and in the settings at home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tilusbuild.errors import Diagnostic, InputError, Place, did_you_mean, input_error
from tilusbuild.manifest.document import read_document, shown_path
from tilusbuild.manifest.sections import RemoteSection
from tilusbuild.manifest.settings import REMOTE_ADDRESSES, REMOTE_OFF, REMOTE_PREFIX, SWITCH
from tilusbuild.manifest.table import NOTHING, Entries, Fault, Text, checked


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
    """Return what the user's settings have. Raises `InputError`, which names places and keys that
    are known, and says nothing else of what is in the file: a mistake is where a secret may be."""
    try:
        document = read_document(path)
        given = document.data
    except InputError as error:
        raise InputError(*map(_unseen, error.diagnostics)) from None
    except RecursionError:
        raise input_error("is nested too deeply", place=Place(shown_path(path))) from None
    remote = given.pop("remote", {})
    if given:
        hint = "there is only the table [remote]"
        places = [_bare(document.key(key)) for key in given]
        raise InputError(*(Diagnostic("an unknown key", place, hint) for place in places))
    try:
        return dict(checked(UserRemote, remote).given)
    except ValidationError as error:
        raise InputError(
            *(
                Diagnostic(said, _bare(document.value("remote", *each["loc"])), hint)
                for each in error.errors(include_url=False)
                for said, hint in [_said(each)]
            )
        ) from None


def _unseen(found: Diagnostic) -> Diagnostic:
    """Return what is wrong with a text that cannot be read, without a word of it."""
    place = found.place or Place("")
    if place.line is None:
        return Diagnostic(found.message, place)
    hint = "a string that is not closed or has no quotes, perhaps; the line is not shown"
    return Diagnostic("not TOML, or not UTF-8", _bare(place), hint)


def _bare(place: Place) -> Place:
    return Place(place.path, place.line, place.column)


def _said(detail: Any) -> tuple[str, str | None]:
    """Return what is wrong, with the names of our own keys only, and a hint."""
    key = str(detail["loc"][0]) if detail["loc"] else "remote"
    if detail["type"] == "extra_forbidden":
        return "an unknown key in [remote]", did_you_mean(key, UserRemote.fields_by_key())
    if detail["type"] == "value_error":
        error: Fault = detail["ctx"]["error"]
        return f'"{key}" {error.message}', error.hint
    return f'"{key}" is wrong: {detail["msg"]}', None


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
                Diagnostic(f"{_variable(each)}: {said}", hint=hint)
                for each in error.errors(include_url=False)
                for said, hint in [_said(each)]
            )
        ) from None
    return dict(table.given) | off


def _variable(detail: Any) -> str:
    return REMOTE_PREFIX + str(detail["loc"][0]).upper().replace("-", "_")


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
                raise input_error(f"{variable} must be 1 or 0")
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
