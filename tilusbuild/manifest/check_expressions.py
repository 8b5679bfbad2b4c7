"""Check every expression: it can be parsed, and each of its names is known at its place.

The known names depend on the key of the expression and, since overrides may add names, on the
target. So each expression is checked for every target of its script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.arch import CPU, LIMITS, ArchError, combine_limits
from tilusbuild.errors import Location, did_you_mean
from tilusbuild.expr import ExprError, Value
from tilusbuild.expr.tree import is_number
from tilusbuild.manifest.arguments import make_argument
from tilusbuild.manifest.checks import MAX_MISTAKES, Checks
from tilusbuild.manifest.names import COSTS, split_linked_names
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script import ScriptSection, to_row
from tilusbuild.manifest.script_sections import list_expressions, parse_cached
from tilusbuild.manifest.table import Table
from tilusbuild.runtime.dtypes import FLOATS, POINTER, TENSOR_MAP
from tilusbuild.runtime.semantics import is_alignment, name_alignment
from tilusbuild.runtime.structs import is_struct
from tilusbuild.signature.model import Argument, SignatureError
from tilusbuild.signature.parsing import join_arguments, parse_argument


class NameScope(Struct, frozen=True):
    """The names that a script declares for one target."""

    sections: Mapping[str, frozenset[str]]
    """Those of `params`, `space` and `derived`, as `sizes` the integer arguments, and as
    `alignments` the `align(x)` of the tensors."""
    arguments: frozenset[str]
    strides: frozenset[str]
    """Arguments that are read off strides. Dispatch does not know them."""
    facts: frozenset[str]
    limits: frozenset[str]
    """The names `arch.NAME` that have a value for the target."""
    target: str
    has_file: bool
    """Whether the space comes from a file, which may declare further names."""


ARCH_NAMES = frozenset(CPU.list_attributes())
RESOURCE_NAMES = (
    *("registers", "stack", "spill_stores", "spill_loads", "static_smem", "dynamic_smem"),
    *("threads", "blocks_per_sm", "occupancy"),
)
"""The names `resources.NAME` of a compiled program, for a model of its cost."""


def check_expressions(checks: Checks) -> None:
    """Check all expressions of all scripts, and the types of their arguments."""
    for path, name, script in checks.list_scripts():
        _check_arguments(checks, path, script)
        for target in checks.list_known_targets(name):
            scope = collect_scope(checks, path, target, script)
            # For each target: an override changes both the expressions and the names.
            for inner, source, visible_sections in _list_sites(script, target):
                where = _resolve_path(path, target, inner, checks)
                is_right = _check_expression(checks, where, source, scope, visible_sections)
                if is_right and (inner[0] in ("restrict", "serves") or inner[-1] == "when"):
                    _check_condition(checks, where, source, script, target)
            _check_cycles(checks, path, target, script)


# The path of an expression in its script, its source, and the visible sections: those of
# `NameScope` whose names the expression may use.
_ExpressionSite: TypeAlias = tuple[Path, Value, frozenset[str]]

_STATIC_SECTIONS = frozenset({"params", "space", "derived"})
_CALL_SECTIONS = _STATIC_SECTIONS | {"sizes"}
_RULE_SECTIONS = frozenset({"params", "sizes"})
# The keys of tables that hold expressions, with the names that these may use.
_TENSOR_MAP_KEYS = dict.fromkeys(
    ("box", "element_strides", "interleave", "swizzle", "l2_promotion"), _STATIC_SECTIONS
)
_INIT_KEYS = dict.fromkeys(("integers", "uniform", "normal"), _RULE_SECTIONS)
_LAUNCH_KEYS = {
    **dict.fromkeys(("grid", "block", "smem", "cluster"), _CALL_SECTIONS),
    # These are set once for a device, before any call, so that arguments have no value there.
    **dict.fromkeys(("cooperative", "pdl", "carve_out"), _STATIC_SECTIONS),
}
_PRUNE_KEYS = dict.fromkeys(
    ("max_registers", "max_spill_bytes", "min_blocks_per_sm"), _STATIC_SECTIONS
)
_COST_KEYS = dict.fromkeys(COSTS, _RULE_SECTIONS) | {"model": _CALL_SECTIONS}


def _list_sites(script: ScriptSection, target: str) -> Iterator[_ExpressionSite]:
    """Yield every expression of a script for a target."""
    override = script.get_override(target)
    for key, parameter in {**script.space, **override.space}.items():
        if parameter.when is not None:
            yield ("space", key, "when"), parameter.when, _STATIC_SECTIONS
    for name, source in {**script.derived, **override.derived}.items():
        yield ("derived", name), source, _STATIC_SECTIONS
    for name, rule in script.list_rule_sources(target).items():
        yield ("restrict", name), rule, _STATIC_SECTIONS
    for name, rule in script.serves.items():
        yield ("serves", name), rule, _CALL_SECTIONS | {"alignments"}
    for source in list_expressions(script.kernel or ""):
        yield ("kernel",), source, _STATIC_SECTIONS
    for name, arg in script.args.items():
        if arg.tensor_map is not None:
            yield from _list_table_sites(("args", name), arg, _TENSOR_MAP_KEYS)
        yield from _list_table_sites(("args", name, "init"), arg.init, _INIT_KEYS)
        if arg.bytes is not None:
            yield ("args", name, "bytes"), arg.bytes, _CALL_SECTIONS
    yield from _list_table_sites(("prune",), script.prune, _PRUNE_KEYS)
    yield from _list_table_sites(("launch",), script.launch, _LAUNCH_KEYS)
    yield from _list_table_sites(("launch",), override.launch, _LAUNCH_KEYS)
    if script.dispatch is not None:
        yield from _list_table_sites(("dispatch",), script.dispatch, _COST_KEYS)
        for number, row in enumerate(script.dispatch.table):
            yield ("dispatch", "table", number, "when"), row.when, _RULE_SECTIONS


def _list_table_sites(
    path: Path, table: Table | None, keys: Mapping[str, frozenset[str]]
) -> Iterator[_ExpressionSite]:
    """Yield the expressions of a table that is at `path` of its script. `keys` has the visible
    sections of each field that holds expressions."""
    if table is None:
        return
    for name, visible_sections in keys.items():
        value, key_path = getattr(table, name), (*path, name.replace("_", "-"))
        if isinstance(value, tuple):
            for number, source in enumerate(value):
                yield (*key_path, number), source, visible_sections
        elif value is not None:
            yield key_path, value, visible_sections


def _resolve_path(path: Path, target: str, inner: Path, checks: Checks) -> Path:
    """Return the path of a script's key: in the override for a target if that has it."""
    override_path: Path = (*path, "override", target, *inner)
    return override_path if checks.has(*override_path) else (*path, *inner)


