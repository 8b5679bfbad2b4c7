"""Check every expression: it can be parsed, and each of its names is known at its place.

The known names depend on the key of the expression and, since overrides may add names, on the
target. So each expression is checked for every target of its script.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tilusbuild.arch import CPU
from tilusbuild.errors import Place, did_you_mean
from tilusbuild.expr import Expr, ExprError, Value
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import COSTS, split_linked_names
from tilusbuild.manifest.scanner import Path
from tilusbuild.manifest.script_sections import list_expressions, make_argument, parse_cached
from tilusbuild.manifest.table import to_json_value
from tilusbuild.runtime.dtypes import FLOATS, POINTER, TENSOR_MAP
from tilusbuild.runtime.structs import is_struct
from tilusbuild.signature import (
    Argument,
    SignatureError,
    join_arguments,
    parse_argument,
)

if TYPE_CHECKING:
    from tilusbuild.manifest.script import ScriptSection
    from tilusbuild.manifest.script_sections import Arg, DispatchSection, LaunchOverride


class NameScope(Struct, frozen=True):
    """The names that a script declares for one target, by section."""

    params: frozenset[str]
    space: frozenset[str]
    derived: frozenset[str]
    sizes: frozenset[str]
    """Integer arguments, which have a value when the kernel is called."""
    arguments: frozenset[str]
    """All arguments."""
    strides: frozenset[str]
    """Arguments that are read off strides. Dispatch does not know them."""
    facts: frozenset[str]
    open_space: bool
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
            for inner, source, sees in _list_sites(script, target):
                where = _resolve_path(path, target, inner, checks)
                check_expression(checks, where, source, scope, target, sees)
            _check_cycles(checks, path, target, script)


_ExpressionSite: TypeAlias = tuple[Path, Value, frozenset[str]]
"""The path of an expression in its script, its source, and the sections of names it may use."""

_STATIC = frozenset({"params", "space", "derived"})
_CALL = _STATIC | {"sizes"}
_RULE = frozenset({"params", "sizes"})


def _list_sites(script: ScriptSection, target: str) -> Iterator[_ExpressionSite]:
    """Yield every expression of a script for a target."""
    override = script.override_for(target)
    for key, parameter in {**script.space, **override.space}.items():
        if parameter.when is not None:
            yield ("space", key, "when"), parameter.when, _STATIC
    for name, source in {**script.derived, **override.derived}.items():
        yield ("derived", name), source, _STATIC
    for name, rule in script.restrict_sources(target).items():
        yield ("restrict", name), rule, _STATIC
    for key, limit in to_json_value(script.prune).items():
        yield ("prune", key), limit, _STATIC
    for source in list_expressions(script.kernel or ""):
        yield ("kernel",), source, _STATIC
    for name, arg in script.args.items():
        yield from _list_tensor_map_sites(name, arg)
    for table in (script.launch, override.launch):
        yield from _list_launch_sites(table)
    yield from _list_dispatch_sites(script.dispatch)


def _list_tensor_map_sites(name: str, arg: Arg) -> Iterator[_ExpressionSite]:
    if arg.tensor_map is None:
        return
    for key in ("box", "element_strides"):
        for number, source in enumerate(getattr(arg, key) or ()):
            yield ("args", name, key.replace("_", "-"), number), source, _STATIC
    for key in ("interleave", "swizzle", "l2_promotion"):
        yield ("args", name, key.replace("_", "-")), getattr(arg, key), _STATIC


def _list_launch_sites(table: LaunchOverride | None) -> Iterator[_ExpressionSite]:
    if table is None:
        return
    for axis, sources in (("grid", table.grid), ("block", table.block), ("cluster", table.cluster)):
        for number, source in enumerate(sources or ()):
            yield ("launch", axis, number), source, _CALL
    if table.smem is not None:
        yield ("launch", "smem"), table.smem, _CALL
    # These are set once for a device, before any call, so that arguments have no value there.
    for key in ("cooperative", "pdl", "carve_out"):
        source = getattr(table, key)
        if source is not None:
            yield ("launch", key.replace("_", "-")), source, _STATIC


def _list_dispatch_sites(dispatch: DispatchSection | None) -> Iterator[_ExpressionSite]:
    if dispatch is None:
        return
    for name in COSTS:
        source = getattr(dispatch, name)
        if source is not None:
            yield ("dispatch", name), source, _CALL if name == "model" else _RULE
    for number, row in enumerate(dispatch.table):
        yield ("dispatch", "table", number, "when"), row.when, _RULE


def _resolve_path(path: Path, target: str, inner: Path, checks: Checks) -> Path:
    own: Path = (*path, "override", target, *inner)
    return own if checks.value_in_file(*own) is not None else (*path, *inner)


def collect_scope(checks: Checks, path: Path, target: str, script: ScriptSection) -> NameScope:
    """Return the declared names of a script for a target.

    Names come from the file, so that an entry with a mistake still declares its name.
    """

    def names_in_section(section: str) -> frozenset[str]:
        return frozenset(
            checks.list_names(*path, section)
            + checks.list_names(*path, "override", target, section)
        )

    broken = set(checks.list_names(*path, "args")) - set(script.args)
    sizes = {name for name, arg in script.args.items() if _may_be_integer(arg.type)}
    return NameScope(
        params=names_in_section("params"),
        space=names_in_section("space"),
        derived=names_in_section("derived"),
        sizes=frozenset(sizes | broken),
        arguments=frozenset(checks.list_names(*path, "args")),
        strides=frozenset(
            stride
            for arg in script.args.values()
            for stride in arg.strides or ()
            if isinstance(stride, str)
        ),
        facts=frozenset(checks.list_names("target", target, "facts")),
        open_space=script.space_file is not None,
    )


def _may_be_integer(type_text: str) -> bool:
    """Return whether a type is an integer scalar, or may be one: a constant, or a mistake."""
    try:
        argument = parse_argument(Argument("_", type_text))
    except SignatureError:
        return True
    return not (argument.is_tensor or argument.dtype in _NO_INTEGERS or is_struct(argument.dtype))


_NO_INTEGERS = FLOATS | {"bool", POINTER, TENSOR_MAP}


def check_expression(
    checks: Checks, path: Path, source: Value, scope: NameScope, target: str, sees: frozenset[str]
) -> None:
    """Report the mistakes of one expression: its syntax, and each unknown name."""
    try:
        parsed = parse_cached(source)
    except ExprError as error:
        where = checks.document.locate_inside(path, error.column)
        checks.add_error(error.message, where, getattr(error, "hint", None))
        return
    for name in sorted(parsed.names):
        problem = _explain_name(checks, path, name, scope, target, sees)
        if problem:
            checks.add_error(problem[0], _locate_name(checks, path, str(source), name), problem[1])


def _locate_name(checks: Checks, path: Path, source: str, name: str) -> Place:
    pattern = r"\s*\.\s*".join(re.escape(part) for part in name.split("."))
    match = re.search(rf"(?<![\w.]){pattern}(?!\w)", source)
    if match is None:
        return checks.document.locate_value(*path)
    return checks.document.locate_inside(path, match.start() + 1, match.end() - match.start())


Problem = tuple[str, str | None]


def _explain_name(
    checks: Checks, path: Path, name: str, scope: NameScope, target: str, sees: frozenset[str]
) -> Problem | None:
    if "." in name:
        in_model = path[-2:] == ("dispatch", "model")
        return _explain_dotted_name(name, scope, target, in_model=in_model)
    if name in scope.strides and "dispatch" in path:
        return explain_stride(name)
    if any(name in getattr(scope, section) for section in sees):
        return None
    if name in scope.space or name in scope.derived:
        return (
            f'"{name}" is not known here',
            "rules, bytes and flops hold for every schedule, so they cannot depend on it",
        )
    if name in scope.sizes:
        return (
            f'"{name}" is an argument: it is not known until the kernel is called',
            "only grid, block, smem, cluster and dispatch depend on arguments",
        )
    if name in scope.arguments:
        return f'"{name}" is not an integer argument', "expressions see integer arguments only"
    if scope.open_space:
        return None
    if _is_declared_elsewhere(checks, path, name):
        return (
            f'"{name}" is not declared for target "{target}"',
            "another target's override declares it",
        )
    return f'unknown name "{name}"', _suggest_name(name, scope, sees)


def explain_stride(name: str) -> Problem:
    """Return the problem of a stride in an expression of `dispatch`."""
    return f'"{name}" is a stride', "dispatch depends on shapes and integers that are passed"


def _is_declared_elsewhere(checks: Checks, path: Path, name: str) -> bool:
    return any(
        name in checks.list_names(*path[:2], "override", other, section)
        for other in checks.list_names(*path[:2], "override")
        for section in ("params", "space", "derived")
    )


def _explain_dotted_name(
    name: str, scope: NameScope, target: str, *, in_model: bool
) -> Problem | None:
    prefix, _, rest = name.partition(".")
    if prefix == "resources" and not in_model:
        return f'"{name}" is not known here', "only the model of [dispatch] sees resources"
    if prefix in ("arch", "resources"):
        names = ARCH_NAMES if prefix == "arch" else RESOURCE_NAMES
        known = [f"{prefix}.{each}" for each in names]
        if name in known:
            return None
        return f'there is no "{name}"', did_you_mean(name, known, max_listed=len(known))
    if prefix == "facts":
        if rest in scope.facts:
            return None
        near = did_you_mean(rest, scope.facts, max_listed=0)
        return (
            f'target "{target}" has no fact "{rest}"',
            near or f"declare it: facts = {{ {rest} = … }} in [target.{target}]",
        )
    return f'unknown name "{name}"', "only arch.NAME and facts.NAME have a point"


def _suggest_name(name: str, scope: NameScope, sees: Iterable[str]) -> str | None:
    plain = {known for section in sees for known in getattr(scope, section)}
    dotted = {f"arch.{known}" for known in ARCH_NAMES} | {f"facts.{known}" for known in scope.facts}
    exact = next((known for known in sorted(dotted) if known.endswith(f".{name}")), None)
    if exact:
        return f'did you mean "{exact}"?'
    return did_you_mean(name, plain, max_listed=len(plain))


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
            checks.add_error(
                "with entry, the template's own function fills its constants",
                checks.document.locate_key(*path, "args", name, "constant"),
                "it takes the argument, and copies it with cudaMemcpyToSymbolAsync on its stream",
            )
        arguments[name] = _check_argument(checks, path, name, arg) or _STAND_IN
    for _ in script.args:
        error = _find_join_error(arguments, constants)
        if error is None:
            return
        name = error.argument or ""
        of = script.args[name].type if name in script.args else None
        _report_signature_error(checks, path, name, error, of)
        arguments[name] = _STAND_IN


def _find_join_error(
    arguments: Mapping[str, Argument], constants: Collection[str]
) -> SignatureError | None:
    try:
        join_arguments([replace(arg, name=name) for name, arg in arguments.items()], constants)
    except SignatureError as error:
        return error
    return None


_STAND_IN = Argument("_", "i32", None)
"""For an argument whose mistake is reported: others may use it as a dimension."""


def _check_argument(checks: Checks, path: Path, name: str, arg: Arg) -> Argument | None:
    try:
        return make_argument(name, arg)
    except SignatureError as error:
        _report_signature_error(checks, path, name, error, arg.type)
    except ExprError:
        pass  # of a tensor map's: its own place says so
    return None


def _report_signature_error(
    checks: Checks, path: Path, name: str, error: SignatureError, of: str | None
) -> None:
    where: Path = (*path, "args", name, "type")
    place = checks.document.locate_inside(where, error.column, of=of)
    checks.add_error(error.message, place, error.hint)


def _check_cycles(checks: Checks, path: Path, target: str, script: ScriptSection) -> None:
    """Report derived values, and parameters through their `when`, that depend on themselves."""
    override = script.override_for(target)
    uses: dict[str, frozenset[str]] = {}
    where: dict[str, Path] = {}
    for name, source in {**script.derived, **override.derived}.items():
        uses[name], where[name] = _parse_names(source), ("derived", name)
    for key, parameter in {**script.space, **override.space}.items():
        for name in split_linked_names(key) if parameter.when is not None else ():
            uses[name], where[name] = _parse_names(parameter.when or ""), ("space", key, "when")
    graph = {name: used & uses.keys() for name, used in uses.items()}
    while cycle := _find_cycle(graph):
        checks.add_error(
            f'"{cycle[0]}" depends on itself: {" → ".join([*cycle, cycle[0]])}',
            checks.document.locate_value(*_resolve_path(path, target, where[cycle[0]], checks)),
        )
        graph |= dict.fromkeys(cycle, frozenset())


def _find_cycle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """Return names of which each depends on the next, from the one that is declared first; [] where
    there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found = list[str](error.args[1][:0:-1])
        start = min(map(list(graph).index, found))
        at = found.index(list(graph)[start])
        return [*found[at:], *found[:at]]
    return []


def _parse_names(source: Value) -> frozenset[str]:
    try:
        parsed: Expr = parse_cached(source)
    except ExprError:
        return frozenset()
    return parsed.names
