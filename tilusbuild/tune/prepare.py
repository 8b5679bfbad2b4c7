"""Work for the bench: an instance's programs, and cases with their inputs and expected outputs.

Expected outputs come from the script's reference, a Python function of the project: `ref =
"ref.py:rms_norm"` names a file inside the project and a function in it. The function takes the
kernel's arguments as they are before the call, by name where its parameters have the arguments'
names and else in order. It returns the outputs after the call: one array, or a tuple in the order
of the declaration. The file runs with the project's own rights: it is the project's code.

A package carries such cases to test itself: the machine that checks it needs no reference, no NumPy
and no compiler.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.builder.project import Project
from tilusbuild.cache.layout import TESTS
from tilusbuild.errors import Diagnostic, InputError, Place, did_you_mean, input_error
from tilusbuild.expr import Value
from tilusbuild.manifest.document import shorten_path
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan.instance import PlannedInstance
from tilusbuild.runtime.dtypes import FLOATS
from tilusbuild.runtime.regular import try_read_bytes
from tilusbuild.signature import Argument, Signature
from tilusbuild.tune import inputs
from tilusbuild.tune.bench.work import Case, CaseArgument, write_case


class OutputCheck(Struct, frozen=True):
    """How outputs are checked."""

    function: Callable[..., Any] | None
    """The reference; None: nothing is compared."""
    rtol: float | None
    atol: float | None
    judge: str = ""
    """The digest of the reference's files and of the tolerances; "" without a reference."""


def find_output_check(manifest: Manifest, script: str, *, unchecked: bool) -> OutputCheck:
    """Return how the manifest checks the outputs of a script; with `unchecked` nothing is compared.
    The reference's file is executed. Raises `InputError` when the manifest names no reference, or
    the reference cannot be loaded."""
    tune = manifest.scripts[script].tune
    if unchecked:
        return OutputCheck(None, None, None)
    if tune is None or tune.ref is None:
        raise input_error(
            f"[script.{script}.tune] has no `ref`, so results cannot be checked",
            place=manifest.locate_key("script", script),
            hint='give `ref = "ref.py:function"`, or --unchecked to choose among whatever runs',
        )
    place = manifest.locate_value("script", script, "tune", "ref")
    manifest_keys = tune.given
    function = load_reference(manifest.root, tune.ref, place)
    # Without the keys, the tolerances follow from the element type, not from the model's defaults.
    rtol = tune.rtol if "rtol" in manifest_keys else None
    atol = tune.atol if "atol" in manifest_keys else None
    return OutputCheck(function, rtol, atol, _digest_reference(manifest.root, tune.ref, rtol, atol))


def _digest_reference(root: str, ref: str, rtol: float | None, atol: float | None) -> str:
    """Return the digest of the reference, the tolerances, and the loaded modules in the directory
    of the reference."""
    # The reference may have imported any of them. Modules elsewhere do not belong to the project.
    reference_path = os.path.join(root, ref.partition(":")[0])
    directory = os.path.join(os.path.dirname(reference_path), "")
    paths = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    module_paths = {
        path for path in paths if path.startswith(directory) and "site-packages" not in path
    }
    hasher = hashlib.sha256(f"{ref} {rtol!r} {atol!r}".encode())
    for path in sorted({reference_path, *module_paths}):
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
    *,
    seed: int,
    cold: bool,
) -> Case:
    """Write a case with its expected outputs into a new directory, and return the case. The
    reference is called once. Raises `InputError` and `OSError`."""
    # Made before the directory is: a mistake in the sizes leaves no directory behind.
    inputs_by_name = inputs.generate_inputs(signature, sizes, seed=seed)
    expected_outputs: Mapping[str, Any] = {}
    if check.function is not None:
        # The reference gets copies, because it may overwrite its arguments.
        reference_inputs = {
            name: inputs.widen_floats(copy.deepcopy(value))
            for name, value in inputs_by_name.items()
        }
        expected_outputs = call_reference(check.function, signature, reference_inputs)
    os.makedirs(directory)
    arguments = []
    dimensions = inputs.check_sizes(signature, sizes)
    # The plain C `launch` takes dimensions and strides, too, which a call from Python leaves out.
    values = {**inputs.derive_sizes(signature, dimensions), **inputs_by_name}
    for declared in signature.value_arguments:
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
        )
        if declared.name in expected_outputs:
            rtol, atol = find_tolerances(declared.dtype, check.rtol, check.atol)
            expected_output = to_expected_output(
                declared, array.shape, expected_outputs[declared.name], check
            )
            with open(os.path.join(directory, f"{declared.name}.want"), "wb") as file:
                file.write(np.ascontiguousarray(expected_output).tobytes())
            argument = replace(
                argument, want=find_expected_type(declared.dtype), rtol=rtol, atol=atol
            )
        arguments.append(argument)
    return write_case(directory, dict(sizes), tuple(arguments), cold=cold, judge=check.judge)


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
            place=_place_of_function(check.function),
        )
    return array.reshape(shape).astype(inputs.get_numpy_type(find_expected_type(output.dtype)))