def collect_scope(checks: Checks, path: Path, target: str, script: ScriptSection) -> NameScope:
    """Return the declared names of a script for a target; without one, "", those of the script
    alone.

    Names come from the file, so that an entry with a mistake still declares its name.
    """
    arguments = frozenset(checks.list_names(*path, "args"))
    types = {name: _parse_type(arg.type) for name, arg in script.args.items()}
    non_integers = {name for name, argument in types.items() if not _may_be_integer(argument)}
    sections = {}
    for section in _STATIC_SECTIONS:
        override_names = checks.list_names(*path, "override", target, section)
        sections[section] = frozenset(checks.list_names(*path, section) + override_names)
    # A dimension that is nowhere declared is reported with its shape, and not at each use.
    dimensions = {
        dim for type_ in types.values() for dim in type_.dims or () if isinstance(dim, str)
    }
    sections["sizes"] = (arguments | (dimensions - sections["params"])) - non_integers
    tensors = (name for name, argument in types.items() if argument.is_tensor)
    sections["alignments"] = frozenset(map(name_alignment, tensors))
    strides = {stride for arg in script.args.values() for stride in arg.strides or ()}
    return NameScope(
        sections,
        arguments,
        strides=frozenset(stride for stride in strides if isinstance(stride, str)),
        facts=frozenset(checks.list_names("target", target, "facts")),
        limits=_list_limits(checks, target),
        target=target,
        has_file=script.space_file is not None,
    )


