"""The choice of a build's remote cache: the environment ▸ `[remote]` ▸ the user's settings.

The user's settings are the table `[remote]` of `~/.config/tilusbuild/config.toml`. A secret, and a
program to run, come from the environment or from there, never from a manifest. Headers and client
certificates are given only to the server that the user named there: a manifest that names another
gets none. No message contains a value or a line: they may be secrets. Imports no protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tilusbuild.errors import Diagnostic, InputError, Location, did_you_mean, input_error
from tilusbuild.manifest.document import read_document, shorten_path
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.settings import REMOTE_ADDRESSES, REMOTE_OFF, REMOTE_PREFIX, SWITCH
from tilusbuild.manifest.table import ValueFault, check_table
from tilusbuild.remote.settings import RemoteSettings, make_settings

# What is given to a server. A credential helper gets the address, and decides itself.
_SECRETS = ("headers", "tls_certificate", "tls_key")


def choose_remote(
    section: RemoteSection | None, environment: Mapping[str, str], key: str = "cache"
) -> RemoteSettings | None:
    """Return the settings of the server whose address has this key of `[remote]`: "cache", the
    remote cache, or "executor". Return None without an address. Raises `InputError`."""
    variables: Mapping[str, Any] = {}
    if any(name.startswith(REMOTE_PREFIX) for name in environment):
        variables = read_environment(environment)
    if variables.get(key) == REMOTE_OFF:
        return None
    path = find_user_file(environment)
    user_values: Mapping[str, Any] = {}
    if path is not None and os.path.lexists(path):
        user_values = read_user_file(path)
    manifest_values = {} if section is None else section.given
    layers = (
        (variables, f"{REMOTE_PREFIX}{key.upper()}"),
        (manifest_values, "tilus.toml"),
        (user_values, path or ""),
    )
    layers_with_address = [(layer, source) for layer, source in layers if layer.get(key)]
    if not layers_with_address:
        return None
    address_layer, source = layers_with_address[0]
    address = address_layer[key]
    values: dict[str, Any] = {**user_values, **manifest_values, **variables}
    user_address = variables.get(key) or user_values.get(key)
    is_withheld = False
    # Secrets go only to the server that the user named: a manifest may name any server, which
    # could collect them.
    if user_address is None or _split_server(user_address) != _split_server(address):
        for name in _SECRETS:
            if values.pop(name, None):
                is_withheld = True
    for name in REMOTE_ADDRESSES:
        values.pop(name, None)
    return make_settings(address, source, _withheld=is_withheld, **values)


def find_user_file(environment: Mapping[str, str]) -> str | None:
    """Return the path of the user's settings, which need not exist; None if the environment has
    neither an absolute XDG_CONFIG_HOME nor an absolute HOME."""
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environment.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return os.path.join(base, "tilusbuild", "config.toml")


def _split_server(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def read_user_file(path: str) -> dict[str, Any]:
    """Return the values of the user's settings file. Raises `InputError` with the place of a
    mistake and our own keys only: the text of the file may be a secret."""
    try:
        document = read_document(path)
        tables = document.data
    except InputError as error:
        raise InputError(*map(_hide_file_text, error.diagnostics)) from None
    except RecursionError:
        raise input_error("is nested too deeply", location=Location(shorten_path(path))) from None
    remote = tables.pop("remote", {})
    if tables:
        hint = "there is only the table [remote]"
        positions = [_hide_source_line(document.locate_key(key)) for key in tables]
        raise InputError(*(Diagnostic("an unknown key", position, hint) for position in positions))

    def make_diagnostic(key_path: Any, message: str, hint: str | None) -> Diagnostic:
        position = _hide_source_line(document.locate_value("remote", *key_path))
        return Diagnostic(message, position, hint)

    return _check_table(remote, make_diagnostic)


def _check_table(
    table: Any, make_diagnostic: Callable[[Any, str, str | None], Diagnostic]
) -> dict[str, Any]:
    """Return the values of a table. Raises `InputError` with a diagnostic for each mistake, which
    `make_diagnostic` makes of a key's path, a message and a hint."""
    from pydantic import ValidationError  # slow to import, and few users have settings

    try:
        return dict(check_table(RemoteSettings, table).given)
    except ValidationError as error:
        diagnostics = []
        for detail in error.errors(include_url=False):
            message, hint = _describe_mistake(detail)
            diagnostics.append(make_diagnostic(detail["loc"], message, hint))
        raise InputError(*diagnostics) from None


