"""Checks of `params`, `space` and `default`: each row has a value for each of its names, and every
default is one of the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Value
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import split_linked_names
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import (
    MAX_VALUES,
    OverrideSection,
    ParameterSection,
    ScriptSection,
    to_row,
)
from tilusbuild.manifest.table import describe_kind, format_toml
from tilusbuild.space.model import Row

_MAX_SHOWN_VALUES = 12
_MAX_MADE = 2 * MAX_VALUES
_NOUNS = {"params": "combinations of constants", "space": "values of parameters"}


def check_space(checks: Checks) -> None:
    """Check all parameters and defaults of all scripts, those of overrides too."""
    if not _check_number_of_values(checks):
        return
    for path, name, script in checks.list_scripts():
        if script.space_file is not None and checks.has(*path, "space"):
            checks.add_key_error(
                (*path, "space-file"),
                'both "space" and "space-file" are set',
                "keep one; `override` and `restrict` work with either",
            )
        _check_parameters(checks, path, script)
        check_schedule(checks, (*path, "default"), script.default, script.space, script)
        for target, override in script.override.items():
            override_path = (*path, "override", target)
            _check_parameters(checks, override_path, override)
            if not override.space and not override.default:
                continue
            merged = {**script.space, **override.space}
            check_schedule(checks, (*override_path, "default"), override.default, merged, script)
            # The script's default must also be among the values that the target has.
            if target in checks.list_known_targets(name):
                inherited = {
                    parameter_name: value
                    for parameter_name, value in script.default.items()
                    if parameter_name not in override.default
                }
                for key, parameter in override.space.items():
                    _check_chosen_values(
                        checks, (*path, "default"), inherited, key, parameter, target
                    )


def _check_number_of_values(checks: Checks) -> bool:
    """Return whether the manifest makes at most `_MAX_MADE` values of parameters and combinations
    of constants; report the table that makes the first too many. None is counted out for that."""
    remaining = _MAX_MADE
    for path, _, script in checks.list_scripts():
        tables: dict[Path, ScriptSection | OverrideSection] = {(): script}
        tables |= {("override", name): table for name, table in script.override.items()}
        for table_path, table in tables.items():
            constants = {**script.params, **table.params}.values()
            combinations = math.prod(len(v) for v in constants if isinstance(v, tuple))
            values = sum(len(parameter.list_values()) for parameter in table.space.values())
            for section, number in (("params", combinations), ("space", values)):
                remaining -= number
                if remaining < 0:
                    message = f"{section} makes {number:,} {_NOUNS[section]}"
                    hint = f"all scripts together may make {_MAX_MADE:,}"
                    checks.add_key_error((*path, *table_path, section), message, hint)
                    return False
    return True


def _check_parameters(checks: Checks, path: Path, table: ScriptSection | OverrideSection) -> None:
    """Report constants and parameters with a wrong row, and defaults that are not a row."""
    for key, values in table.params.items():
        rows = values if isinstance(values, tuple) else (values,)
        _check_rows(checks, (*path, "params", key), key, rows)
    for key, parameter in table.space.items():
        parameter_path: Path = (*path, "space", key)
        names = split_linked_names(key)
        if parameter.values is not None:
            _check_rows(checks, (*parameter_path, "values"), key, parameter.values)
        elif len(names) > 1:
            kind = "pow2" if parameter.bounds is None else "range"
            checks.add_key_error(
                (*parameter_path, kind),
                f'linked parameters cannot have a "{kind}"',
                f"list their values together: {format_toml(key)} = "
                f"[[{', '.join('…' for _ in names)}], …]",
            )
        if parameter.otherwise is not None:
            _check_arity(checks, (*parameter_path, "else"), key, parameter.otherwise)
        default = parameter.default
        if default is None or not _check_arity(checks, (*parameter_path, "default"), key, default):
            continue
        known_rows = [_identify(row) for row in _list_rows(key, parameter)]
        if known_rows and _identify(to_row(default)) not in known_rows:
            checks.add_value_error(
                (*parameter_path, "default"),
                f"default {format_toml(default)} is not among the values",
                _format_rows(parameter, range(len(names))),
            )


def _check_rows(checks: Checks, path: Path, key: str, rows: Sequence[Value | Row]) -> None:
    """Check that each row has a value for each name, of one kind, and that no row comes twice."""
    names = split_linked_names(key)
    first_kinds: list[str] | None = None
    earlier_rows: set[object] = set()
    for number, row in enumerate(rows):
        if not _check_arity(checks, (*path, number), key, row):
            continue
        values = to_row(row)
        kinds = [describe_kind(value) for value in values]
        # The kinds of the first row with enough values are those that later rows must have.
        first_kinds = first_kinds or kinds
        for name, kind, expected in zip(names, kinds, first_kinds, strict=True):
            if kind != expected:
                checks.add_value_error(
                    (*path, number),
                    f'"{name}" is {kind} here and {expected} before',
                    "all values of a parameter are of one kind",
                )
        if _identify(values) in earlier_rows:
            checks.add_value_error((*path, number), f"{format_toml(row)} is listed twice")
        earlier_rows.add(_identify(values))


def _check_arity(checks: Checks, path: Path, key: str, row: Value | Row) -> bool:
    """Report a row that has not one value for each name. Return whether it has."""
    names = split_linked_names(key)
    if len(names) == 1 and isinstance(row, tuple):
        checks.add_value_error(
            path,
            f'"{key}" is one parameter, and {format_toml(row)} is an array',
            'link several by naming them together, as in "m, n" = [[1, 2], [3, 4]]',
        )
        return False
    if len(to_row(row)) == len(names):
        return True
    count = "1 value" if len(to_row(row)) == 1 else f"{len(to_row(row))} values"
    checks.add_value_error(
        path,
        f"{format_toml(row)} is {count} for {len(names)} parameters",
        f"one value for each of {', '.join(names)}",
    )
    return False


def _identify(row: Sequence[Value]) -> tuple[tuple[type, Value], ...]:
    """Return a key that differs for `1`, `1.0` and `true`, which Python takes for equal."""
    return tuple((type(value), value) for value in row)


def _list_rows(key: str, parameter: ParameterSection) -> list[Row]:
    """Return all rows that a parameter may have; [] if one has too few or too many values.

    `_check_arity` reports such a row, and other checks do not repeat that.
    """
    others = () if parameter.otherwise is None else (parameter.otherwise,)
    rows = [to_row(value) for value in (*parameter.list_values(), *others)]
    fits = all(len(row) == len(split_linked_names(key)) for row in rows)
    return rows if fits else []


def _format_rows(parameter: ParameterSection, positions: Sequence[int]) -> str:
    """Return a hint with a parameter's values; of linked parameters, those at `positions` only."""
    rows = [[to_row(value)[number] for number in positions] for value in parameter.list_values()]
    texts = list(dict.fromkeys(format_toml(row[0] if len(row) == 1 else row) for row in rows))
    more = f", … ({len(texts)} values)" if len(texts) > _MAX_SHOWN_VALUES else ""
    return f"its values: {', '.join(texts[:_MAX_SHOWN_VALUES])}{more}"


