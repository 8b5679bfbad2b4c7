"""Work for the bench: an instance's programs, and cases with their inputs and expected outputs.

Expected outputs come from the script's reference, a Python function of the project. The function
takes the kernel's arguments as they are before the call, by name where its parameters have the
arguments' names and else in order. It returns the outputs after the call: one array, or a tuple in
the order of the declaration. Inputs are noise, or what the manifest says (`input_rules.py`).

A package carries such cases to test itself: the machine that checks it needs no reference, no NumPy
and no compiler.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.builder.project import Project
from tilusbuild.cache.layout import TESTS
from tilusbuild.errors import InputError, Location, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.model import Manifest
from tilusbuild.manifest.script_sections import split_function
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.runtime.dtypes import FLOATS
from tilusbuild.runtime.regular import try_read_bytes
from tilusbuild.signature.model import Argument, Signature
from tilusbuild.state.files import write_output
from tilusbuild.tune import functions, inputs
from tilusbuild.tune.bench.work import WORKSPACE, Case, CaseArgument, write_case
from tilusbuild.tune.input_rules import InputRules, find_input_rules, make_declared_inputs


class OutputCheck(Struct, frozen=True):
    """How outputs are checked."""

    function: Callable[..., Any] | None
    """The reference; None: there are no expected outputs."""
    rtol: float | None
    atol: float | None
    compare: Callable[..., Any] | None = None
    """The function that decides in place of the tolerances."""
    location: Location | None = None
    """The place of the key `compare`."""
    judge: str = ""
    """The digest of the functions' files and of the tolerances; "" if nothing is compared."""


def find_output_check(manifest: Manifest, script: str, *, unchecked: bool) -> OutputCheck:
    """Return how the manifest checks the outputs of a script; with `unchecked` nothing is compared.
    The files of the functions are executed. Raises `InputError` when the manifest names none, or
    one cannot be loaded."""
    tune = manifest.scripts[script].tune
    if unchecked:
        return OutputCheck(None, None, None)
    if tune is None or not tune.judge_names:
        raise input_error(
            f"[script.{script}.tune] has no `ref`, so results cannot be checked",
            location=manifest.locate_key("script", script),
            hint='give `ref = "ref.py:function"`, or --unchecked to choose among whatever runs',
        )
    manifest_keys = tune.given
    loaded: dict[str, Callable[..., Any] | None] = {"ref": None, "compare": None}
    for key in loaded:
        name = getattr(tune, key)
        location = manifest.locate_value("script", script, "tune", key) if name else None
        loaded[key] = functions.load_function(manifest.root, name, location) if name else None
    # Without the keys, the tolerances follow from the element type, not from the model's defaults.
    rtol = tune.rtol if "rtol" in manifest_keys else None
    atol = tune.atol if "atol" in manifest_keys else None
    digest = _digest_functions(manifest.root, tune.judge_names, rtol, atol)
    return OutputCheck(loaded["ref"], rtol, atol, loaded["compare"], location, digest)


def _digest_functions(
    root: str, names: Sequence[str], rtol: float | None, atol: float | None
) -> str:
    """Return the digest of the functions, the tolerances, and the loaded modules in the directories
    of the functions."""
    # The functions may have imported any of them. Modules elsewhere do not belong to the project.
    function_paths = [os.path.join(root, split_function(name)[0]) for name in names]
    directories = tuple(os.path.join(os.path.dirname(path), "") for path in function_paths)
    paths = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    module_paths = {
        path for path in paths if path.startswith(directories) and "site-packages" not in path
    }
    hasher = hashlib.sha256(f"{' '.join(names)} {rtol!r} {atol!r}".encode())
    for path in sorted({*function_paths, *module_paths}):
        content = try_read_bytes(path)
        if content is not None:
            hasher.update(hashlib.sha256(content).digest())
    return hasher.hexdigest()


def find_sizes(
    manifest: Manifest,
    script: str,
    requested_sizes: Sequence[Mapping[str, Value]],
    signature: Signature,
) -> list[dict[str, Value]]:
    """Return the requested sizes, else those of the manifest; `[{}]` for a script that needs none.
    Raises `InputError` for missing and wrong sizes."""
    tune = manifest.scripts[script].tune
    sizes = [dict(size) for size in requested_sizes or (tune.sizes if tune else ())]
    if not sizes and signature.dimensions:
        names = "--size " + ",".join(f"{a.name}=1024" for a in signature.dimensions)
        raise input_error(
            f"no sizes to call {script} with", hint=f"give [script.{script}.tune] sizes, or {names}"
        )
    for size in sizes:
        inputs.check_sizes(signature, size)
    return sizes or [{}]


