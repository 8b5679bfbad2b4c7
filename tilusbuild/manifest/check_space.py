"""Checks of `params`, `space` and `default`: domains hold values, and every default is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import Value
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import split_linked_names
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import as_row
from tilusbuild.manifest.table import describe_kind, format_toml
from tilusbuild.space.model import Row

if TYPE_CHECKING:
    from tilusbuild.manifest.script import OverrideSection, ParameterSection, ScriptSection

MAX_VALUES = 1_000_000
"""The most values of one parameter."""
_SHOWN = 12


def check_space(checks: Checks) -> None:
    """Check all parameters and defaults of all scripts, those of overrides too."""
    for path, name, script in checks.list_scripts():
        _check_space_source(checks, path, script)
        sound = _check_parameters(checks, path, script)
        check_schedule(checks, (*path, "default"), script.default, sound, script)
        for target, override in script.override.items():
            own = (*path, "override", target)
            changed = _check_parameters(checks, own, override)
            if override.space or override.default:
                kept = {k: p for k, p in sound.items() if k not in override.space}
                merged = {**kept, **changed}
                check_schedule(checks, (*own, "default"), override.default, merged, script)
                if target in checks.list_known_targets(name):
                    inherited = {
                        n: v for n, v in script.default.items() if n not in override.default
                    }
                    for key, parameter in changed.items():
                        _check_chosen_values(
                            checks, (*path, "default"), inherited, key, parameter, target
                        )


def _check_parameters(
    checks: Checks, path: Path, table: ScriptSection | OverrideSection
) -> dict[str, ParameterSection]:
    """Check constants and parameters; return those parameters whose values can be counted out."""
    for key, values in table.params.items():
        rows = values if isinstance(values, tuple) else (values,)
        _check_rows(checks, (*path, "params", key), key, rows)
    return {
        key: parameter
        for key, parameter in table.space.items()
        if _check_parameter(checks, (*path, "space", key), key, parameter)
    }


def _check_space_source(checks: Checks, path: Path, script: ScriptSection) -> None:
    if script.space_file is not None and checks.value_in_file(*path, "space") is not None:
        checks.add_error(
            'both "space" and "space-file" are set',
            checks.document.locate_key(*path, "space-file"),
            "keep one; `override` and `restrict` work with either",
        )


def _check_parameter(checks: Checks, path: Path, key: str, parameter: ParameterSection) -> bool:
    """Return whether the parameter's values can be counted; then its other keys are checked."""
    if not _check_domain(checks, path, key, parameter):
        checks.unsound.add(path)
        return False
    _check_condition(checks, path, key, parameter)
    if parameter.default is not None and _check_arity(
        checks, (*path, "default"), key, parameter.default
    ):
        row = as_row(parameter.default)
        if not _is_value_of(row, parameter):
            checks.add_error(
                f"default {format_toml(parameter.default)} is not among the values",
                checks.document.locate_value(*path, "default"),
                _list_values(parameter),
            )
    return True


def _check_domain(checks: Checks, path: Path, key: str, parameter: ParameterSection) -> bool:
    before = len(checks.diagnostics)
    kinds = [k for k in ("values", "range", "pow2") if _has_kind(parameter, k)]
    if len(kinds) != 1:
        # One that was written, and is not there, has been reported already.
        if kinds or all(
            checks.value_in_file(*path, k) is None for k in ("values", "range", "pow2")
        ):
            said = " and ".join(f'"{k}"' for k in kinds) if kinds else 'none of "values"'
            rest = " are set" if kinds else ', "range" and "pow2" is set'
            checks.add_error(
                f"{said}{rest}", checks.document.locate_key(*path), "set exactly one of them"
            )
        return False
    names = split_linked_names(key)
    if kinds[0] == "values":
        _check_rows(checks, (*path, "values"), key, parameter.values or ())
    else:
        _check_bounds(checks, (*path, kinds[0]), kinds[0], parameter)
        if len(names) > 1:
            checks.add_error(
                f'linked parameters cannot have a "{kinds[0]}"',
                checks.document.locate_key(*path, kinds[0]),
                f"list their values together: {format_toml(key)} = "
                f"[[{', '.join('…' for _ in names)}], …]",
            )
    return len(checks.diagnostics) == before