def load_reference(root: str, text: str, place: Place | None = None) -> Callable[..., Any]:
    """Execute the file of `file.py:name`, relative to `root`, and return its function. Raises
    `InputError`; `place` is where the manifest names the reference."""
    file, _, name = text.partition(":")
    path = os.path.join(root, file)
    if not name or not os.path.isfile(path):
        hint = None if name else 'write it as "ref.py:function"'
        raise input_error(f'reference "{text}": no file {file}', place=place, hint=hint)
    spec = importlib.util.spec_from_file_location(f"_tilusbuild_reference_{abs(hash(path))}", path)
    if spec is None or spec.loader is None:
        raise input_error(f'reference "{text}": {file} is not a Python file', place=place)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(
            _reference_error(error, path, f"the reference {file} could not be loaded")
        ) from None
    finally:
        # Only the reference may import the modules beside it, so the path is removed again.
        sys.path.remove(os.path.dirname(path))
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise input_error(
            f'reference "{text}": {file} has no function {name}',
            place=place,
            hint=did_you_mean(name, known),
        )
    return function  # type: ignore[no-any-return]


def call_reference(
    function: Callable[..., Any], signature: Signature, inputs_by_name: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the expected content of each output. `inputs_by_name` are arrays and scalars.

    Raises `InputError` when the function fails, returns another number of arrays, or something
    that is not an array of numbers.
    """
    outputs = [a.name for a in signature.callable_arguments if a.out]
    positional, named = _bind_reference(function, inputs_by_name)
    try:
        result = function(*positional, **named)
    except Exception as error:
        path = inspect.getsourcefile(function) or "reference"
        raise InputError(
            _reference_error(error, path, f"the reference {function.__name__} failed")
        ) from None
    results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    listed = ", ".join(outputs) or "none"
    if len(results) != len(outputs):
        raise input_error(
            f"the reference {function.__name__} returned {len(results)} arrays,"
            f" the kernel has {len(outputs)} outputs: {listed}",
            place=_place_of_function(function),
            hint="return one array, or a tuple of them in the order of the declaration",
        )
    for name, result_array in zip(outputs, results, strict=True):
        if (
            result_array is None
            or np.asarray(inputs.widen_floats(result_array)).dtype.kind not in "biuf"
        ):
            kind = "nothing" if result_array is None else f"a {type(result_array).__name__}"
            raise input_error(
                f"the reference {function.__name__} returned {kind} for {name}",
                place=_place_of_function(function),
                hint=f"return what {name} holds after the call; arguments are copies, so a function"
                f" that fills {name} ends with `return {listed}`",
            )
    return dict(zip(outputs, results, strict=True))


def _bind_reference(
    function: Callable[..., Any], inputs_by_name: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and the named arguments for a reference: named when its parameters have
    names of arguments, else all in order. Raises `InputError` when it cannot take them."""
    parameters = _list_parameters(function)
    if parameters is not None and set(parameters) <= set(inputs_by_name):
        return (), {name: inputs_by_name[name] for name in parameters}
    try:
        inspect.signature(function).bind(*inputs_by_name.values())
    except TypeError:
        accepted_names = ", ".join(inspect.signature(function).parameters)
        unknown = [name for name in parameters or () if name not in inputs_by_name]
        near = did_you_mean(unknown[0], inputs_by_name) if unknown else None
        raise input_error(
            f"the reference {function.__name__} takes ({accepted_names}), the kernel's arguments"
            f" are {', '.join(inputs_by_name)}",
            place=_place_of_function(function),
            hint=(f"{unknown[0]}: {near}\n" if near else "")
            + "name its parameters like arguments, as many as it needs, or take all in their order",
        ) from None
    return tuple(inputs_by_name.values()), {}


def _place_of_function(function: Callable[..., Any] | None) -> Place | None:
    """Return the place of a function's definition; None for a function without code."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None:
        return None
    line = code.co_firstlineno
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    return Place(shorten_path(code.co_filename), line, None, text or None)


def _list_parameters(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of a function's parameters; None if it takes any number."""
    parameters = inspect.signature(function).parameters.values()
    named_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(parameter.kind not in named_kinds for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _reference_error(error: Exception, path: str, message: str) -> Diagnostic:
    """Return the diagnostic of an exception in the project's code, at its last line there."""
    message = f"{message}: {type(error).__name__}: {error}"
    # A syntax error has no frame in the file that it is in.
    if isinstance(error, SyntaxError) and error.filename == path:
        text = (error.text or "").rstrip("\n")
        return Diagnostic(message, Place(shorten_path(path), error.lineno, error.offset, text))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if not frames:
        return Diagnostic(message)
    return Diagnostic(message, Place(shorten_path(path), frames[-1].lineno, None, frames[-1].line))


# The cases that a package carries to test itself.

# The package stores them: the inputs are made from seeds.
MAX_CASE = 2 << 20
"""Bytes of the outputs of a case."""


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
    for instance in instances:
        script = project.manifest.scripts[instance.script]
        if script.form not in ("kernel", "entry"):
            continue  # a library has no call
        # Without a `ref` outputs are not compared: a case checks only that the call ends, and that
        # it writes nothing beside its tensors.
        unchecked = script.tune is None or script.tune.ref is None
        for number, size in enumerate(_select_sizes(project.manifest, instance, report, large)):
            name = f"{TESTS}/{instance.hash}/{number}"
            path = os.path.join(directory, name)
            check = find_output_check(project.manifest, instance.script, unchecked=unchecked)
            # With the default seed of `tune`, the case has the same digest here and there.
            prepare_case(path, instance.spec.signature, size, check, seed=0, cold=True)
            for file_name in sorted(os.listdir(path)):
                files[f"{name}/{file_name}"] = os.path.join(path, file_name)
    return files


def _select_sizes(
    manifest: Manifest, instance: PlannedInstance, report: Callable[[str], None], large: bool
) -> Iterator[Mapping[str, Value]]:
    """Yield the sizes that become cases: with `large` all, else those with at most `MAX_CASE` bytes
    of outputs. Call `report` with a message for each of the others."""
    signature = instance.spec.signature
    try:
        sizes = find_sizes(manifest, instance.script, (), signature)
    except InputError as error:
        report(f"{instance.label}: {error}")
        return
    for size in sizes:
        output_bytes = inputs.count_output_bytes(signature, size)
        if large or output_bytes <= MAX_CASE:
            yield size
        else:
            size_text = ", ".join(f"{name}={value}" for name, value in size.items())
            report(f"{instance.label}: {size_text}: {output_bytes >> 20} MiB of outputs")
