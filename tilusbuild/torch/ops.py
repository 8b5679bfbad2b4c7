"""`register`: the scripts of a package as ops of torch, through `torch.library`.

An op's schema and its fake implementation follow from the arguments that its script declares. Its
implementation is the runtime's `Kernel`, without anything in between: one for the CPU, one for
CUDA, as the package has targets. `Library.define` and `impl` are used, and not `custom_op`, whose
wrappers in Python cost more than such a call (`benchmarks/torch_ops.py`).

A package for Hugging Face's `kernels` carries this file beside the runtime, so it imports nothing
else of tilusbuild.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch

from tilusbuild.runtime import semantics
from tilusbuild.runtime.arrays import list_call_arguments
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.errors import LoadError, did_you_mean
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.loading import load
from tilusbuild.runtime.naming import (
    format_instance_name,
    name_functions,
    parse_name,
    to_snake_case,
)
from tilusbuild.runtime.places import (
    SearchRoot,
    find_directory,
    find_search_roots,
    get_working_directory,
)
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import CALLED, FILE, Script, ScriptArgument, read_script_once
from tilusbuild.runtime.sealed import unseal_json

_GRADIENT = "grad_"
_KINDS = {"bool": "bool", "int": "SymInt", "uint": "SymInt", "float": "float"}
"""The type in a schema, by the kind of a scalar's type."""
_libraries: list[Any] = []
"""Ops vanish with the `Library` that defined them."""


def register(
    namespace: str,
    where: object,
    scripts: Iterable[str] | Mapping[str, str] | None = None,
    *,
    backward: Mapping[str, str] | None = None,
    signed_by: str | None = None,
) -> Any:
    """Make each script an op `torch.ops.NAMESPACE.SCRIPT`, and return `torch.ops.NAMESPACE`.

    `where` is what `tilusbuild.load` takes: a cache tree, a project, a package, a module. `scripts`
    are names, also with constants (`gemm[dtype=f16]`), or names by the ops to make; without it all.
    An instance's op is called as its script; where several instances of it are registered, their
    constants follow: `gemm_f16`.

    An output is returned. One that the call cannot allocate, and each argument that is declared
    `inout`, is passed and mutated. `backward` names the op with the gradient of another: its inputs
    have the names of that one's arguments and outputs, or `grad_OUTPUT`, and its outputs are
    `grad_INPUT`, one for each tensor of floats. `signed_by` is as for `load`.

    Raises `LoadError`s: what `load` raises, an op that is there already; `TypeError` for an
    argument that no schema can say: an address, a struct.
    """
    if not namespace.isidentifier():
        raise LoadError(f"{namespace!r} cannot be a namespace of torch.ops: it is not a name")
    chosen = _chosen(where, scripts)
    forms = {name: _Form.of(name, found[0]) for name, found in chosen.items()}
    for name in forms:
        if hasattr(getattr(torch.ops, namespace), name):
            raise LoadError(f"there is an op torch.ops.{namespace}.{name} already")
    gradients = {pair: _gradient(forms, *pair) for pair in (backward or {}).items()}
    kernels = {name: _kernels(found, where, signed_by) for name, found in chosen.items()}
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    for name, form in forms.items():
        library.define(f"{name}{form.schema}", tags=(torch.Tag.pt2_compliant_tag,))
        for kind, kernel in kernels[name].items():
            library.impl(name, form.caller(kernel), kind.upper())
        torch.library.register_fake(f"{namespace}::{name}", form.fake, lib=library)
    made = getattr(torch.ops, namespace)
    for (name, other), (hook, keep) in gradients.items():
        called = partial(hook, getattr(made, other))
        torch.library.register_autograd(
            f"{namespace}::{name}", called, setup_context=keep, lib=library
        )
    return made


# Which scripts.


def _chosen(
    where: object, scripts: Iterable[str] | Mapping[str, str] | None
) -> dict[str, list[Script]]:
    """Return the instances, each a script a target, by the names of their ops."""
    found: dict[str, list[Script]] = {}
    if isinstance(scripts, Mapping):
        for op, text in scripts.items():
            instances = _instances(where, text)
            if len(instances) > 1:
                raise LoadError(f"{text!r} is several instances: {', '.join(instances)}")
            (found[op],) = instances.values()
    else:
        for text in [None] if scripts is None else scripts:
            found |= _instances(where, text)
        try:
            named = name_functions((each[0].name, each[0].params) for each in found.values())
        except ValueError as error:
            raise LoadError(f"{error}: {_MAPPING}") from None
        found = {op: found[label] for op, label in named.items()}
    for op in found:
        if not (op.isidentifier() and op.isascii()):
            raise LoadError(f"{op!r} cannot be an op: {_MAPPING}")
    return found


_MAPPING = 'give names, as in scripts={"my_op": "gemm[dtype=f16]"}'


