"""Checks of `dispatch` and `tune`: keys and sizes are arguments, rules use parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError, Value
from tilusbuild.manifest.check_expressions import NameScope, collect_scope, explain_stride
from tilusbuild.manifest.check_space import check_schedule
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import COSTS
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script_sections import parse_cached
from tilusbuild.manifest.table import describe_kind
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature import Argument, SignatureError, parse_argument

if TYPE_CHECKING:
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.script_sections import DispatchSection, TuneSection


def check_dispatch(checks: Checks) -> None:
    """Everything in `dispatch` and `tune` but the expressions."""
    for path, _, script in checks.list_scripts():
        scope = collect_scope(checks, path, "", script)
        if script.dispatch is not None:
            _check_keys(checks, (*path, "dispatch"), script.dispatch, scope)
            _check_buckets(checks, (*path, "dispatch", "bucket"), script.dispatch)
            _check_model(checks, (*path, "dispatch"), script.dispatch, scope)
            for number, row in enumerate(script.dispatch.table):
                _check_choice(checks, (*path, "dispatch", "table", number, "use"), row.use, script)
        if script.tune is not None:
            _check_sizes(checks, (*path, "tune", "sizes"), script.tune, script)


def _check_keys(checks: Checks, path: Path, dispatch: DispatchSection, scope: NameScope) -> None:
    for number, key in enumerate(dispatch.keys):
        place = partial(checks.document.locate_value, *path, "keys", number)
        if key not in scope.sizes:
            known = did_you_mean(key, scope.sizes)
            what = "an integer argument" if key in scope.arguments else "an argument"
            checks.add_error(f'"{key}" is not {what}', place, known)
        elif key in scope.strides:
            message, hint = explain_stride(key)
            checks.add_error(message, place, hint)
        elif key in dispatch.keys[:number]:
            checks.add_error(f'"{key}" is listed twice', place)


def _check_buckets(checks: Checks, path: Path, dispatch: DispatchSection) -> None:
    for key, bucket in dispatch.bucket.items():
        if key not in dispatch.keys:
            checks.add_error(
                f'"{key}" is not one of the keys',
                checks.document.locate_key(*path, key),
                did_you_mean(key, dispatch.keys),
            )
        edges = bucket.edges or ()
        for number, edge in enumerate(edges):
            place = partial(checks.document.locate_value, *path, key, "edges", number)
            if edge < 1:
                checks.add_error("an edge is at least 1", place)
            elif number and edge <= edges[number - 1]:
                checks.add_error(f"edges must rise, and {edge} follows {edges[number - 1]}", place)


def _check_model(checks: Checks, path: Path, dispatch: DispatchSection, scope: NameScope) -> None:
    """Report sizes that a model reads besides the keys: it knows a bucket of the keys alone."""
    for word in COSTS:
        source = getattr(dispatch, word)
        if source is None:
            continue
        try:
            names = parse_cached(source).names
        except ExprError:
            continue  # check_expressions reports it
        for name in sorted(names):
            if name in scope.sizes and name not in dispatch.keys:
                what = "the model" if word == "model" else f'"{word}"'
                checks.add_error(
                    f'{what} depends on "{name}", which is not one of the keys',
                    checks.document.locate_value(*path, word),
                    f"add it: keys = {json.dumps([*dispatch.keys, name])}",
                )


def _check_choice(
    checks: Checks, path: Path, use: Mapping[str, Value], script: ScriptSection
) -> None:
    overridden = {key for override in script.override.values() for key in override.space}
    own = {
        key: parameter
        for key, parameter in script.space.items()
        if key not in overridden and (*path[:2], "space", key) not in checks.unsound
    }
    check_schedule(checks, path, use, own, script)


def _check_sizes(checks: Checks, path: Path, tune: TuneSection, script: ScriptSection) -> None:
    scalars, dimensions = _list_scalars(script)
    for number, size in enumerate(tune.sizes):
        for name, value in size.items():
            argument = name.partition(".")[0]
            if argument != name and argument in script.args:
                _check_member(checks, (*path, number), name, script.args[argument].type)
            elif name not in checks.list_names(*path[:2], "args"):
                checks.add_error(
                    f'"{name}" is not an argument',
                    checks.document.locate_key(*path, number, name),
                    did_you_mean(name, scalars),
                )
            elif name not in scalars:
                checks.add_error(
                    f'"{name}" is a tensor: its size follows from the dimensions',
                    checks.document.locate_key(*path, number, name),
                )
            elif is_struct(script.args[name].type):
                member = parse_struct(script.args[name].type).members[0]
                checks.add_error(
                    f'"{name}" is a struct: give its members',
                    checks.document.locate_key(*path, number, name),
                    f"as in {{ {name}.{member.name} = 1 }}",
                )
            elif name in dimensions and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                shown = value if isinstance(value, int) else describe_kind(value)
                checks.add_error(
                    f'the size "{name}" must be a count, not {shown}',
                    checks.document.locate_value(*path, number, name),
                )
        missing = [name for name in dimensions if name not in size]
        if missing:
            checks.add_error(
                "a size is missing " + ", ".join(f'"{name}"' for name in missing),
                checks.document.locate_value(*path, number),
                f"give every dimension: {', '.join(dimensions)}",
            )


def _check_member(checks: Checks, path: Path, name: str, type_text: str) -> None:
    """Check that a struct has a member that is given as `p.alpha` or `p.strides[0]`."""
    argument, _, member = name.partition(".")
    keys = (name,) if checks.value_in_file(*path, name) is not None else (argument,)
    place = checks.document.locate_key(*path, *keys)
    try:
        names = (
            [name for _, name in parse_struct(type_text).scalars] if is_struct(type_text) else []
        )
    except ValueError:
        return  # `check_expressions` says what is wrong with the struct
    if member not in names:
        checks.add_error(
            f'"{argument}" has no member "{member}"'
            if names
            else f'"{argument}" is not a struct: it has no members',
            place,
            did_you_mean(member, names),
        )


def _list_scalars(script: ScriptSection) -> tuple[list[str], list[str]]:
    """Return the scalar arguments, and those of them that are dimensions of tensors."""
    scalars: list[str] = []
    shapes: set[str] = set()
    for name, arg in script.args.items():
        try:
            argument = parse_argument(Argument(name, arg.type))
        except SignatureError:
            continue
        if argument.dims is None:
            scalars.append(name)
        else:
            shapes.update(dim for dim in argument.dims if isinstance(dim, str))
    return scalars, [name for name in scalars if name in shapes]