def prepare_case(
    directory: str,
    signature: Signature,
    sizes: Mapping[str, Value],
    check: OutputCheck,
    rules: InputRules,
    *,
    seed: int,
    cold: bool,
) -> Case:
    """Write a case with its expected outputs, and the inputs that are not noise, into a new
    directory, and return the case. The reference is called once. With `compare`, the expected
    outputs are those of the case's `find_mismatch`, and no file. Raises `InputError` and
    `OSError`."""
    # Made before the directory is: a mistake in the sizes leaves no directory behind.
    declared_inputs = make_declared_inputs(rules, signature, sizes, seed)
    inputs_by_name = inputs.generate_inputs(signature, sizes, declared_inputs, seed=seed)
    expected_outputs: dict[str, Any] = {}
    if check.function is not None:
        # The reference gets copies, because it may overwrite its arguments.
        reference_inputs = {
            name: inputs.widen_floats(copy.deepcopy(value))
            for name, value in inputs_by_name.items()
        }
        expected_outputs = functions.call_reference(check.function, signature, reference_inputs)
    os.makedirs(directory)
    arguments = []
    dimensions = inputs.check_sizes(signature, sizes)
    # The plain C `launch` takes dimensions and strides, too, which a call from Python leaves out.
    values = {**inputs.derive_sizes(signature, dimensions), **inputs_by_name}
    for declared in signature.value_arguments:
        if declared.bytes is not None:
            arguments.append(CaseArgument(declared.name, WORKSPACE, None))
            continue
        value = values[declared.name]
        if not declared.is_tensor:
            call_value: Any = inputs.to_call_value(declared, value)
            # JSON has the bytes of a struct as hexadecimal digits.
            scalar = call_value.hex() if isinstance(call_value, bytes) else call_value
            arguments.append(CaseArgument(declared.name, declared.dtype, None, value=scalar))
            continue
        array = np.asarray(value)
        argument = CaseArgument(
            declared.name,
            declared.dtype,
            array.shape,
            inputs.make_tensor_seed(declared, seed),
            out=declared.out,
            reset=declared.name in rules.resets,
        )
        if declared.name in declared_inputs:
            argument = replace(argument, value=None)
            write_output(os.path.join(directory, f"{declared.name}.input"), array.tobytes())
        if declared.name in expected_outputs:
            rtol, atol = find_tolerances(declared.dtype, check.rtol, check.atol)
            expected_output = expected_outputs[declared.name] = to_expected_output(
                declared, array.shape, expected_outputs[declared.name], check
            )
        if declared.name in expected_outputs and check.compare is None:
            expected_bytes = expected_output.tobytes()
            write_output(os.path.join(directory, f"{declared.name}.want"), expected_bytes)
            argument = replace(
                argument, want=find_expected_type(declared.dtype), rtol=rtol, atol=atol
            )
        arguments.append(argument)
    find_mismatch = None
    if check.compare is not None:
        find_mismatch = partial(
            _find_mismatch,
            partial(functions.call_compare, check.compare, check.location),
            arguments,
            [_protect(expected_outputs), _protect(values)],
        )
    return write_case(
        directory,
        dict(sizes),
        tuple(arguments),
        cold=cold,
        judge=check.judge,
        find_mismatch=find_mismatch,
    )