def _list_limits(checks: Checks, target: str) -> frozenset[str]:
    """Return the names `arch.NAME` of a target; all for one with a mistake, which `check_targets`
    reports, and without a target."""
    with suppress(KeyError, ArchError, ValueError):
        return frozenset(combine_limits(checks.manifest.targets[target].list_archs()))
    return ARCH_NAMES


def _parse_type(text: str) -> Argument:
    """Return an argument of a type; of one with a mistake, the stand-in, an integer."""
    try:
        return parse_argument(Argument("_", text))
    except SignatureError:
        return _STAND_IN


def _may_be_integer(argument: Argument) -> bool:
    """Return whether an argument is an integer scalar, or may be one, as its type is a constant."""
    is_other_dtype = argument.dtype in _NON_INTEGER_TYPES or is_struct(argument.dtype)
    return not (argument.is_tensor or is_other_dtype)


_NON_INTEGER_TYPES = FLOATS | {"bool", POINTER, TENSOR_MAP}


def _check_expression(
    checks: Checks, path: Path, source: Value, scope: NameScope, visible_sections: frozenset[str]
) -> bool:
    """Report the mistakes of one expression: its syntax, and each unknown name. It may use
    the names of `visible_sections`. Return whether there is no mistake."""
    try:
        parsed = parse_cached(source)
    except ExprError as error:
        location = checks.document.locate_inside(path, error.column)
        checks.add_error(location, error.message, getattr(error, "hint", None))
        return False
    is_right = True
    for name in sorted(parsed.names):
        problem = (
            _explain_dotted_name(path, name, scope)
            if "." in name
            else _explain_name(checks, path, name, scope, visible_sections)
        )
        if problem is not None:
            checks.add_error(_locate_name(checks, path, str(source), name), *problem)
            is_right = False
    unknown = [f"{name} = …" for name in LIMITS if name not in scope.limits]
    if path[-1] == "min-blocks-per-sm" and unknown:
        message = f'the occupancy on target "{scope.target}" is not known'
        hint = f"declare limits = {{ {', '.join(unknown)} }} in [target.{scope.target}]"
        checks.add_value_error(path, message, hint)
    return is_right


def _check_condition(
    checks: Checks, path: Path, source: Value, script: ScriptSection, target: str
) -> None:
    """Report a condition that is a number: a rule without its comparison would remove nothing."""
    override = script.get_override(target)
    parameters = {**script.space, **override.space}
    derived = {**script.derived, **override.derived}
    constants = {**script.params, **override.params}

    def is_number_name(name: str) -> bool:
        if name in derived:
            # Without the name itself, for those that depend on themselves.
            return _is_number(derived.pop(name), is_number_name)
        values = {key: parameter.list_values() for key, parameter in parameters.items()}
        values |= {k: rows if isinstance(rows, tuple) else (rows,) for k, rows in constants.items()}
        for key, rows in values.items():
            names = split_linked_names(key)
            if name in names:
                index = names.index(name)
                column = [to_row(row)[index : index + 1] for row in rows]
                # 0 and 1 are what a macro of C++ has for false and true.
                return any(value not in (0, 1) for values in column for value in values)
        prefix, _, key = name.partition(".")
        if prefix == "facts":
            return checks.manifest.targets[target].facts.get(key, 0) not in (0, 1)
        return name in script.args or is_alignment(name) or prefix == "arch"

    if _is_number(source, is_number_name):
        hint = 'compare it with a limit, as in "threads * vector <= 1024"'
        checks.add_value_error(path, f'"{source}" is a number, not a condition', hint)


def _is_number(source: Value, is_number_name: Callable[[str], bool]) -> bool:
    try:
        return is_number(parse_cached(source).tree, is_number_name)
    except ExprError:
        return False


def _locate_name(checks: Checks, path: Path, source: str, name: str) -> Location:
    """Return the place of a name's first use in an expression; the expression's own place if its
    text does not show the name."""
    pattern = r"\s*\.\s*".join(re.escape(part) for part in name.split("."))
    match = re.search(rf"(?<![\w.]){pattern}(?!\w)", source)
    # A name may be spelt otherwise in the text: Python normalizes identifiers (NFKC).
    if match is None:
        return checks.document.locate_value(*path)
    return checks.document.locate_inside(path, match.start() + 1, match.end() - match.start())


