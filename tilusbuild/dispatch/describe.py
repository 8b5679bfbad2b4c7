"""Writes `script.json`, the description of an instance that a deployment reads.

It follows from the plan, the manifest's `dispatch` table and the built programs, and depends on no
place or time. `tilusbuild.runtime.script` reads it. Expressions in it are trees of JSON arrays
(`node_to_json`), which `tilusbuild.runtime.semantics` evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tilusbuild.dispatch.model import parse_model
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.expr import ExprError, Value
from tilusbuild.expr.tree import (
    Binary,
    Call,
    Compare,
    Const,
    Logic,
    Member,
    Name,
    Node,
    Select,
    Unary,
)
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.script_sections import BucketSection, DispatchSection, parse_cached
from tilusbuild.plan.instance import InstanceSpec, PlannedInstance
from tilusbuild.plan.model import list_target_constants
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.dtypes import WHOLE
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.script import SCHEMA, Script, parse_description
from tilusbuild.runtime.sealed import seal_json, unseal_json
from tilusbuild.signature.model import Argument
from tilusbuild.toolchain.cuda import parse_release
from tilusbuild.toolchain.host import list_flag_features

ProgramMeta = Mapping[str, Any]


def make_script_json(
    manifest: Manifest,
    instance: PlannedInstance,
    metas: Sequence[ProgramMeta | None],
) -> bytes:
    """Return the bytes of script.json. `metas` are the programs' meta.json, None for missing
    ones. Raises `InputError` for a `dispatch` table that cannot serve this instance."""
    dispatch = manifest.scripts[instance.script].dispatch
    schedules = [point.values for point in instance.spec.space.take_points(instance.schedules)]
    own_flags = manifest.merge_flags(instance.script, instance.target.name)
    cpu_features = {*instance.spec.toolchain.cpu_features, *list_flag_features(own_flags)}
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "script": instance.script,
        "hash": instance.hash,
        "level": _find_level(instance),
        "target": {
            "name": instance.target.name,
            "kind": instance.target.kind,
            "archs": [arch.name for arch in instance.target.archs],
            "ptx": instance.target.ptx,
            "toolkit": _find_toolkit_version(instance.spec, metas),
            "machine": instance.spec.toolchain.host.machine,
            **({"isa": sorted(cpu_features)} if cpu_features else {}),
        },
        "params": dict(instance.params),
        "arguments": [
            _describe_argument(argument) for argument in instance.spec.signature.value_arguments
        ],
        "parameters": list(instance.parameters),
        "schedules": {n: [values[n] for values in schedules] for n in instance.parameters},
        "programs": list(instance.programs),
        "not_built": {
            str(number): meta["status"] if meta else "missing"
            for number, meta in zip(instance.schedules, metas, strict=True)
            if meta is None or meta["status"] != "built"
        },
        "default": instance.default,
        "dispatch": _describe_dispatch(manifest, dispatch, instance, schedules, metas),
    }
    # Left out for whole spaces, where a program's number is its position.
    if instance.schedules != tuple(range(len(instance.schedules))):
        value["numbers"] = list(instance.schedules)
    if instance.spec.is_part:
        value["form"] = manifest.scripts[instance.script].form
    return seal_json(value)


def describe_planned(manifest: Manifest, instance: PlannedInstance, path: str = "") -> Script:
    """Return the script of a planned instance in the directory `path`. All of its programs count as
    built. Raises `InputError` as `make_script_json`."""
    script_json = make_script_json(manifest, instance, [None] * len(instance.programs))
    return parse_description(path, unseal_json(script_json))._replace(not_built={})


def describe_unserved(script: Script, sizes: Iterable[Mapping[str, Value]]) -> Iterator[str]:
    """Yield the error of a call at each of these sizes that no program of the script serves."""
    chooser = Chooser(script, None, frozenset(script.programs))
    for call_sizes in sizes:
        try:
            chooser.choose_program(script.complete_sizes(call_sizes))
        except (LoadError, ValueError) as error:
            yield str(error)


def _find_toolkit_version(spec: InstanceSpec, metas: Sequence[ProgramMeta | None]) -> str | None:
    """Return the version of the newest CUDA toolkit that made code of the programs; None without
    device code."""
    compiler = spec.toolchain.find_device_compiler(spec.pipeline.compiler)
    versions = [] if compiler is None else [compiler.version]
    # Of programs from a remote cache, any text.
    texts = sorted({str(meta.get("toolkit")) for meta in metas if meta})
    versions += [text for text in texts if re.fullmatch(r"\d{1,9}(\.\d{1,9})+", text, re.ASCII)]
    return max(versions, key=parse_release, default=None)


def _find_level(instance: PlannedInstance) -> int:
    """Return the level that is planned: 2 the whole space, 1 a sample, 0 one schedule of
    several."""
    count = len(instance.schedules)
    if count <= 1:
        return 0  # also for a whole space of one schedule: nothing can be tuned
    return 2 if count == instance.spec.space.size[0] else 1


def _describe_argument(argument: Argument) -> dict[str, Any]:
    """Return an argument as `script.json` has it."""
    dims = None
    if argument.dims is not None:
        dims = [d if isinstance(d, int | str) else node_to_json(d.tree) for d in argument.dims]
    return {
        "name": argument.name,
        "dtype": argument.dtype,
        "dims": dims,
        "out": argument.out,
        "dimension": not argument.is_passed,
        "type": argument.format_type(),
        **({"inout": True} if argument.inout else {}),
        **({"optional": True} if argument.optional else {}),
        **({"constant": True} if argument.constant else {}),
        **({"workspace": True} if argument.bytes is not None else {}),
    }


def find_dispatch_keys(
    dispatch: DispatchSection | None, instance: PlannedInstance
) -> tuple[str, ...]:
    """Return the arguments that the choice depends on: the declared keys, or all dimensions."""
    dimensions = instance.spec.signature.dimensions
    return (dispatch and dispatch.keys) or tuple(argument.name for argument in dimensions)


def describe_bucket(bucket: BucketSection | None) -> str | list[int] | dict[str, int]:
    """Return a bucket as `script.json` has it."""
    if bucket is None:
        return "tilus"
    if bucket.edges is not None:
        return list(bucket.edges)
    if bucket.every is not None:
        return {"every": bucket.every}
    return bucket.kind or "tilus"


def _describe_dispatch(
    manifest: Manifest,
    dispatch: DispatchSection | None,
    instance: PlannedInstance,
    schedules: Sequence[Mapping[str, Value]],
    metas: Sequence[ProgramMeta | None],
) -> dict[str, Any]:
    """Return the table "dispatch" of `script.json`. Raises `InputError` for a wrong model."""
    keys = find_dispatch_keys(dispatch, instance)
    sections = dispatch.bucket if dispatch else {}
    buckets = {key: describe_bucket(sections.get(key)) for key in keys}
    described_model = None
    if dispatch is not None and dispatch.model is not None:
        try:
            model = parse_model(dispatch.model, instance, keys, schedules, metas)
        except ExprError as error:
            location = manifest.locate_key("script", instance.script, "dispatch", "model")
            raise InputError(Diagnostic(error.message, location)) from None
        if model is not None:
            described_model = {
                "source": str(dispatch.model),
                "cost": node_to_json(model.cost.tree),
                "columns": model.columns,
            }
    return {
        "keys": list(keys),
        "buckets": buckets,
        "rules": _describe_rules(dispatch, instance, schedules),
        **_describe_serves(manifest.scripts[instance.script].serves, instance, schedules),
        "model": described_model,
    }


def _describe_rules(
    dispatch: DispatchSection | None,
    instance: PlannedInstance,
    schedules: Sequence[Mapping[str, Value]],
) -> list[dict[str, Any]]:
    """Return the manifest's rules as `script.json` has them. Left out are rules whose schedule is
    not planned, and rules over an argument without an integer value in this instance."""
    # Constants are replaced here, so that the runtime needs only the values of a call.
    constants = {**list_target_constants(instance.target), **instance.params}
    scalars = (a for a in instance.spec.signature.arguments if a.dims is None)
    integers = {argument.name for argument in scalars if argument.dtype in WHOLE}
    rules = []
    for row in dispatch.table if dispatch else ():
        program = _find_program_for(row.use, instance, schedules)
        when = parse_cached(row.when).substitute(constants)
        # A rule over an argument that has no integer value in this instance cannot be decided.
        if program is not None and when.names <= integers:
            rules.append({"source": row.when, "when": node_to_json(when.tree), "program": program})
    return rules


def _describe_serves(
    serves: Mapping[str, str],
    instance: PlannedInstance,
    schedules: Sequence[Mapping[str, Value]],
) -> dict[str, Any]:
    """Return the rules of the sizes that a program may serve, as `script.json` has them: an empty
    dictionary without rules."""
    if not serves:
        return {}
    constants = {**list_target_constants(instance.target), **instance.params}
    rules = {name: parse_cached(source).substitute(constants) for name, source in serves.items()}
    names = sorted({name for rule in rules.values() for name in rule.names})
    columns = {
        name: [values[name] for values in schedules]
        for name in names
        if all(name in values for values in schedules)
    }
    described = [
        {"name": name, "source": serves[name], "when": node_to_json(rule.tree)}
        for name, rule in rules.items()
    ]
    return {"serves": {"rules": described, "columns": columns}}


def _find_program_for(
    use: Mapping[str, Value], instance: PlannedInstance, schedules: Sequence[Mapping[str, Value]]
) -> int | None:
    """Return the number of the planned program with the values `use`; of several, the one with the
    most values of the default. Return None without one."""
    schedule_of_number = dict(zip(instance.schedules, schedules, strict=True))
    default = schedule_of_number[instance.default] if instance.default is not None else {}
    matching_numbers = [
        number for number, values in schedule_of_number.items() if use.items() <= values.items()
    ]

    def count_default_values(number: int) -> int:
        schedule = schedule_of_number[number]
        return sum(schedule[name] == default.get(name) for name in instance.parameters)

    # Of programs with equal counts `max` returns the first.
    return max(matching_numbers, key=count_default_values, default=None)


JsonTree: TypeAlias = "bool | int | float | str | list[JsonTree]"


def node_to_json(node: Node) -> JsonTree:
    """Return a parsed expression as JSON arrays."""
    match node:
        case Const():
            return node.value
        case Name():
            return ["name", node.name]
        case Unary():
            return ["unary", node.op, node_to_json(node.operand)]
        case Binary():
            return ["binary", node.op, node_to_json(node.left), node_to_json(node.right)]
        case Compare():
            rest = [part for op, right in node.rest for part in (op, node_to_json(right))]
            return ["compare", node_to_json(node.first), *rest]
        case Member():
            choices = [node_to_json(choice) for choice in node.choices]
            return ["in", node_to_json(node.item), choices, node.negated]
        case Logic():
            return [node.op, *(node_to_json(item) for item in node.items)]
        case Select():
            return ["if", node_to_json(node.test), node_to_json(node.yes), node_to_json(node.no)]
        case Call():
            return ["call", node.function, *(node_to_json(part) for part in node.arguments)]


def json_to_node(tree: JsonTree) -> Node:
    """Return the expression of a tree in `script.json`, the inverse of `node_to_json`. The runtime
    has read the tree, so its form is right."""
    if not isinstance(tree, list):
        return Const(tree)
    kind, *parts = tree
    if kind == "name":
        return Name(str(parts[0]))
    if kind == "in":
        choices = parts[1] if isinstance(parts[1], list) else []
        return Member(json_to_node(parts[0]), tuple(map(json_to_node, choices)), parts[2] is True)
    # All other parts are trees, except for the names of operators and functions, which become
    # constants.
    nodes = [json_to_node(part) for part in parts]
    match kind:
        case "unary":
            return Unary(str(parts[0]), nodes[1])
        case "binary":
            return Binary(str(parts[0]), nodes[1], nodes[2])
        case "compare":
            return Compare(nodes[0], tuple(zip(map(str, parts[1::2]), nodes[2::2], strict=True)))
        case "if":
            return Select(nodes[0], nodes[1], nodes[2])
        case "call":
            return Call(str(parts[0]), tuple(nodes[1:]))
    return Logic(str(kind), tuple(nodes))