def check_schedule(
    checks: Checks,
    path: Path,
    chosen: Mapping[str, Value],
    space: Mapping[str, ParameterSection],
    script: ScriptSection,
) -> None:
    """Check that a chosen schedule names parameters of the space, and values that they have."""
    parameter_names = [*checks.list_names(*path[:2], "space")]
    for target in script.override:
        parameter_names += checks.list_names(*path[:2], "override", target, "space")
    for name in chosen:
        if name not in parameter_names and script.space_file is None:
            sections = ("params", "derived", "args")
            declaring_section = next(
                (section for section in sections if name in checks.list_names(*path[:2], section)),
                None,
            )
            checks.add_key_error(
                (*path, name),
                f'"{name}" is not a parameter of the space',
                f"it is declared in {declaring_section}"
                if declaring_section
                else did_you_mean(name, parameter_names),
            )
    for key, parameter in space.items():
        _check_chosen_values(checks, path, chosen, key, parameter)


def _check_chosen_values(
    checks: Checks,
    path: Path,
    chosen: Mapping[str, Value],
    key: str,
    parameter: ParameterSection,
    target: str | None = None,
) -> None:
    """Report values chosen for a parameter, or for some of linked ones, that are not in one row:
    the first such value, or all of them together.

    With a `target` the parameter is that of its override, and the message says so.
    """
    names = split_linked_names(key)
    positions = [number for number, name in enumerate(names) if name in chosen]
    rows = _list_rows(key, parameter) if positions else []
    if not rows:
        return
    # Single values are checked first, then the row of all: a message about one value is clearer.
    for group in (*([number] for number in positions), positions):
        values = [chosen[names[number]] for number in group]
        allowed_values = ([row[number] for number in group] for row in rows)
        if _identify(values) in map(_identify, allowed_values):
            continue
        if len(group) == 1:
            message = f'{format_toml(values[0])} is not a value of "{names[group[0]]}"'
            hint = _format_rows(parameter, group)
        else:
            message = f"{format_toml(values)} is not a row of the linked parameters {key}"
            hint = _format_rows(parameter, range(len(names)))
        if target is not None:
            message += f' for target "{target}"'
            hint += f"\nset override.{target}.default"
        checks.add_value_error((*path, names[group[-1]]), message, hint)
        return
