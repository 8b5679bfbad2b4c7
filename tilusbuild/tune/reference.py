"""The reference of a script: a Python function of the project's own, loaded from its file.

`ref = "ref.py:rms_norm"` names a file inside the project and a function in it. The function takes
the kernel's arguments as they are before the call, by name where its parameters have the arguments'
names and else in order, and returns what the outputs hold afterwards: one array, or a tuple in the
order of the declaration. The file runs with the project's own rights: it is the project's code.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilusbuild.errors import Diagnostic, InputError, Place, did_you_mean, input_error
from tilusbuild.signature import Signature


def load(root: str, text: str, place: Place | None = None) -> Callable[..., Any]:
    """Return the function that `file.py:name` means. Raises `InputError`."""
    file, _, name = text.partition(":")
    path = os.path.join(root, file)
    if not name or not os.path.isfile(path):
        hint = None if name else 'write it as "ref.py:function"'
        raise input_error(f'reference "{text}": no file {file}', place=place, hint=hint)
    spec = importlib.util.spec_from_file_location(f"_tilusbuild_reference_{abs(hash(path))}", path)
    if spec is None or spec.loader is None:
        raise input_error(f'reference "{text}": {file} is no Python file', place=place)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(
            _raised(error, path, f"the reference {file} could not be loaded")
        ) from None
    finally:
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


def expected(
    function: Callable[..., Any], signature: Signature, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what each output should hold. `inputs` are arrays and scalars by argument name.

    Raises `InputError` when the function fails or returns another number of arrays.
    """
    outputs = [a.name for a in signature.callable_arguments if a.out]
    parameters = _parameters(function)
    by_name = parameters is not None and set(parameters) <= set(inputs)
    try:
        if by_name and parameters is not None:
            result = function(**{name: inputs[name] for name in parameters})
        else:
            result = function(*inputs.values())
    except Exception as error:
        path = inspect.getsourcefile(function) or "reference"
        raise InputError(
            _raised(error, path, f"the reference {function.__name__} failed")
        ) from None
    results: Sequence[Any] = result if isinstance(result, tuple) else (result,)
    if len(results) != len(outputs):
        raise input_error(
            f"the reference {function.__name__} returned {len(results)} arrays,"
            f" the kernel has {len(outputs)} outputs: {', '.join(outputs)}"
        )
    return dict(zip(outputs, results, strict=True))


def _parameters(function: Callable[..., Any]) -> list[str] | None:
    """Return the names that the function takes, or None when it takes any number."""
    parameters = inspect.signature(function).parameters.values()
    fixed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if any(parameter.kind not in fixed for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _raised(error: Exception, path: str, message: str) -> Diagnostic:
    """Return an exception of the project's own code, shown at its last line inside that file."""
    what = f"{message}: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename == path:
        text = (error.text or "").rstrip("\n")
        return Diagnostic(what, Place(path, error.lineno, error.offset, text))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if not frames:
        return Diagnostic(what)
    return Diagnostic(what, Place(path, frames[-1].lineno, None, frames[-1].line))
