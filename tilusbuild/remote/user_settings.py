"""Read the user's settings of a remote cache, from the environment and from the file at home.

No message contains a value or a line: they may be secrets. Imported only where there are such
settings, as pydantic is slow to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tilusbuild.errors import Diagnostic, InputError, Place, did_you_mean, input_error
from tilusbuild.manifest.document import read_document, shorten_path
from tilusbuild.manifest.settings import REMOTE_ADDRESSES, REMOTE_OFF, REMOTE_PREFIX, SWITCH
from tilusbuild.manifest.table import ValueFault, check_table
from tilusbuild.remote.settings import RemoteSettings


def read_user_file(path: str) -> dict[str, Any]:
    """Return the values of the user's settings file. Raises `InputError` with the place of a
    mistake and our own keys only: the text of the file may be a secret."""
    try:
        document = read_document(path)
        tables = document.data
    except InputError as error:
        raise InputError(*map(_hide_text, error.diagnostics)) from None
    except RecursionError:
        raise input_error("is nested too deeply", place=Place(shorten_path(path))) from None
    remote = tables.pop("remote", {})
    if tables:
        hint = "there is only the table [remote]"
        positions = [_hide_source_line(document.locate_key(key)) for key in tables]
        raise InputError(*(Diagnostic("an unknown key", position, hint) for position in positions))
    return _check_table(
        remote,
        lambda loc, message, hint: Diagnostic(
            message, _hide_source_line(document.locate_value("remote", *loc)), hint
        ),
    )


def _check_table(table: Any, wrong: Callable[[Any, str, str | None], Diagnostic]) -> dict[str, Any]:
    """Return the values of a table. Raises `InputError` with the diagnostics that `wrong` makes of
    a key's path, a message and a hint."""
    try:
        return dict(check_table(RemoteSettings, table).given)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InputError(
            *(wrong(detail["loc"], *_describe_mistake(detail)) for detail in details)
        ) from None


def _hide_text(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic without any text of the file."""
    position = diagnostic.place or Place("")
    # Without a line it is an error of the system, as of a file that cannot be read.
    if position.line is None:
        return Diagnostic(diagnostic.message, position)
    hint = "a string that is not closed or has no quotes, perhaps; the line is not shown"
    return Diagnostic("not TOML, or not UTF-8", _hide_source_line(position), hint)


def _hide_source_line(position: Place) -> Place:
    return Place(position.path, position.line, position.column)


def _describe_mistake(detail: Any) -> tuple[str, str | None]:
    """Return a message and a hint for a mistake, with our own keys only."""
    key = str(detail["loc"][0]) if detail["loc"] else "remote"
    if detail["type"] == "extra_forbidden":
        return "an unknown key in [remote]", did_you_mean(key, RemoteSettings.fields_by_key())
    if detail["type"] == "value_error":
        error: ValueFault = detail["ctx"]["error"]
        return f'"{key}" {error.message}', error.hint
    return f'"{key}" is wrong: {detail["msg"]}', None


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the checked values of the environment's variables. Raises `InputError` with the
    variable's name."""
    off = {
        key: REMOTE_OFF
        for key in REMOTE_ADDRESSES
        if environment.get(REMOTE_PREFIX + key.upper()) == REMOTE_OFF
    }

    def name_variable(loc: Any, message: str, hint: str | None) -> Diagnostic:
        variable = REMOTE_PREFIX + str(loc[0]).upper().replace("-", "_")
        return Diagnostic(f"{variable}: {message}", hint=hint)

    return _check_table(dict(_read_variables(environment)), name_variable) | off


def _read_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name in RemoteSettings.fields_by_key().values():
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
            lines = [line for line in text.splitlines() if line.strip()]
            value = _parse_pairs(lines, ":", f"{variable} must hold lines of the form NAME: VALUE")
        elif name == "properties":
            pairs = text.split(",")
            value = _parse_pairs(pairs, "=", f'{variable} must be as "NAME=VALUE,NAME=VALUE"')
        elif name == "jobs" and text.isdecimal():
            value = int(text)
        yield name.replace("_", "-"), value


def _parse_pairs(texts: Sequence[str], between: str, form: str) -> dict[str, str]:
    """Return names and values. Raises `InputError` that says the form, and no secret."""
    parts = [text.partition(between) for text in texts]
    if not all(sign and name.strip() for name, sign, _ in parts):
        raise input_error(form)
    return {name.strip(): value.strip() for name, _, value in parts}