def _hide_file_text(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic that quotes nothing of the file. One with a line gets a general message
    at its place; one without a line keeps its message, which is the system's."""
    position = diagnostic.location or Location("")
    if position.line is None:
        return Diagnostic(diagnostic.message, position)
    hint = "a string that is not closed or has no quotes, perhaps; the line is not shown"
    return Diagnostic("not TOML, or not UTF-8", _hide_source_line(position), hint)


def _hide_source_line(position: Location) -> Location:
    return Location(position.path, position.line, position.column)


def _describe_mistake(detail: Any) -> tuple[str, str | None]:
    """Return a message and a hint for a mistake, one of pydantic's error details. Both name our own
    keys only, and show no value."""
    key = str(detail["loc"][0]) if detail["loc"] else "remote"
    if detail["type"] == "extra_forbidden":
        return "an unknown key in [remote]", did_you_mean(key, RemoteSettings.map_fields_by_key())
    if detail["type"] == "value_error":
        error: ValueFault = detail["ctx"]["error"]
        return f'"{key}" {error.message}', error.hint
    return f'"{key}" is wrong: {detail["msg"]}', None


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the checked values of the environment's variables. Raises `InputError` with the
    variable's name."""
    disabled_addresses = {
        key: REMOTE_OFF
        for key in REMOTE_ADDRESSES
        if environment.get(REMOTE_PREFIX + key.upper()) == REMOTE_OFF
    }

    def make_diagnostic(key_path: Any, message: str, hint: str | None) -> Diagnostic:
        variable = REMOTE_PREFIX + str(key_path[0]).upper().replace("-", "_")
        return Diagnostic(f"{variable}: {message}", hint=hint)

    values = _check_table(dict(_read_variables(environment)), make_diagnostic)
    return values | disabled_addresses


def _read_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the key of `[remote]` and the value of each variable that is set; an address "off" is
    left out. Raises `InputError` for a text that cannot be a value of its key."""
    for name in RemoteSettings.map_fields_by_key().values():
        variable = REMOTE_PREFIX + name.upper()
        text = environment.get(variable)
        # An empty variable is how a shell unsets one for a single command.
        if not text or (name in REMOTE_ADDRESSES and text == REMOTE_OFF):
            continue
        value: Any = text
        if name == "write":
            value = SWITCH.get(text.lower())
            if value is None:
                raise input_error(f"{variable} must be 1 or 0")
        elif name == "headers":
            lines = [line for line in text.splitlines() if line.strip()]
            value = _parse_pairs(lines, ":", f"{variable} must hold lines of the form NAME: VALUE")
        elif name == "properties":
            pairs = text.split(",")
            value = _parse_pairs(pairs, "=", f'{variable} must be as "NAME=VALUE,NAME=VALUE"')
        elif name == "jobs" and text.isdecimal():
            value = int(text)
        yield name.replace("_", "-"), value


def _parse_pairs(texts: Sequence[str], separator: str, message: str) -> dict[str, str]:
    """Return the values by name of texts of the form NAME, separator, VALUE. Raises `InputError`
    with this message, and without the text, which may be a secret."""
    parts = [text.partition(separator) for text in texts]
    if not all(sign and name.strip() for name, sign, _ in parts):
        raise input_error(message)
    return {name.strip(): value.strip() for name, _, value in parts}