def _instances(where: object, text: str | None) -> dict[str, list[Script]]:
    """Return the instances that a name fits, or all, by their names without a target."""
    (place,) = find_search_roots(where)
    try:
        name = None if text is None else parse_name(text)
    except ValueError as error:
        raise LoadError(f"{text!r}: {error}") from None
    found: dict[str, list[Script]] = {}
    for directory in [to_snake_case(name.script)] if name else _directories(place, where):
        for script in map(
            read_script_once, place.list_instances(directory, get_working_directory())
        ):
            fits = name is None or name.matches_instance(script.name, script.params, script.target)
            if fits and script.form == CALLED:
                found.setdefault(format_instance_name(script.name, script.params), []).append(
                    script
                )
    if not found and text:
        load(text, where=where)  # says what is wrong
    if not found:
        raise LoadError(f"{place.path} has no script to call")
    return found


def _directories(place: SearchRoot, where: object) -> Iterable[str]:
    """Return the directories of a place's scripts; of the cache that projects share, a project's
    own."""
    try:
        projects = unseal_json(read_bytes(os.path.join(place.path, "index.json")))["projects"]
        own = projects[os.path.join(find_directory(where), "tilus.toml")]["scripts"]
    except (FileNotFoundError, KeyError):
        return place.list_script_names()
    return sorted({directory for directory, _ in own})


def _kernels(instance: Sequence[Script], where: object, signed_by: str | None) -> dict[str, Kernel]:
    """Return a kernel for each kind of device that the instance has targets for."""
    found = {}
    for kind in sorted({script.kind for script in instance}):
        targets = {script.target for script in instance if script.kind == kind}
        target = targets.pop() if len(targets) == 1 else kind
        name = format_instance_name(instance[0].name, instance[0].params)
        found[kind] = load(name, where=where, target=target, signed_by=signed_by)
    return found


# What an op takes and returns.