def _has_kind(parameter: ParameterSection, kind: str) -> bool:
    value = parameter.bounds if kind == "range" else getattr(parameter, kind)
    return value is not None


def _check_condition(checks: Checks, path: Path, key: str, parameter: ParameterSection) -> None:
    for here, missing, hint in (
        ("when", "else", "else = VALUE is its value where `when` is false"),
        ("else", "when", "when = EXPRESSION says where it is tuned"),
    ):
        if (
            checks.value_in_file(*path, here) is not None
            and checks.value_in_file(*path, missing) is None
        ):
            message = f'"{key}" has "{here}" but no "{missing}"'
            checks.add_error(message, checks.document.locate_key(*path, here), hint)
    if parameter.otherwise is not None:
        _check_arity(checks, (*path, "else"), key, parameter.otherwise)


def _check_bounds(checks: Checks, path: Path, kind: str, parameter: ParameterSection) -> None:
    place = partial(checks.document.locate_value, *path)
    first, last, *steps = (parameter.bounds if kind == "range" else parameter.pow2) or (0, 0)
    for number, bound in enumerate((first, last, *steps)):
        if abs(bound) >= 2**63:
            checks.add_error("does not fit in 64 bits", checks.document.locate_value(*path, number))
    if kind == "pow2":
        for number, bound in enumerate((first, last)):
            if bound < 1 or bound.bit_count() != 1:
                checks.add_error(
                    f"{bound} is not a power of two",
                    checks.document.locate_value(*path, number),
                    _suggest_powers(bound),
                )
    if first > last:
        checks.add_error(
            f"the {kind} [{first}, {last}] is empty: its first value is larger than its last",
            place,
            f"{kind} = [{last}, {first}]",
        )
    elif steps and steps[0] < 1:
        checks.add_error("the step must be at least 1", checks.document.locate_value(*path, 2))
    elif kind == "range" and (last - first) // (steps[0] if steps else 1) >= MAX_VALUES:
        checks.add_error(f"the range holds more than {MAX_VALUES:,} values", place)


def _suggest_powers(bound: int) -> str:
    if bound < 1:
        return "the least power of two is 1"
    lower = 1 << (bound.bit_length() - 1)
    return f"the nearest are {lower} and {2 * lower}"


def _check_rows(checks: Checks, path: Path, key: str, rows: Sequence[Value | Row]) -> None:
    """Check that each row has a value for each name, of one kind, and that no row comes twice."""
    names = split_linked_names(key)
    if not rows:
        checks.add_error(f'"{key}" has no value', checks.document.locate_value(*path))
        return
    if len(rows) > MAX_VALUES:
        checks.add_error(
            f'"{key}" has more than {MAX_VALUES:,} values', checks.document.locate_value(*path)
        )
        return
    first_kinds: list[str] | None = None
    seen: set[tuple[tuple[type, Value], ...]] = set()
    for number, row in enumerate(rows):
        if not _check_arity(checks, (*path, number), key, row):
            continue
        values = as_row(row)
        kinds = [describe_kind(value) for value in values]
        first_kinds = first_kinds or kinds
        for name, kind, expected in zip(names, kinds, first_kinds, strict=True):
            if kind != expected:
                checks.add_error(
                    f'"{name}" is {kind} here and {expected} before',
                    checks.document.locate_value(*path, number),
                    "all values of a parameter are of one kind",
                )
        identity = tuple((type(value), value) for value in values)
        if identity in seen:
            checks.add_error(
                f"{format_toml(row)} is listed twice", checks.document.locate_value(*path, number)
            )
        seen.add(identity)


