"""Which remote cache a build uses, and how: the environment ▸ `[remote]` ▸ the user's settings.

The user's settings are the table `[remote]` of `~/.config/tilusbuild/config.toml`. A secret, and a
program to run, come from the environment or from there, never from a manifest. Headers and client
certificates are given only to the server that the user named there: a manifest that names another
gets none. Imports no protocol.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from tilusbuild.errors import Diagnostic, InputError, input_error
from tilusbuild.manifest.document import read_document
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.settings import REMOTE_PREFIX, SWITCH
from tilusbuild.manifest.table import Text

OFF = "off"
"""As an address in the environment: no remote cache, whatever the manifest says."""

ADDRESSES = ("cache", "executor")

INSTALL = "pip install 'tilusbuild[remote]'"
"""What brings the libraries of the protocols."""


class UserRemote(RemoteSection):
    """`[remote]` of the user's settings: what a manifest may say, and what it may not."""

    headers: dict[str, str] = Field({}, description="Sent with each request.")
    credential_helper: Text | None = Field(None, description="A program that answers `get`.")
    tls_ca: Text | None = Field(None, description="Certificates to trust.")
    tls_certificate: Text | None = Field(None, description="The client's own.")
    tls_key: Text | None = Field(None, description="Its key.")


_SECRETS = ("headers", "tls_certificate", "tls_key")
"""What is given to a server. A credential helper is told which one it is, and decides itself."""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """A remote cache, and how it is used. Times are seconds."""

    address: str
    source: str
    instance: str = ""
    write: bool = False
    connect_timeout: float = 5.0
    timeout: float = 60.0
    patience: float = 5.0
    send_timeout: float = 30.0
    verify: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 64
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credential_helper: str | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    withheld: bool = False
    """Whether there are secrets that are not for this server."""

    @property
    def scheme(self) -> str:
        return urlsplit(self.address).scheme

    @property
    def path(self) -> str:
        return urlsplit(self.address).path


def not_installed(error: ImportError) -> str:
    """Return in words which library of a protocol is missing, and what brings it."""
    return f"{error.name} is not installed: {INSTALL}"


def user_file(environment: Mapping[str, str]) -> str | None:
    """Return the path of the user's settings; None without a home."""
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "tilusbuild", "config.toml")


def decide(
    section: RemoteSection | None, environment: Mapping[str, str], key: str = "cache"
) -> RemoteSettings | None:
    """Return the remote cache to use, or None; with the key "executor", who else compiles. Raises
    `InputError` for wrong settings."""
    given = _from_environment(environment)
    if given.get(key) == OFF:
        return None
    path = user_file(environment)
    user = {} if path is None else _of_user(path)
    declared = {} if section is None else section.model_dump(exclude_unset=True)
    layers = ((given, REMOTE_PREFIX), (declared, "tilus.toml"), (user, path or ""))
    address, source = next(
        ((layer[key], source) for layer, source in layers if layer.get(key)), (None, "")
    )
    if address is None:
        return None
    whole: dict[str, Any] = {**user, **declared, **given}
    own = given.get(key) or user.get(key)
    withheld = False
    if own is None or _origin(own) != _origin(address):
        withheld = any([whole.pop(name, None) for name in _SECRETS])  # noqa: C419 - take out all
    for name in ADDRESSES:
        whole.pop(name, None)
    return RemoteSettings(
        address=address,
        source=f"{source}{key.upper()}" if source == REMOTE_PREFIX else source,
        withheld=withheld,
        **whole,
    )


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _of_user(path: str) -> dict[str, Any]:
    if not os.path.lexists(path):
        return {}
    document = read_document(path)
    others = [
        Diagnostic(f'unknown key "{key}"', document.key(key), "there is only the table [remote]")
        for key in document.data
        if key != "remote"
    ]
    if others:
        raise InputError(*others)
    try:
        table = UserRemote.model_validate(document.data.get("remote", {}))
    except ValidationError as error:
        raise InputError(
            *(
                Diagnostic(_said(each), document.value("remote", *each["loc"]))
                for each in error.errors(include_url=False)
            )
        ) from None
    return table.model_dump(exclude_unset=True)


def _said(detail: Any) -> str:
    name = ".".join(map(str, detail["loc"])) or "remote"
    if detail["type"] == "extra_forbidden":
        return f'unknown key "{name}" in [remote]'
    if detail["type"] == "tilusbuild":
        return f'"{name}" {detail["ctx"]["message"]}'
    return f'"{name}" is wrong: {detail["msg"]}'


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the environment sets, checked. Raises `InputError` that names the variable."""
    off = {key: OFF for key in ADDRESSES if environment.get(REMOTE_PREFIX + key.upper()) == OFF}
    try:
        table = UserRemote.model_validate(dict(_read(environment)))
    except ValidationError as error:
        raise InputError(
            *(
                Diagnostic(
                    f"{REMOTE_PREFIX}{str(each['loc'][0]).upper().replace('-', '_')}: {_said(each)}"
                )
                for each in error.errors(include_url=False)
            )
        ) from None
    return table.model_dump(exclude_unset=True) | off


def _read(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name in UserRemote.model_fields:
        variable = REMOTE_PREFIX + name.upper()
        # An empty variable is how a shell unsets one for a single command.
        if not (text := environment.get(variable)) or (name in ADDRESSES and text == OFF):
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
