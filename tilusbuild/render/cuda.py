"""The functions, filters and tests of templates: types, integer arithmetic, C++ spelling.

The arithmetic is that of the manifest's expressions, so `cdiv` in a template and in a rule agree.
Everything here is a pure function of its arguments: a rendering depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context

from tilusbuild.errors import did_you_mean
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.runtime.semantics import CALLS, NoValueError, check_finite, check_result


class RaisedError(TemplateRuntimeError):
    """A template called `raise(message)`."""


def raise_error(message: object) -> str:
    """End the rendering with this message at the place of the call: `{{ raise("…") }}`."""
    raise RaisedError(str(message))


def check_dtype(dtype: object) -> str:
    """Return `dtype` if it is the name of an element type. Raises `TemplateRuntimeError`."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    hint = did_you_mean(str(dtype), DTYPES) or f"known: {', '.join(DTYPES)}"
    raise TemplateRuntimeError(f'"{dtype}" is not an element type; {hint}')


@pass_context
def spell_ctype(context: Context, dtype: object, portable: bool = False) -> str:
    """Return the C++ type of an element type: `{{ "f16" | ctype }}` is `__half`, on the cpu
    `tb::f16`.

    With `portable=true` it is `tb::f16` on either: the type of `portable.cuh.j2`, without a header.
    """
    name = check_dtype(dtype)
    # A type that C has is the same in CUDA and in C++.
    if DTYPES[name].c != "void":
        return DTYPES[name].cuda
    target = context.get("target")
    kind = target.get("kind") if isinstance(target, Mapping) else getattr(target, "kind", None)
    if not portable and kind != "cpu":
        return DTYPES[name].cuda
    if name in _CUDA_ONLY:
        raise TemplateRuntimeError(f"{name} has a type in CUDA only: use unsigned char")
    # tilusbuild/portable.cuh.j2 defines tb::f16 and its like, for either kind of target.
    return f"tb::{name}"


_CUDA_ONLY = ("f8e8m0", "f4e2m1x2")


def count_element_bits(dtype: object) -> int:
    """Return the size of an element type: `{{ "bf16" | bits }}` is 16."""
    return DTYPES[check_dtype(dtype)].bytes * 8


def count_element_bytes(dtype: object) -> int:
    """Return the size of an element type in bytes: `{{ "bf16" | bytes }}` is 2."""
    return DTYPES[check_dtype(dtype)].bytes


def format_hexadecimal(value: object, digits: int = 0) -> str:
    """Return an integer in hexadecimal: `{{ 255 | hex }}` is `0xff`; `digits` pads with zeros."""
    if type(value) is not int:
        raise TemplateRuntimeError(f"hex needs an integer, not {value!r:.60}")
    sign = "-" if value < 0 else ""
    return f"{sign}0x{abs(value):0{digits}x}"


def is_pow2(value: object) -> bool:
    """Return whether a value is a power of two: the test `is pow2`."""
    # A power of two has one bit; with 1 taken away this bit is gone.
    return type(value) is int and value > 0 and value & (value - 1) == 0


def is_divisible(value: int, divisor: int) -> bool:
    """Return whether a value is divisible: the test `is divisible(16)`."""
    return bool(ARITHMETIC["divides"](divisor, value))


def spell_value(value: object) -> object:
    """Return what `{{ value }}` writes. Raises `TemplateRuntimeError` for what C++ cannot spell."""
    # Before numbers: for Python a bool is one.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateRuntimeError(f"C++ has no literal for the value {value}: use INFINITY or NAN")
    if value is None:
        raise TemplateRuntimeError("the value is none")
    if isinstance(value, (str, int, float, Undefined)):
        return value
    type_name = type(value).__name__.lower()
    noun = "a macro, which is called with ()" if type_name == "macro" else f"a {type_name}"
    # `int a[1][2] = {{1, n}};` is C++, but Jinja2 reads `{{1, n}}` as an expression, a tuple.
    hint = ': in C++ text write "{ {" for two braces' if type_name == "tuple" else ""
    raise TemplateRuntimeError(f"only text and numbers can be written, and this is {noun}{hint}")


def _make_function(name: str) -> Callable[..., Any]:
    """Return the function of templates for an operation of expressions, such as `cdiv`. The
    returned function raises `TemplateRuntimeError` if an argument is undefined or not a number."""

    def apply_function(*values: Any) -> Any:
        """Return the operation's value; an undefined variable raises its own error."""
        for value in values:
            if isinstance(value, Undefined):
                # This raises Jinja2's own error, which names the variable.
                value._fail_with_undefined_error()
            if not isinstance(value, (int, float)):
                raise TemplateRuntimeError(f"{name} needs numbers, not {value!r:.60}")
        try:
            # `+` makes a number of a bool: `{{ min(true, 2) }}` is 1, and not `true`.
            numbers = [+value for value in values]
            return check_finite(check_result(CALLS[name](*numbers)))  # type: ignore[arg-type]
        except NoValueError as error:
            raise TemplateRuntimeError(f"{name}: {error}") from None

    apply_function.__name__ = name
    return apply_function


ARITHMETIC = {name: _make_function(name) for name in CALLS}
GLOBALS: dict[str, Any] = {
    **ARITHMETIC,
    "raise": raise_error,
    "ctype": spell_ctype,
}
FILTERS: dict[str, Any] = {
    **{name: ARITHMETIC[name] for name in ("cdiv", "align", "pow2", "log2", "gcd")},
    "ctype": spell_ctype,
    "bits": count_element_bits,
    "bytes": count_element_bytes,
    "hex": format_hexadecimal,
}
TESTS: dict[str, Any] = {"pow2": is_pow2, "divisible": is_divisible}