def _check_arity(checks: Checks, path: Path, key: str, row: Value | Row) -> bool:
    names = split_linked_names(key)
    if len(names) == 1 and not isinstance(row, tuple):
        return True
    place = partial(checks.document.locate_value, *path)
    if len(names) == 1:
        checks.add_error(
            f'"{key}" is one parameter, and {format_toml(row)} is an array',
            place,
            'link several by naming them together, as in "m, n" = [[1, 2], [3, 4]]',
        )
        return False
    if not isinstance(row, tuple) or len(row) != len(names):
        given = f"{len(row)} values" if isinstance(row, tuple) else "1 value"
        given = "1 value" if isinstance(row, tuple) and len(row) == 1 else given
        checks.add_error(
            f"{format_toml(row)} is {given} for {len(names)} parameters",
            place,
            f"one value for each of {', '.join(names)}",
        )
        return False
    return True


def _is_same_row(row: Sequence[Value], other: Sequence[Value]) -> bool:
    return [(type(v), v) for v in row] == [(type(v), v) for v in other]


def _is_value_of(row: Row, parameter: ParameterSection) -> bool:
    others = parameter.otherwise
    return any(_is_same_row(row, as_row(value)) for value in parameter.list_values()) or (
        others is not None and _is_same_row(row, as_row(others))
    )


def _list_values(parameter: ParameterSection, position: int | None = None) -> str:
    rows = [as_row(value) for value in parameter.list_values()]
    shown = (
        list(dict.fromkeys(format_toml(row[position]) for row in rows))
        if position is not None
        else [format_toml(row[0] if len(row) == 1 else row) for row in rows]
    )
    more = f", … ({len(shown)} values)" if len(shown) > _SHOWN else ""
    return f"its values: {', '.join(shown[:_SHOWN])}{more}"


def check_schedule(
    checks: Checks,
    path: Path,
    default: Mapping[str, Value],
    space: Mapping[str, ParameterSection],
    script: ScriptSection,
) -> None:
    """Check that a chosen schedule names parameters of the space, and values that they have."""
    known = checks.list_names(*path[:2], "space") + tuple(
        name
        for target in script.override
        for name in checks.list_names(*path[:2], "override", target, "space")
    )
    for name in default:
        if name not in known and script.space_file is None:
            elsewhere = next(
                (
                    s
                    for s in ("params", "derived", "args")
                    if name in checks.list_names(*path[:2], s)
                ),
                None,
            )
            checks.add_error(
                f'"{name}" is not a parameter of the space',
                checks.document.locate_key(*path, name),
                f"it is declared in {elsewhere}" if elsewhere else did_you_mean(name, known),
            )
    for key, parameter in space.items():
        _check_chosen_values(checks, path, default, key, parameter)


def _check_chosen_values(
    checks: Checks,
    path: Path,
    chosen: Mapping[str, Value],
    key: str,
    parameter: ParameterSection,
    target: str | None = None,
) -> None:
    """Check that the values chosen for a parameter, or for some of linked ones, are its own: those
    that it has for a `target`."""
    of = "" if target is None else f' for target "{target}"'
    instead = "" if target is None else f"\nset override.{target}.default"
    names = split_linked_names(key)
    picked = [(position, name) for position, name in enumerate(names) if name in chosen]
    if not picked:
        return
    rows = [as_row(value) for value in parameter.list_values()]
    if parameter.otherwise is not None:
        rows.append(as_row(parameter.otherwise))
    for position, name in picked:
        if not any(_is_same_row([chosen[name]], [row[position]]) for row in rows):
            checks.add_error(
                f'{format_toml(chosen[name])} is not a value of "{name}"{of}',
                checks.document.locate_value(*path, name),
                _list_values(parameter, position) + instead,
            )
            return
    wanted = [chosen[name] for _, name in picked]
    if not any(_is_same_row(wanted, [row[position] for position, _ in picked]) for row in rows):
        checks.add_error(
            f"{format_toml(wanted)} is not a row of the linked parameters {key}{of}",
            checks.document.locate_value(*path, picked[-1][1]),
            _list_values(parameter) + instead,
        )
