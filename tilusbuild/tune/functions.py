"""The Python functions of a project that `run`, `tune` and `package` call: the reference and the
maker of inputs.

`ref = "ref.py:rms_norm"` names a file inside the project and a function in it. The file runs with
the project's own rights: it is the project's code. An error in it is shown at its line there.
"""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilusbuild.errors import Diagnostic, InputError, Location, did_you_mean, input_error
from tilusbuild.manifest.document import shorten_path
from tilusbuild.signature.model import Signature
from tilusbuild.tune import inputs


def load_function(root: str, text: str, location: Location | None = None) -> Callable[..., Any]:
    """Execute the file of `file.py:name`, relative to `root`, and return its function. Raises
    `InputError`; `location` is where the manifest names the function."""
    file, _, name = text.partition(":")
    path = os.path.join(root, file)
    if not name or not os.path.isfile(path):
        hint = None if name else 'write it as "ref.py:function"'
        raise input_error(f'"{text}": no file {file}', location=location, hint=hint)
    spec = importlib.util.spec_from_file_location(f"_tilusbuild_reference_{abs(hash(path))}", path)
    if spec is None or spec.loader is None:
        raise input_error(f'"{text}": {file} is not a Python file', location=location)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    try:
        with _explain_failure(path, f"{file} could not be loaded"):
            spec.loader.exec_module(module)
    finally:
        # Only this file may import the modules beside it, so the path is removed again.
        sys.path.remove(os.path.dirname(path))
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise input_error(
            f'"{text}": {file} has no function {name}',
            location=location,
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
    with _explain_failure(function, f"the reference {function.__name__} failed"):
        result = function(*positional, **named)
    results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    listed = ", ".join(outputs) or "none"
    if len(results) != len(outputs):
        raise input_error(
            f"the reference {function.__name__} returned {len(results)} arrays,"
            f" the kernel has {len(outputs)} outputs: {listed}",
            location=locate_function(function),
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
                location=locate_function(function),
                hint=f"return what {name} holds after the call; arguments are copies, so a function"
                f" that fills {name} ends with `return {listed}`",
            )
    return dict(zip(outputs, results, strict=True))


def call_inputs(
    function: Callable[..., Any],
    location: Location | None,
    sizes: Mapping[str, Any],
    constants: Mapping[str, Any],
    random: np.random.Generator,
) -> Mapping[Any, Any]:
    """Return what the function of `inputs` returns. Raises `InputError` when it fails, or returns
    anything but a mapping; `location` is that of the key `inputs`."""
    name = getattr(function, "__name__", "")
    with _explain_failure(function, f"the function {name} of `inputs` failed"):
        result = function(dict(sizes), dict(constants), random)
    if not isinstance(result, Mapping):
        raise input_error(
            f"the function {name} of `inputs` returned a {type(result).__name__}",
            location=locate_function(function) or location,
            hint="return a mapping from names of arguments to arrays and numbers",
        )
    return result


def call_compare(
    function: Callable[..., Any], location: Location | None, values: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return what is wrong with outputs by the function of `compare`; None for right ones.

    `values` are the outputs, the expected outputs and the inputs. A function may take the first one
    or two alone. An `AssertionError` of it, as of NumPy's `assert_allclose`, is about the outputs.
    Raises `InputError` when the function fails, or returns anything but a truth value or a text;
    `location` is that of the key `compare`.
    """
    name = getattr(function, "__name__", "")
    parameters = _list_parameters(function)
    with _explain_failure(function, f"the function {name} of `compare` failed"):
        try:
            result = function(*values[: len(parameters or values)])
        except AssertionError as error:
            return " ".join(str(error).split()) or f"an assertion of {name} does not hold"
    if isinstance(result, str):
        return result or f"{name} returned an empty text"
    if isinstance(result, bool | np.bool_) or (
        isinstance(result, np.ndarray) and result.dtype == bool and not result.shape
    ):
        return None if result else f"{name} returned false"
    raise input_error(
        f"the function {name} of `compare` returned"
        f" {'nothing' if result is None else f'a {type(result).__name__}'}",
        location=locate_function(function) or location,
        hint="return True or False, as of `(a == b).all()`, or a text that says what is wrong",
    )


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
            location=locate_function(function),
            hint=(f"{unknown[0]}: {near}\n" if near else "")
            + "name its parameters like arguments, as many as it needs, or take all in their order",
        ) from None
    return tuple(inputs_by_name.values()), {}


def locate_function(function: Callable[..., Any] | None) -> Location | None:
    """Return the place of a function's definition; None for a function without code."""
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None:
        return None
    line = code.co_firstlineno
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    return Location(shorten_path(code.co_filename), line, None, text or None)


def _list_parameters(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of a function's parameters; None if it takes any number."""
    parameters = inspect.signature(function).parameters.values()
    named_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(parameter.kind not in named_kinds for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


@contextmanager
def _explain_failure(source: str | Callable[..., Any], message: str) -> Iterator[None]:
    """Raise `InputError` for an exception in the block, at its last line in the project's file
    `source`, or in that of a function."""
    try:
        yield
    except Exception as error:
        path = source if isinstance(source, str) else inspect.getsourcefile(source) or ""
        location = None
        # A syntax error has no frame in the file that it is in.
        if isinstance(error, SyntaxError) and error.filename == path:
            text = (error.text or "").rstrip("\n")
            location = Location(shorten_path(path), error.lineno, error.offset, text)
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == path:
                location = Location(shorten_path(path), frame.lineno, None, frame.line)
        message = f"{message}: {type(error).__name__}: {error}"
        raise InputError(Diagnostic(message, location)) from None
