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
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.runtime.script import CALLED, FILE, Script, ScriptArgument, read_script_once
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.runtime.search_roots import (
    SearchRoot,
    find_directory,
    find_search_roots,
    get_working_directory,
)
from tilusbuild.runtime.states import check_states, has_torch_state

_GRADIENT = "grad_"
_SCHEMA_TYPE_OF_KIND = {"bool": "bool", "int": "SymInt", "uint": "SymInt", "float": "float"}
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

    Raises the errors of `load`; `LoadError` for an op that exists already; `TypeError` for an
    argument that has no type in a schema: an address, a struct.
    """
    if not namespace.isidentifier():
        raise LoadError(f"{namespace!r} cannot be a namespace of torch.ops: it is not a name")
    instances_by_op = _choose_instances(where, scripts)
    # The first script is enough, because all targets of an instance have the same arguments.
    schemas = {op: _OpSchema.from_script(op, group[0]) for op, group in instances_by_op.items()}
    for name in schemas:
        if hasattr(getattr(torch.ops, namespace), name):
            raise LoadError(f"there is an op torch.ops.{namespace}.{name} already")
    gradients = {pair: _make_gradient_hooks(schemas, *pair) for pair in (backward or {}).items()}
    kernels = {op: _load_kernels(group, where, signed_by) for op, group in instances_by_op.items()}
    # All mistakes of the caller are reported by now, so that either all ops are registered or none.
    library = torch.library.Library(namespace, "FRAGMENT")
    _libraries.append(library)
    for name, schema in schemas.items():
        library.define(f"{name}{schema.declaration}", tags=(torch.Tag.pt2_compliant_tag,))
        for kind, kernel in kernels[name].items():
            library.impl(name, schema.make_implementation(kernel), kind.upper())
        torch.library.register_fake(
            f"{namespace}::{name}", schema.allocate_fake_outputs, lib=library
        )
    ops = getattr(torch.ops, namespace)
    # Gradients come after all ops, because each calls another op.
    for (name, gradient_op), hooks in gradients.items():
        torch.library.register_autograd(
            f"{namespace}::{name}",
            partial(hooks.run_backward, getattr(ops, gradient_op)),
            setup_context=hooks.save_context,
            lib=library,
        )
    return ops


# Which scripts.


def _choose_instances(
    where: object, scripts: Iterable[str] | Mapping[str, str] | None
) -> dict[str, list[Script]]:
    """Return the instances to register, by the names of their ops. An instance, a script with its
    constants, is the list of its `Script`s, one a target. `scripts` is as for `register`. Raises
    `LoadError`."""
    instances_by_op: dict[str, list[Script]] = {}
    if isinstance(scripts, Mapping):
        for op, text in scripts.items():
            instances = _find_instances(where, text)
            if len(instances) > 1:
                raise LoadError(f"{text!r} is several instances: {', '.join(sorted(instances))}")
            (instances_by_op[op],) = instances.values()
    else:
        for text in [None] if scripts is None else scripts:
            instances_by_op |= _find_instances(where, text)
        try:
            first_scripts = [group[0] for group in instances_by_op.values()]
            label_by_op = name_functions((s.name, s.params) for s in first_scripts)
        except ValueError as error:
            raise LoadError(f"{error}: {_NAMES_HINT}") from None
        instances_by_op = {op: instances_by_op[label] for op, label in label_by_op.items()}
    for op in instances_by_op:
        if not (op.isidentifier() and op.isascii()):
            raise LoadError(f"{op!r} cannot be an op: {_NAMES_HINT}")
    return instances_by_op


_NAMES_HINT = 'give names, as in scripts={"my_op": "gemm[dtype=f16]"}'


def _find_instances(where: object, text: str | None) -> dict[str, list[Script]]:
    """Return the instances that the name `text` fits (None: all), by their names. Scripts that are
    not called as kernels are left out. Raises `LoadError` if there are none."""
    (root,) = find_search_roots(where)
    try:
        name = None if text is None else parse_name(text)
    except ValueError as error:
        raise LoadError(f"{text!r}: {error}") from None
    scripts_by_label: dict[str, list[Script]] = {}
    for directory in [to_snake_case(name.script)] if name else _list_directories(root, where):
        paths = root.list_instances(directory, get_working_directory())
        for script in map(read_script_once, paths):
            fits = name is None or name.matches_instance(script.name, script.params, script.target)
            if fits and script.form == CALLED:
                label = format_instance_name(script.name, script.params)
                scripts_by_label.setdefault(label, []).append(script)
    if scripts_by_label:
        return scripts_by_label
    if text:
        # Called for its error, which says whether the name is wrong or nothing was built.
        load(text, where=where)
    raise LoadError(f"{root.path} has no script to call")


def _list_directories(root: SearchRoot, where: object) -> Iterable[str]:
    """Return the names of the scripts' directories. For a project, return only those of its last
    build: its cache may be shared with others."""
    try:
        projects = unseal_json(read_bytes(os.path.join(root.path, "index.json")))["projects"]
        scripts = projects[os.path.join(find_directory(where), "tilus.toml")]["scripts"]
    except (FileNotFoundError, KeyError):
        # A package has no index, and one that was installed is under another key.
        return root.list_script_names()
    return sorted({directory for directory, _ in scripts})


def _load_kernels(
    instance: Sequence[Script], where: object, signed_by: str | None
) -> dict[str, Kernel]:
    """Load the kernel of an instance for each kind of device, "cpu" and "cuda", among its targets.
    Raises `LoadError`."""
    kernel_by_kind = {}
    for kind in sorted({script.kind for script in instance}):
        targets = {script.target for script in instance if script.kind == kind}
        # Of several targets, `load` chooses by the device among those of the kind.
        target = targets.pop() if len(targets) == 1 else kind
        name = format_instance_name(instance[0].name, instance[0].params)
        kernel_by_kind[kind] = load(name, where=where, target=target, signed_by=signed_by)
    return kernel_by_kind


# What an op takes and returns.


class _OpSchema(NamedTuple):
    """The signature of an op. A caller passes `inputs`, and the op returns `outputs`. `shapes` has
    the dimensions of all tensors, as `script.json` has them."""

    name: str
    script: Script
    inputs: tuple[ScriptArgument, ...]
    outputs: tuple[ScriptArgument, ...]
    shapes: Mapping[str, Sequence[Any]]
    like: int
    """The index of the input on whose device outputs are allocated; -1 for none."""

    @classmethod
    def from_script(cls, name: str, script: Script) -> _OpSchema:
        """Return the schema of a script's op, called `name`. The outputs are the arguments declared
        `out` whose shapes follow from the inputs. Raises `TypeError` for an argument that has no
        type in torch's schema language."""
        # The dimensions are read as expressions: the runtime's functions take only numbers, and
        # here sizes may be symbols.
        tables = unseal_json(read_bytes(os.path.join(script.path, FILE)))["arguments"]
        shapes = {table["name"]: table["dims"] for table in tables if table["dims"] is not None}
        # The kernel allocates its workspaces.
        passed_arguments = [a for a in list_call_arguments(script) if not a.workspace]
        inputs_only = [a for a in passed_arguments if not a.out]
        tensors = [a for a in inputs_only if _is_tensor(a) and not a.optional and not a.constant]
        known_sizes = {a.name for a in inputs_only if a.dims is None}
        known_sizes |= {dim for a in tensors for dim in shapes[a.name] if isinstance(dim, str)}
        outputs = tuple(
            a
            for a in passed_arguments
            if a.out and tensors and _has_known_shape(shapes[a.name], known_sizes)
        )
        inputs = tuple(a for a in passed_arguments if a not in outputs)
        for argument in inputs:
            if not _is_tensor(argument) and argument.dtype not in DTYPES:
                raise TypeError(
                    f'{script.name}: argument "{argument.name}": an op of torch takes no'
                    f" {argument.type}: name the other scripts with scripts=[…]"
                )
        like = inputs.index(tensors[0]) if tensors else -1
        return cls(name, script, inputs, outputs, shapes, like)

    @property
    def mutated(self) -> tuple[ScriptArgument, ...]:
        """Return the arguments that the kernel writes."""
        return tuple(a for a in self.inputs if a.inout or a.out)

    @property
    def declaration(self) -> str:
        """Return the schema in torch's language, without the name of the op."""
        arguments = ", ".join(map(self._declare_argument, self.inputs))
        tensors = ", ".join("Tensor" for _ in self.outputs)
        return f"({arguments}) -> {tensors if len(self.outputs) == 1 else f'({tensors})'}"

    def _declare_argument(self, argument: ScriptArgument) -> str:
        """Return an argument in torch's schema language."""
        if not _is_tensor(argument):
            return f"{_SCHEMA_TYPE_OF_KIND[DTYPES[argument.dtype].kind]} {argument.name}"
        if argument in self.mutated:
            # torch marks each mutated argument by a letter of its own: `a!`, `b!`.
            letter = chr(ord("a") + self.mutated.index(argument))
            return f"Tensor({letter}!) {argument.name}"
        return f"Tensor{'?' if argument.optional else ''} {argument.name}"

    def make_implementation(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the implementation for a device: the kernel itself or, if it mutates arguments, a
        function that also counts the mutation for autograd."""
        mutated_indexes = [i for i, a in enumerate(self.inputs) if a in self.mutated]
        if not mutated_indexes:
            return kernel.__call__
        tensor_indexes = [i for i, a in enumerate(self.inputs) if _is_tensor(a)]
        names = [a.name for a in self.inputs]
        has_workspaces = bool(self.script.workspaces)

        def call_kernel(*args: Any) -> Any:
            """Call the kernel with the inputs, count each mutation, and return the outputs. Raise
            `ValueError` for a gradient that the mutation would lose."""
            if self.outputs or has_workspaces:
                outputs = kernel(**dict(zip(names, args, strict=True)))
            else:
                if has_torch_state(args, tensor_indexes):
                    check_states(self.script, args)
                outputs = kernel(*args)
            # Autograd may have saved the tensor's old value. With the new version it reports an
            # error in place of using the overwritten value.
            for index in mutated_indexes:
                if not args[index].is_inference():
                    torch.autograd.graph.increment_version(args[index])
            return outputs

        return call_kernel

    def allocate_fake_outputs(self, *args: Any) -> Any:
        """Return outputs without values for a call with these inputs: a tensor, a tuple, or None
        without outputs. Sizes may be symbols; no guard is added. Raises `ValueError` for a tensor
        with another number of dimensions."""
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
                # A dimension that is a name has its size from the first tensor with that name.
                for axis, dim in enumerate(shape):
                    if isinstance(dim, str) and not argument.optional:
                        sizes.setdefault(dim, value.shape[axis])
        outputs = []
        for argument in self.outputs:
            size = [_evaluate_size(dim, sizes) for dim in self.shapes[argument.name]]
            empty = args[self.like].new_empty(size, dtype=_to_torch_dtype(argument))
            outputs.append(empty)
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _is_tensor(argument: ScriptArgument) -> bool:
    return argument.dims is not None


def _has_known_shape(shape: Sequence[Any], known: set[str]) -> bool:
    """Return whether the known sizes determine the shape of an output."""
    names = [{dim} if isinstance(dim, str) else semantics.collect_names(dim) for dim in shape]
    return set().union(*names) <= known


def _to_torch_dtype(argument: ScriptArgument) -> Any:
    """Return torch's dtype of an argument."""
    return getattr(torch, DTYPES[argument.dtype].numpy)


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "cdiv": lambda value, divisor: -(-value // divisor),
    "align": lambda value, step: -(-value // step) * step,
    "min": lambda *values: reduce(torch.sym_min, values),
    "max": lambda *values: reduce(torch.sym_max, values),
}
"""Operations that have the same result for symbols as for numbers."""


def _evaluate_size(tree: Any, sizes: Mapping[str, Any]) -> Any:
    """Return the value of a dimension, an expression of `script.json` as nested lists. `sizes` has
    the value of each name. An operation that symbols lack turns them into numbers: torch then
    compiles again for other sizes."""
    if isinstance(tree, str):
        return sizes[tree]
    if not isinstance(tree, list):
        return tree
    kind, *parts = tree
    if kind == "name":
        return sizes[parts[0]]
    if kind in ("binary", "call") and parts[0] in _SYMBOLIC:
        return _SYMBOLIC[parts[0]](*(_evaluate_size(part, sizes) for part in parts[1:]))
    needed = {name: int(sizes[name]) for name in semantics.collect_names(tree)}
    return semantics.build_function(tree, needed)(needed)


# Gradients.


class _GradientHooks(NamedTuple):
    """The functions for `register_autograd`. The first parameter of `run_backward` is the op that
    computes the gradient; `save_context` is the `setup_context`."""

    run_backward: Callable[..., Any]
    save_context: Callable[..., Any]


def _make_gradient_hooks(
    schemas: Mapping[str, _OpSchema], name: str, gradient_name: str
) -> _GradientHooks:
    """Return the hooks of the op `name`, whose gradient the op `gradient_name` computes. Arguments
    are matched by name. Raises `LoadError` if they do not match, or one of the ops mutates."""
    for op_name in (name, gradient_name):
        if op_name not in schemas:
            raise LoadError(
                f"backward: there is no op {op_name!r}: {did_you_mean(op_name, schemas)}"
            )
        if mutated := schemas[op_name].mutated:
            raise LoadError(
                f'backward: {op_name} mutates "{mutated[0].name}": an op with a gradient,'
                " and its gradient, only return"
            )
    forward, gradient = schemas[name], schemas[gradient_name]
    value_names = [a.name for a in (*forward.inputs, *forward.outputs)]
    gradient_inputs = [a.name for a in gradient.inputs]
    gradient_outputs = [a.name for a in gradient.outputs]
    output_gradients = [_GRADIENT + a.name for a in forward.outputs]
    known_names = [*value_names, *output_gradients]
    if unknown := next((n for n in gradient_inputs if n not in known_names), None):
        raise LoadError(
            f'backward: {gradient_name} has an argument "{unknown}", and {name} has not:'
            f" {did_you_mean(unknown, known_names)}"
        )
    for argument in forward.inputs:
        floats = _is_tensor(argument) and DTYPES[argument.dtype].kind == "float"
        if floats and _GRADIENT + argument.name not in gradient_outputs:
            raise LoadError(
                f'backward: {gradient_name} has no output "{_GRADIENT}{argument.name}":'
                f" each tensor of floats of {name} has a gradient"
            )
    # The tensors among the forward call's values that the gradient takes; the rest are numbers.
    saved_names = [a.name for a in gradient.inputs if _is_tensor(a) and a.name in value_names]

    def save_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the values of a forward call that the gradient takes in `ctx`."""
        value_by_name = dict(zip(value_names, (*inputs, *_to_tuple(output)), strict=True))
        # Other tensors are not saved, because a saved tensor lives until the backward pass.
        ctx.save_for_backward(*map(value_by_name.get, saved_names))
        ctx.numbers = {
            name: value_by_name[name]
            for name in gradient_inputs
            if name in value_by_name and name not in saved_names
        }

    def run_backward(call: Callable[..., Any], ctx: Any, *grads: Any) -> Any:
        """Call the op of the gradient. Return a gradient or None for each input of the forward
        call."""
        # Gradients come in any strides, such as 0 for the gradient of a sum.
        contiguous_grads = (grad.contiguous() for grad in grads)
        value_by_name = {**ctx.numbers, **dict(zip(saved_names, ctx.saved_tensors, strict=True))}
        # Last: an output's gradient takes precedence over an input of the same name.
        value_by_name |= dict(zip(output_gradients, contiguous_grads, strict=True))
        outputs = _to_tuple(call(*map(value_by_name.__getitem__, gradient_inputs)))
        results = dict(zip(gradient_outputs, outputs, strict=True))
        # torch takes None for an input without a gradient.
        return tuple(results.get(_GRADIENT + a.name) for a in forward.inputs)

    return _GradientHooks(run_backward, save_context)


def _to_tuple(value: Any) -> tuple[Any, ...]:
    """Return a tuple as it is, and any other value as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)
