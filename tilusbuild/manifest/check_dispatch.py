"""Checks of `dispatch` and `tune`: keys and sizes are arguments, rules use parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError, Value
from tilusbuild.manifest.check_expressions import NameScope, scope_of, stride_problem
from tilusbuild.manifest.check_space import check_schedule
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import COSTS
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script_sections import expression
from tilusbuild.manifest.table import kind_of
from tilusbuild.runtime.structs import is_struct, struct_of
from tilusbuild.signature import Argument, SignatureError, parse_argument

if TYPE_CHECKING:
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.script_sections import DispatchSection, TuneSection


def check_dispatch(checks: Checks) -> None:
    """Everything in `dispatch` and `tune` but the expressions."""
    for path, _, script in checks.scripts():
        scope = scope_of(checks, path, "", script)
        if script.dispatch is not None:
            _keys(checks, (*path, "dispatch"), script.dispatch, scope)
            _buckets(checks, (*path, "dispatch", "bucket"), script.dispatch)
            _model(checks, (*path, "dispatch"), script.dispatch, scope)
            for number, row in enumerate(script.dispatch.table):
                _use(checks, (*path, "dispatch", "table", number, "use"), row.use, script)
        if script.tune is not None:
            _sizes(checks, (*path, "tune", "sizes"), script.tune, script)


def _keys(checks: Checks, path: Path, dispatch: DispatchSection, scope: NameScope) -> None:
    for number, key in enumerate(dispatch.keys):
        place = partial(checks.document.value, *path, "keys", number)
        if key not in scope.sizes:
            known = did_you_mean(key, scope.sizes)
            what = "an integer argument" if key in scope.arguments else "an argument"
            checks.error(f'"{key}" is not {what}', place, known)
        elif key in scope.strides:
            message, hint = stride_problem(key)
            checks.error(message, place, hint)
        elif key in dispatch.keys[:number]:
            checks.error(f'"{key}" is listed twice', place)


def _buckets(checks: Checks, path: Path, dispatch: DispatchSection) -> None:
    for key, bucket in dispatch.bucket.items():
        if key not in dispatch.keys:
            checks.error(
                f'"{key}" is not one of the keys',
                checks.document.key(*path, key),
                did_you_mean(key, dispatch.keys),
            )
        edges = bucket.edges or ()
        for number, edge in enumerate(edges):
            place = partial(checks.document.value, *path, key, "edges", number)
            if edge < 1:
                checks.error("an edge is at least 1", place)
            elif number and edge <= edges[number - 1]:
                checks.error(f"edges must rise, and {edge} follows {edges[number - 1]}", place)


def _model(checks: Checks, path: Path, dispatch: DispatchSection, scope: NameScope) -> None:
    """Report sizes that a model reads besides the keys: it knows a bucket of the keys alone."""
    for word in COSTS:
        source = getattr(dispatch, word)
        if source is None:
            continue
        try:
            names = expression(source).names
        except ExprError:
            continue  # check_expressions reports it
        for name in sorted(names):
            if name in scope.sizes and name not in dispatch.keys:
                what = "the model" if word == "model" else f'"{word}"'
                checks.error(
                    f'{what} depends on "{name}", which is not one of the keys',
                    checks.document.value(*path, word),
                    f"add it: keys = {json.dumps([*dispatch.keys, name])}",
                )


def _use(checks: Checks, path: Path, use: Mapping[str, Value], script: ScriptSection) -> None:
    overridden = {key for override in script.override.values() for key in override.space}
    own = {
        key: parameter
        for key, parameter in script.space.items()
        if key not in overridden and (*path[:2], "space", key) not in checks.unsound
    }
    check_schedule(checks, path, use, own, script)


def _sizes(checks: Checks, path: Path, tune: TuneSection, script: ScriptSection) -> None:
    scalars, dimensions = _scalars(script)
    for number, size in enumerate(tune.sizes):
        for name, value in size.items():
            argument = name.partition(".")[0]
            if argument != name and argument in script.args:
                _member(checks, (*path, number), name, script.args[argument].type)
            elif name not in checks.names_in(*path[:2], "args"):
                checks.error(
                    f'"{name}" is not an argument',
                    checks.document.key(*path, number, name),
                    did_you_mean(name, scalars),
                )
            elif name not in scalars:
                checks.error(
                    f'"{name}" is a tensor: its size follows from the dimensions',
                    checks.document.key(*path, number, name),
                )
            elif is_struct(script.args[name].type):
                checks.error(
                    f'"{name}" is a struct: give its members',
                    checks.document.key(*path, number, name),
                    f"as in {{ {name}.{struct_of(script.args[name].type).members[0].name} = 1 }}",
                )
            elif name in dimensions and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                shown = value if isinstance(value, int) else kind_of(value)
                checks.error(
                    f'the size "{name}" must be a count, not {shown}',
                    checks.document.value(*path, number, name),
                )
        missing = [name for name in dimensions if name not in size]
        if missing:
            checks.error(
                "a size is missing " + ", ".join(f'"{name}"' for name in missing),
                checks.document.value(*path, number),
                f"give every dimension: {', '.join(dimensions)}",
            )


def _member(checks: Checks, path: Path, name: str, type_text: str) -> None:
    """Check that a struct has a member that is given as `p.alpha` or `p.strides[0]`."""
    argument, _, member = name.partition(".")
    keys = (name,) if checks.wrote(*path, name) is not None else (argument,)
    place = checks.document.key(*path, *keys)
    try:
        names = [name for _, name in struct_of(type_text).places] if is_struct(type_text) else []
    except ValueError:
        return  # `check_expressions` says what is wrong with the struct
    if member not in names:
        checks.error(
            f'"{argument}" has no member "{member}"'
            if names
            else f'"{argument}" is not a struct: it has no members',
            place,
            did_you_mean(member, names),
        )


def _scalars(script: ScriptSection) -> tuple[list[str], list[str]]:
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