# A message and a hint.
_Problem: TypeAlias = tuple[str, str | None]
STRIDE_HINT = "dispatch and bytes depend on shapes and integers that are passed"


def _explain_name(
    checks: Checks, path: Path, name: str, scope: NameScope, visible_sections: frozenset[str]
) -> _Problem | None:
    """Return the problem of a name without a point; None if the expression may use the name.

    A name of a visible section has no problem, nor one that a space file may declare. The message
    says where the name is declared: in a section that is not visible, as an argument, for another
    target only, or nowhere.
    """
    if name in scope.strides and not {"dispatch", "serves", "bytes"}.isdisjoint(path):
        return f'"{name}" is a stride', STRIDE_HINT
    if any(name in scope.sections[section] for section in visible_sections):
        return None
    if name in scope.sections["space"] | scope.sections["derived"]:
        return (
            f'"{name}" is not known here',
            "rules, bytes and flops hold for every schedule, so they cannot depend on it",
        )
    if name in scope.sections["alignments"]:
        return f'"{name}" is not known here', "only `serves` depends on the addresses of tensors"
    if is_alignment(name):
        tensors = scope.sections["alignments"]
        return f"{name}: there is no such tensor", did_you_mean(name, tensors)
    if name in scope.sections["sizes"]:
        return (
            f'"{name}" is an argument: it is not known until the kernel is called',
            "only grid, block, smem, cluster, bytes and dispatch depend on arguments",
        )
    if name in scope.arguments:
        return f'"{name}" is not an integer argument', "expressions see integer arguments only"
    if scope.has_file:
        return None
    for other_target in checks.list_names(*path[:2], "override"):
        if any(
            name in checks.list_names(*path[:2], "override", other_target, section)
            for section in _STATIC_SECTIONS
        ):
            message = f'"{name}" is not declared for target "{scope.target}"'
            return message, "another target's override declares it"
    # A user who writes `number` for `arch.number` gets the whole name: the two are not alike.
    dotted_names = [f"arch.{attribute}" for attribute in ARCH_NAMES]
    dotted_names += [f"facts.{fact}" for fact in scope.facts]
    dotted_name = next(
        (full_name for full_name in sorted(dotted_names) if full_name.endswith(f".{name}")), None
    )
    visible_names = {
        declared for section in visible_sections for declared in scope.sections[section]
    }
    hint = f'did you mean "{dotted_name}"?' if dotted_name else _make_name_hint(name, visible_names)
    return f'unknown name "{name}"', hint


def _explain_dotted_name(path: Path, name: str, scope: NameScope) -> _Problem | None:
    """Return the problem of `arch.NAME`, `facts.NAME` or `resources.NAME`; None for a known one."""
    prefix, _, rest = name.partition(".")
    if prefix == "facts":
        if rest in scope.facts:
            return None
        near = did_you_mean(rest, scope.facts, max_listed=0)
        return (
            f'target "{scope.target}" has no fact "{rest}"',
            near or f"declare it: facts = {{ {rest} = … }} in [target.{scope.target}]",
        )
    if prefix == "resources" and path[-2:] != ("dispatch", "model"):
        return f'"{name}" is not known here', "only the model of [dispatch] sees resources"
    # The parser lets no other prefix through.
    attributes = ARCH_NAMES if prefix == "arch" else RESOURCE_NAMES
    if prefix == "arch" and rest in ARCH_NAMES - scope.limits:
        limit = "threads_per_sm" if rest == "warps_per_sm" else rest
        return (
            f'"{name}" of target "{scope.target}" is not known',
            f"declare it: limits = {{ {limit} = … }} in [target.{scope.target}]",
        )
    if rest in attributes:
        return None
    known = [f"{prefix}.{attribute}" for attribute in attributes]
    return f'there is no "{name}"', _make_name_hint(name, known)


def _make_name_hint(name: str, known: Collection[str]) -> str | None:
    """Return a hint with the known names that are near, or else with all of them."""
    return did_you_mean(name, known, max_listed=len(known))