class _Form(NamedTuple):
    """An op, as the script's arguments make it. `inputs` are what its caller passes, `outputs` what
    it returns; `shapes` are the dimensions of all, as `script.json` has them."""

    name: str
    script: Script
    inputs: tuple[ScriptArgument, ...]
    outputs: tuple[ScriptArgument, ...]
    shapes: Mapping[str, Sequence[Any]]
    like: int
    """Which input says where an output is."""

    @classmethod
    def of(cls, name: str, script: Script) -> _Form:
        """Return the op of a script. Raises `TypeError` for what a schema cannot say."""
        listed = unseal_json(read_bytes(os.path.join(script.path, FILE)))["arguments"]
        shapes = {each["name"]: each["dims"] for each in listed if each["dims"] is not None}
        wanted = list_call_arguments(script)
        given = [a for a in wanted if not a.out]
        tensors = [a for a in given if _is_tensor(a) and not a.optional and not a.constant]
        known = {a.name for a in given if a.dims is None}
        known |= {dim for a in tensors for dim in shapes[a.name] if isinstance(dim, str)}
        made = tuple(a for a in wanted if a.out and tensors and _is_made(shapes[a.name], known))
        inputs = tuple(a for a in wanted if a not in made)
        for argument in inputs:
            if not _is_tensor(argument) and argument.dtype not in DTYPES:
                raise TypeError(
                    f'{script.name}: argument "{argument.name}": an op of torch takes no'
                    f" {argument.type}: name the other scripts with scripts=[…]"
                )
        return cls(name, script, inputs, made, shapes, inputs.index(tensors[0]) if tensors else -1)

    @property
    def mutated(self) -> tuple[ScriptArgument, ...]:
        """Return the arguments that the kernel writes."""
        return tuple(a for a in self.inputs if a.inout or a.out)

    @property
    def schema(self) -> str:
        """Return the schema, without the name."""
        returned = ", ".join("Tensor" for _ in self.outputs)
        returned = returned if len(self.outputs) == 1 else f"({returned})"
        return f"({', '.join(map(self._declared, self.inputs))}) -> {returned}"

    def _declared(self, argument: ScriptArgument) -> str:
        if not _is_tensor(argument):
            return f"{_KINDS[DTYPES[argument.dtype].kind]} {argument.name}"
        if argument in self.mutated:
            return f"Tensor({chr(97 + self.mutated.index(argument))}!) {argument.name}"
        return f"Tensor{'?' * argument.optional} {argument.name}"

    def caller(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the implementation for a device: the kernel itself, where it mutates nothing."""
        places = [i for i, a in enumerate(self.inputs) if a in self.mutated]
        if not places:
            return kernel.__call__
        names = [a.name for a in self.inputs]

        def call(*args: Any) -> Any:
            made = kernel(**dict(zip(names, args, strict=True))) if self.outputs else kernel(*args)
            for place in places:  # autograd may have kept the tensor's old value
                if not args[place].is_inference():
                    torch.autograd.graph.increment_version(args[place])
            return made

        return call

    def fake(self, *args: Any) -> Any:
        """Return the outputs of a call, without values. Sizes may be symbols: no guard is made."""
        sizes: dict[str, Any] = {}
        for argument, value in zip(self.inputs, args, strict=True):
            shape = self.shapes.get(argument.name)
            if shape is None:
                sizes[argument.name] = value
            elif value is not None and list(shape) != ["..."]:
                if value.dim() != len(shape):
                    raise ValueError(
                        f'{self.script.name}: argument "{argument.name}": expected'
                        f" {argument.type}, got a tensor of {value.dim()} dimensions"
                    )
                for axis, dim in enumerate(shape):
                    if isinstance(dim, str) and not argument.optional:
                        sizes.setdefault(dim, value.shape[axis])
        made = [
            args[self.like].new_empty([_size(d, sizes) for d in self.shapes[a.name]], dtype=_of(a))
            for a in self.outputs
        ]
        return made[0] if len(made) == 1 else tuple(made) or None


def _is_tensor(argument: ScriptArgument) -> bool:
    return argument.dims is not None


def _is_made(shape: Sequence[Any], known: set[str]) -> bool:
    """Return whether the sizes of an output follow from the inputs."""
    names = [{dim} if isinstance(dim, str) else semantics.collect_names(dim) for dim in shape]
    return set().union(*names) <= known


def _of(argument: ScriptArgument) -> Any:
    return getattr(torch, DTYPES[argument.dtype].numpy)


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "cdiv": lambda left, right: -(-left // right),
    "align": lambda value, step: -(-value // step) * step,
    "min": lambda *values: reduce(torch.sym_min, values),
    "max": lambda *values: reduce(torch.sym_max, values),
}
"""Operations of two sizes or more that a symbol has, too, and means the same by."""


def _size(tree: Any, sizes: Mapping[str, Any]) -> Any:
    """Return a dimension's value. One that symbols cannot compute becomes a number: torch compiles
    again for others."""
    if isinstance(tree, str):
        return sizes[tree]
    if not isinstance(tree, list):
        return tree
    kind, *parts = tree
    if kind == "name":
        return sizes[parts[0]]
    if kind in ("binary", "call") and parts[0] in _SYMBOLIC:
        return _SYMBOLIC[parts[0]](*(_size(part, sizes) for part in parts[1:]))
    needed = {name: int(sizes[name]) for name in semantics.collect_names(tree)}
    return semantics.build_function(tree, needed)(needed)


# Gradients.


_Hooks = tuple[Callable[..., Any], Callable[..., Any]]


def _gradient(forms: Mapping[str, _Form], name: str, other: str) -> _Hooks:
    """Return what `register_autograd` takes, where an op computes the gradient of one: `backward`,
    of which the first argument is that op, and `setup_context`. Arguments are matched by name.
    Raises `LoadError`.
    """
    for each in (name, other):
        if each not in forms:
            raise LoadError(f"backward: there is no op {each!r}: {did_you_mean(each, forms)}")
        if forms[each].mutated:
            raise LoadError(
                f'backward: {each} mutates "{forms[each].mutated[0].name}": an op with a gradient,'
                " and its gradient, only return"
            )
    forward, op = forms[name], forms[other]
    values = [a.name for a in (*forward.inputs, *forward.outputs)]
    wanted = [a.name for a in op.inputs]
    made = [a.name for a in op.outputs]
    known = [*values, *(_GRADIENT + a.name for a in forward.outputs)]
    for each in wanted:
        if each not in known:
            raise LoadError(
                f'backward: {other} has an argument "{each}", and {name} has not:'
                f" {did_you_mean(each, known)}"
            )
    for argument in forward.inputs:
        floats = _is_tensor(argument) and DTYPES[argument.dtype].kind == "float"
        if floats and _GRADIENT + argument.name not in made:
            raise LoadError(
                f'backward: {other} has no output "{_GRADIENT}{argument.name}":'
                f" each tensor of floats of {name} has a gradient"
            )
    tensors = [a.name for a in op.inputs if _is_tensor(a) and a.name in values]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        given = dict(zip(values, (*inputs, *_several(output)), strict=True))
        ctx.save_for_backward(*map(given.get, tensors))
        ctx.numbers = {n: v for n, v in given.items() if n in wanted and n not in tensors}

    def backward(call: Callable[..., Any], ctx: Any, *grads: Any) -> Any:
        # Gradients come in any strides: that of a sum has none.
        found = {**ctx.numbers, **dict(zip(tensors, ctx.saved_tensors, strict=True))}
        found |= dict(zip(known[len(values) :], (g.contiguous() for g in grads), strict=True))
        results = dict(zip(made, _several(call(*(found[each] for each in wanted))), strict=True))
        return tuple(results.get(_GRADIENT + a.name) for a in forward.inputs)

    return backward, keep


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
