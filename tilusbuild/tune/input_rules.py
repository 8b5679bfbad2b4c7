"""What a manifest says of the content of arguments: `init` of an argument, and `inputs`, a Python
function of the project.

The function's values come before those of `init`; arguments that neither names are noise
(`inputs.py`). Values are checked where they are made: a wrong name, shape, type or a number that
the element type cannot hold is an error at the manifest's line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from tilusbuild.errors import InputError, Location, did_you_mean, input_error
from tilusbuild.expr import ExprError, Value
from tilusbuild.manifest.arguments import InitSection
from tilusbuild.manifest.script_sections import parse_cached
from tilusbuild.plan.instance import InstanceSpec
from tilusbuild.runtime.dtypes import FLOATS, POINTER, get_integer_limits
from tilusbuild.runtime.structs import is_struct
from tilusbuild.signature.model import Argument, Signature
from tilusbuild.tune import functions, inputs


class InitRule(Struct, frozen=True):
    """The `init` of one argument, and the place of the key."""

    init: InitSection
    location: Location


class InputRules(Struct, frozen=True):
    """What a script's manifest says of its inputs."""

    inits: Mapping[str, InitRule] = {}
    """By the argument's name."""
    resets: frozenset[str] = frozenset()
    """The tensors that are restored before every launch."""
    constants: Mapping[str, Value] = {}
    function: Callable[..., Any] | None = None
    """The function of `inputs`."""
    location: Location | None = None
    """The place of the key `inputs`."""

    def decides(self, argument: Argument) -> bool:
        """Return whether the rules may give an argument its content."""
        return self.function is not None or argument.name in self.inits


def find_input_rules(spec: InstanceSpec) -> InputRules:
    """Return the rules of an instance's inputs. The file of `inputs` is executed. Raises
    `InputError`."""
    manifest, name = spec.manifest, spec.script
    script = manifest.scripts[name]
    inits = {
        argument: InitRule(
            arg.init, manifest.locate_value("script", name, "args", argument, "init")
        )
        for argument, arg in script.args.items()
        if arg.init is not None
    }
    function = location = None
    if script.tune is not None and script.tune.inputs is not None:
        location = manifest.locate_value("script", name, "tune", "inputs")
        function = functions.load_function(manifest.root, script.tune.inputs, location)
    resets = frozenset(argument for argument, arg in script.args.items() if arg.reset)
    return InputRules(inits, resets, spec.params, function, location)


def make_declared_inputs(
    rules: InputRules, signature: Signature, sizes: Mapping[str, Value], seed: int
) -> dict[str, inputs.Input]:
    """Return the content of the arguments that the rules decide, by name. Raises `InputError`."""
    dims = inputs.check_sizes(signature, sizes)
    arguments = {a.name: a for a in signature.callable_arguments if a.bytes is None}
    contents: dict[str, inputs.Input] = {}
    for name, rule in rules.inits.items():
        # A number that the sizes give stays: it is said for this call alone.
        if name in arguments and name not in sizes:
            shape = inputs.evaluate_shape(arguments[name], dims)
            # Each argument has its own stream, so that no other one's `init` changes its numbers.
            random = np.random.default_rng([seed, *name.encode()])
            values = {**rules.constants, **sizes, **dims}
            contents[name] = _fill_argument(arguments[name], shape, rule, values, random)
    if rules.function is not None:
        random = np.random.default_rng(seed)
        returned = functions.call_inputs(
            rules.function, rules.location, sizes, rules.constants, random
        )
        for name, value in returned.items():
            argument = arguments.get(str(name))
            if argument is None:
                raise _make_return_error(rules, f"{name!r}, which no call passes", arguments, name)
            contents[argument.name] = _check_returned(rules, argument, value, dims)
    return contents


def _fill_argument(
    argument: Argument,
    shape: tuple[int, ...],
    rule: InitRule,
    values: Mapping[str, Value],
    random: np.random.Generator,
) -> inputs.Input:
    """Return the content that `init` describes: an array, or a number for a scalar. `values` are
    those of the names in bounds. Raises `InputError`."""
    if argument.dtype == POINTER or is_struct(argument.dtype):
        raise input_error(f"a {argument.format_type()} has no `init`", location=rule.location)
    if (rule.init.uniform or rule.init.normal) and argument.dtype not in FLOATS:
        hint = 'as in init = { integers = [0, "m"] }'
        message = f"{argument.name} is {argument.format_type()}: its numbers are whole"
        raise input_error(message, location=rule.location, hint=hint)
    numbers = _draw_numbers(rule, math.prod(shape), values, random)
    problem = _find_unheld(numbers, argument.dtype)
    if problem is not None:
        raise input_error(f"{argument.name}: {problem}", location=rule.location)
    elements = inputs.to_elements(numbers, argument.dtype)
    if argument.is_tensor:
        return elements.reshape(shape)
    scalar: int | float | bool = inputs.widen_floats(elements)[0].item()
    return scalar