def _check_arguments(checks: Checks, path: Path, script: ScriptSection) -> None:
    """Check the types of the arguments, one by one, then all together."""
    declared = [*checks.list_names(*path, "params")]
    for target in script.override:
        declared += checks.list_names(*path, "override", target, "params")
    # A name that is both is reported as declared twice.
    constants = [name for name in declared if name not in script.args]
    arguments = dict.fromkeys(checks.list_names(*path, "args"), _STAND_IN)
    for name, arg in script.args.items():
        if arg.constant and script.entry is not None:
            checks.add_key_error(
                (*path, "args", name, "constant"),
                "with entry, the template's own function fills its constants",
                "it takes the argument, and copies it with cudaMemcpyToSymbolAsync on its stream",
            )
        try:
            arguments[name] = make_argument(name, arg)
        except SignatureError as error:
            _add_signature_error(checks, path, name, error, script)
        except ExprError:
            pass  # an expression of a tensor map, which has been checked by itself
    # `join_arguments` stops at the first mistake. So an argument with one gives place to the
    # stand-in, a dimension that is not declared is declared, and all is joined again.
    for _ in range(MAX_MISTAKES):
        try:
            named = [replace(argument, name=name) for name, argument in arguments.items()]
            join_arguments(named, constants)
            return
        except SignatureError as error:
            name = error.argument or ""
            _add_signature_error(checks, path, name, error, script)
            arguments.update(dict.fromkeys(error.undeclared or (name,), _STAND_IN))


# For an argument whose mistake is reported: others may use it as a dimension.
_STAND_IN = Argument("_", "i32", None)


def _add_signature_error(
    checks: Checks, path: Path, name: str, error: SignatureError, script: ScriptSection
) -> None:
    """Report a mistake in an argument, at its column in the argument's type."""
    # The column is that of the whole type, of which the file may have the end only.
    full_type = script.args[name].type if name in script.args else None
    path = (*path, "args", name, "type")
    location = checks.document.locate_inside(path, error.column, full_text=full_type)
    hint = error.hint
    if chosen := [name for name in error.undeclared if name in (*script.space, *script.derived)]:
        hint = f'"{chosen[0]}" differs by schedule, a shape does not: write "[...]"'
    checks.add_error(location, error.message, hint)


def _check_cycles(checks: Checks, path: Path, target: str, script: ScriptSection) -> None:
    """Report derived values, and parameters through their `when`, that depend on themselves."""
    override = script.get_override(target)
    used_names: dict[str, frozenset[str]] = {}
    path_of_name: dict[str, Path] = {}
    for name, source in {**script.derived, **override.derived}.items():
        used_names[name] = _parse_names(source)
        path_of_name[name] = ("derived", name)
    for key, parameter in {**script.space, **override.space}.items():
        if parameter.when is None:
            continue
        for name in split_linked_names(key):
            # Linked parameters are tuned together, so that each depends on all names of `when`.
            used_names[name] = _parse_names(parameter.when)
            path_of_name[name] = ("space", key, "when")
    graph = {name: names & used_names.keys() for name, names in used_names.items()}
    # A cycle that is reported is cut, to find the next one.
    while cycle := _find_cycle(graph):
        checks.add_value_error(
            _resolve_path(path, target, path_of_name[cycle[0]], checks),
            f'"{cycle[0]}" depends on itself: {" → ".join([*cycle, cycle[0]])}',
        )
        graph |= dict.fromkeys(cycle, frozenset())


def _find_cycle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return names that each depend on the next, from the one that is declared first; else []."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # In the sorter's list each name is used by the next one, and the last is the first again:
        # [a, b, a]. Reversed, and without the first, each name depends on the next.
        cycle = list[str](error.args[1][:0:-1])
        start = cycle.index(min(cycle, key=list(graph).index))
        return cycle[start:] + cycle[:start]
    return []


def _parse_names(source: Value) -> frozenset[str]:
    """Return the names in an expression; none of one that cannot be parsed."""
    try:
        return parse_cached(source).names
    except ExprError:
        return frozenset()
