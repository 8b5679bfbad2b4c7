"""Checks of `dispatch` and `tune`: keys and sizes are arguments, rules use parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError, Value
from tilusbuild.manifest.check_expressions import STRIDE_HINT, NameScope, collect_scope
from tilusbuild.manifest.check_space import check_schedule
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import COSTS
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection
from tilusbuild.manifest.script_sections import DispatchSection, parse_cached
from tilusbuild.manifest.table import describe_kind
from tilusbuild.runtime.structs import is_struct, parse_struct
from tilusbuild.signature.model import Argument, SignatureError
from tilusbuild.signature.parsing import parse_argument


def check_dispatch(checks: Checks) -> None:
    """Check `dispatch` and `tune` of all scripts, but not the syntax of their expressions."""
    for path, _, script in checks.list_scripts():
        if script.dispatch is not None:
            scope = collect_scope(checks, path, "", script)
            keys = script.dispatch.keys or _list_scalars(script)[1]
            _check_keys(checks, (*path, "dispatch"), script.dispatch, keys, scope)
            _check_model(checks, (*path, "dispatch"), script.dispatch, keys, scope)
            # A rule holds for all targets. A parameter of an override has other values there, so
            # its values in rules are not checked.
            overridden = {key for override in script.override.values() for key in override.space}
            common_space = {
                key: parameter for key, parameter in script.space.items() if key not in overridden
            }
            for number, row in enumerate(script.dispatch.table):
                use_path = (*path, "dispatch", "table", number, "use")
                check_schedule(checks, use_path, row.use, common_space, script)
        for number, sizes in enumerate(script.tune.sizes if script.tune is not None else ()):
            _check_sizes(checks, (*path, "tune", "sizes", number), sizes, script)


def _check_keys(
    checks: Checks, path: Path, dispatch: DispatchSection, keys: Sequence[str], scope: NameScope
) -> None:
    """Report keys that are not integer arguments, and buckets of other names than the keys."""
    sizes = scope.sections["sizes"]
    for number, key in enumerate(dispatch.keys):
        key_path = (*path, "keys", number)
        if key not in sizes:
            kind = "an integer argument" if key in scope.arguments else "an argument"
            checks.add_value_error(key_path, f'"{key}" is not {kind}', did_you_mean(key, sizes))
        elif key in scope.strides:
            checks.add_value_error(key_path, f'"{key}" is a stride', STRIDE_HINT)
        elif key in dispatch.keys[:number]:
            checks.add_value_error(key_path, f'"{key}" is listed twice')
    for key in dispatch.bucket:
        if key not in keys:
            hint = did_you_mean(key, keys)
            checks.add_key_error((*path, "bucket", key), f'"{key}" is not one of the keys', hint)


def _check_model(
    checks: Checks, path: Path, dispatch: DispatchSection, keys: Sequence[str], scope: NameScope
) -> None:
    """Report sizes that a model reads besides the keys: it knows a bucket of the keys alone."""
    sizes_without_key = scope.sections["sizes"] - {*keys}
    for word in COSTS:
        source = getattr(dispatch, word)
        try:
            names = frozenset() if source is None else parse_cached(source).names
        except ExprError:
            continue  # `check_expressions` reports it
        for name in sorted(names & sizes_without_key):
            checks.add_value_error(
                (*path, word),
                f'"{word}" depends on "{name}", which is not one of the keys',
                f"add it: keys = {json.dumps([*keys, name])}",
            )


def _check_sizes(
    checks: Checks, path: Path, sizes: Mapping[str, Value], script: ScriptSection
) -> None:
    """Check the sizes of one call: dimensions, scalars and members of structs, by name."""
    scalars, dimensions = _list_scalars(script)
    for name, value in sizes.items():
        size_path = (*path, name)
        argument, dot, _ = name.partition(".")
        if dot and argument in script.args:
            _check_member(checks, path, name, script.args[argument].type)
        elif name not in checks.list_names(*path[:2], "args"):
            checks.add_key_error(
                size_path, f'"{name}" is not an argument', did_you_mean(name, scalars)
            )
        elif name not in scalars:
            message = f'"{name}" is a tensor: its size follows from the dimensions'
            checks.add_key_error(size_path, message)
        elif is_struct(script.args[name].type):
            member = parse_struct(script.args[name].type).members[0]
            hint = f"as in {{ {name}.{member.name} = 1 }}"
            checks.add_key_error(size_path, f'"{name}" is a struct: give its members', hint)
        # By type: a boolean is an integer to `isinstance`.
        elif name in dimensions and (type(value) is not int or value < 0):
            shown = value if isinstance(value, int) else describe_kind(value)
            checks.add_value_error(size_path, f'the size "{name}" must be a count, not {shown}')
    missing = [name for name in dimensions if name not in sizes]
    # A name that is not an argument stands for the missing one.
    if missing and {name.partition(".")[0] for name in sizes} <= script.args.keys():
        checks.add_value_error(
            path,
            "a size is missing " + ", ".join(f'"{name}"' for name in missing),
            f"give every dimension: {', '.join(dimensions)}",
        )


def _check_member(checks: Checks, path: Path, name: str, type_text: str) -> None:
    """Check that a struct has a member that is given as `p.alpha` or `p.strides[0]`."""
    argument, _, member = name.partition(".")
    # The file may have the member in a table of the argument, as TOML's dotted keys do.
    member_path = (*path, name if checks.has(*path, name) else argument)
    if not is_struct(type_text):
        checks.add_key_error(member_path, f'"{argument}" is not a struct: it has no members')
        return
    try:
        member_names = [name for _, name in parse_struct(type_text).scalars]
    except ValueError:
        return  # `check_expressions` says what is wrong with the struct
    if member not in member_names:
        hint = did_you_mean(member, member_names)
        checks.add_key_error(member_path, f'"{argument}" has no member "{member}"', hint)


def _list_scalars(script: ScriptSection) -> tuple[list[str], list[str]]:
    """Return the scalar arguments, and those of them that are dimensions of tensors."""
    scalar_names: list[str] = []
    shape_names: set[str] = set()
    for name, arg in script.args.items():
        try:
            argument = parse_argument(Argument(name, arg.type))
        except SignatureError:
            continue  # `check_expressions` reports it
        if argument.dims is None:
            scalar_names.append(name)
        else:
            shape_names.update(dim for dim in argument.dims if isinstance(dim, str))
    return scalar_names, [name for name in scalar_names if name in shape_names]