def _protect(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as a function of the project gets them, arrays as ones that it cannot
    change: it is called for every program."""
    protected = {}
    for name, value in values.items():
        protected[name] = wide = inputs.widen_floats(value)
        if isinstance(wide, np.ndarray):
            protected[name] = wide.view()
            protected[name].flags.writeable = False
    return protected


def _find_mismatch(
    compare: Callable[[Sequence[Mapping[str, Any]]], str | None],
    arguments: Sequence[CaseArgument],
    values: Sequence[Mapping[str, Any]],
    contents: Mapping[str, bytes],
) -> str | None:
    """Return what is wrong with outputs, given as bytes, by `compare`; None for right ones.
    `values` are the expected outputs and the inputs. Raises `InputError`."""
    outputs = {
        argument.name: inputs.widen_floats(
            np.frombuffer(bytearray(contents[argument.name]), inputs.get_numpy_type(argument.dtype))
        ).reshape(argument.shape or ())
        for argument in arguments
        if argument.out
    }
    return compare([outputs, *values])


def find_tolerances(dtype: str, rtol: float | None, atol: float | None) -> tuple[float, float]:
    """Return (rtol, atol) for outputs of a type. Without `rtol` the type's default is used; without
    `atol` it is the relative tolerance."""
    # Numbers near 1 are 2^-10 apart in f16, and 2^-7 in bf16. Their tolerance is twice this step,
    # that of fp8 the step itself.
    float_defaults = {"f16": 2.0**-9, "bf16": 2.0**-6, "f8e4m3": 0.25, "f8e5m2": 0.25, "f32": 1e-5}
    default = float_defaults.get(dtype, 1e-12 if dtype == "f64" else 0.0)
    relative = default if rtol is None else rtol
    return relative, relative if atol is None else atol


def find_expected_type(dtype: str) -> str:
    """Return the element type of expected outputs: f32 for narrower floats, since references
    compute in f32, else `dtype`."""
    return "f32" if dtype in FLOATS and dtype != "f64" else dtype


def to_expected_output(
    output: Argument, shape: tuple[int, ...], result: Any, check: OutputCheck
) -> inputs.Array:
    """Return the result of a reference as an array of the output's shape and of the kept type.
    Raises `InputError`."""
    array = np.asarray(inputs.widen_floats(result))
    # One number for all elements would be right for a kernel that writes only one of them.
    if array.shape != shape and not array.size == np.prod(shape) == 1:
        name = getattr(check.function, "__name__", "")
        raise input_error(
            f"the reference {name} returned shape {array.shape} for {output.name},"
            f" which has {shape}",
            location=functions.locate_function(check.function),
        )
    return array.reshape(shape).astype(inputs.get_numpy_type(find_expected_type(output.dtype)))


# The cases that a package carries to test itself.

# The package stores them: inputs that are noise are made from seeds.
MAX_CASE = 2 << 20
"""Bytes of the outputs of a case, and of the inputs that its files hold."""


def write_package_tests(
    project: Project,
    directory: str,
    instances: Iterable[PlannedInstance],
    *,
    report: Callable[[str], None],
    large: bool,
) -> dict[str, str]:
    """Write the cases of all instances below a directory, from the manifest's sizes. Return the
    paths of their files by name in the package.

    Sizes without a case are reported, with the reason; with `large` those of more than `MAX_CASE`
    bytes have one. Raises `InputError` for a reference that fails, and `OSError`.
    """
    files: dict[str, str] = {}
    # The file of a reference is executed once.
    find_check = cache(partial(find_output_check, project.manifest))
    for instance in instances:
        script = project.manifest.scripts[instance.script]
        if script.form not in ("kernel", "entry"):
            continue  # a library has no call
        # Without a `ref` outputs are not compared: a case checks only that the call ends, and that
        # it writes nothing beside its tensors.
        unchecked = script.tune is None or script.tune.ref is None
        if script.tune is not None and script.tune.compare is not None:
            report(f"{instance.label}: outputs are not compared: {script.tune.compare} stays here")
            unchecked = True
        rules = find_input_rules(instance.spec)
        sizes = _select_sizes(project.manifest, instance, rules, report, large)
        for number, size in enumerate(sizes):
            name = f"{TESTS}/{instance.hash}/{number}"
            path = os.path.join(directory, name)
            check = find_check(instance.script, unchecked=unchecked)
            # With the default seed of `tune`, the case has the same digest here and there.
            prepare_case(path, instance.spec.signature, size, check, rules, seed=0, cold=True)
            for file_name in sorted(os.listdir(path)):
                files[f"{name}/{file_name}"] = os.path.join(path, file_name)
    return files


def _select_sizes(
    manifest: Manifest,
    instance: PlannedInstance,
    rules: InputRules,
    report: Callable[[str], None],
    large: bool,
) -> Iterator[Mapping[str, Value]]:
    """Yield the sizes that become cases: with `large` all, else those with at most `MAX_CASE`
    bytes. Call `report` with a message for each of the others."""
    signature = instance.spec.signature
    try:
        sizes = find_sizes(manifest, instance.script, (), signature)
    except InputError as error:
        report(f"{instance.label}: {error}")
        return
    for size in sizes:
        output_bytes = inputs.count_bytes(signature, size, lambda argument: argument.out)
        input_bytes = inputs.count_bytes(signature, size, rules.decides)
        if large or output_bytes + input_bytes <= MAX_CASE:
            yield size
        else:
            size_text = ", ".join(f"{name}={value}" for name, value in size.items())
            message = f"{instance.label}: {size_text}: {output_bytes >> 20} MiB of outputs"
            report(message + (f", {input_bytes >> 20} MiB of inputs" if input_bytes else ""))