def _draw_numbers(
    rule: InitRule, count: int, values: Mapping[str, Value], random: np.random.Generator
) -> inputs.Array:
    """Return this many numbers as `init` describes them, integers as int64. Raises `InputError`."""
    match rule.init.kind:
        case "zeros":
            return np.zeros(count, np.int64)
        case "ones":
            return np.ones(count, np.int64)
        case "arange":
            return np.arange(count)
        case "permutation":
            return random.permutation(count)
    first, second = _evaluate_bounds(rule, values)
    if rule.init.uniform is not None:
        return random.uniform(first, second, count)
    if rule.init.normal is not None:
        return random.normal(first, abs(second), count)
    if not isinstance(first, int) or not isinstance(second, int) or first >= second:
        message = f"integers = [{first}, {second}] has no whole number"
        raise input_error(message, location=rule.location, hint="the second is not one of them")
    return random.integers(first, second, count)


def _evaluate_bounds(
    rule: InitRule, values: Mapping[str, Value]
) -> tuple[int | float, int | float]:
    """Return the two numbers of a distribution. Raises `InputError`."""
    init = rule.init
    sources = init.integers or init.uniform or init.normal or ()
    numbers = []
    for source in sources:
        try:
            number = parse_cached(source).evaluate(values)
        except ExprError as error:
            raise input_error(f"init: {source}: {error.message}", location=rule.location) from None
        if isinstance(number, bool | str):
            raise input_error(f"init: {source} is {number!r}, not a number", location=rule.location)
        numbers.append(number)
    first, second = numbers
    return first, second


def _find_unheld(numbers: inputs.Array, dtype: str) -> str | None:
    """Return a message about a number that an integer type cannot hold; None if there is none."""
    limits = (0, 1) if dtype == "bool" else get_integer_limits(dtype)
    if limits is None or not numbers.size:
        return None
    for number in (numbers.min(), numbers.max()):
        if not limits[0] <= number <= limits[1]:
            return f"{number} does not fit {dtype}"
    return None


def _check_returned(
    rules: InputRules, argument: Argument, value: Any, dims: Mapping[str, int]
) -> inputs.Input:
    """Return a value of the project's function as the argument's content. Raises `InputError`."""
    if not argument.is_tensor:
        if argument.dtype == POINTER or is_struct(argument.dtype):
            what = f"{argument.name}, a {argument.format_type()}"
            raise _make_return_error(rules, f"{what}: give it in the sizes")
        try:
            number = np.asarray(value).item()
            return inputs.check_number(argument.name, argument.dtype, number)
        except (InputError, TypeError, ValueError) as error:
            raise _make_return_error(rules, f"no number for {argument.name}: {error}") from None
    shape = inputs.evaluate_shape(argument, dims)
    try:
        # A tensor of torch on the CPU is read in place; one on a GPU has no array, and says so.
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _make_return_error(rules, f"no array for {argument.name}: {error}") from None
    if array.shape != shape:
        raise _make_return_error(
            rules, f"shape {array.shape} for {argument.name}, which has {shape}"
        )
    is_float = argument.dtype in FLOATS
    # References compute in f32: floats of any width are rounded to the element's type.
    fits = np.issubdtype(inputs.widen_floats(array).dtype, np.floating if is_float else np.integer)
    if not fits and array.dtype != inputs.get_numpy_type(argument.dtype):
        expected = f"which is {argument.format_type()}"
        raise _make_return_error(
            rules, f"elements of {array.dtype} for {argument.name}, {expected}"
        )
    if problem := None if is_float else _find_unheld(array, argument.dtype):
        raise _make_return_error(rules, f"{argument.name}: {problem}")
    if array.dtype == inputs.get_numpy_type(argument.dtype):
        return np.ascontiguousarray(array)
    return inputs.to_elements(inputs.widen_floats(array), argument.dtype)


def _make_return_error(
    rules: InputRules, problem: str, known: Mapping[str, Argument] | None = None, name: object = ""
) -> InputError:
    """Return the error of a wrong value that the project's function returned, at the function's
    line."""
    function = rules.function
    hint = did_you_mean(str(name), known) if known is not None else None
    return input_error(
        f"the function {getattr(function, '__name__', '')} of `inputs` returned {problem}",
        location=functions.locate_function(function) or rules.location,
        hint=hint,
    )
