"""The functions, filters and tests of templates: types, integer arithmetic, C++ spelling.

The arithmetic is that of the manifest's expressions, so `cdiv` in a template and in a rule agree.
Everything here is a pure function of its arguments: a rendering depends on nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE

from tilusbuild.errors import did_you_mean
from tilusbuild.expr import ExprError, parse_expression
from tilusbuild.runtime.dtypes import DTYPES


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


def bits_of(dtype: object) -> int:
    """Return the size of an element type: `{{ "bf16" | bits }}` is 16."""
    return DTYPES[check_dtype(dtype)].bytes * 8


def size_of(dtype: object) -> int:
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
    return type(value) is int and value > 0 and value & (value - 1) == 0


def is_divisible(value: int, divisor: int) -> bool:
    """Return whether a value is divisible: the test `is divisible(16)`."""
    return bool(ARITHMETIC["divides"](divisor, value))


_ADDRESS = re.compile(r"<([^<>\n]{1,200}) at 0x[0-9a-f]{6,16}>")
"""What Python writes of an object that has no text, as of a joiner."""


def spell_value(value: object) -> object:
    """Return what `{{ value }}` writes. Raises `TemplateRuntimeError` for what C++ cannot spell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateRuntimeError(f"C++ has no literal for the value {value}: use INFINITY or NAN")
    if value is None:
        raise TemplateRuntimeError("the value is none")
    if isinstance(value, str):
        if " at 0x" in value and (found := _ADDRESS.search(value)):
            raise TemplateRuntimeError(
                f"the text has the address of an object ({found[1]}), which differs in every run"
            )
        return value
    if isinstance(value, (int, float, Undefined)):
        return value
    kind = type(value).__name__.lower()
    noun = "a macro, which is called with ()" if kind == "macro" else f"a {kind}"
    # `int a[1][2] = {{1, n}};` is C++, and an expression of Jinja2: a tuple.
    cpp = ': in C++ text write "{ {" for two braces' if kind == "tuple" else ""
    raise TemplateRuntimeError(f"only text and numbers can be written, and this is {noun}{cpp}")


@lru_cache(maxsize=4096)
def _evaluate_call(name: str, values: tuple[int | float, ...]) -> Any:
    """Return `name(values…)`, computed as an expression of a manifest."""
    literals = ", ".join(repr(int(v) if isinstance(v, bool) else v) for v in values)
    try:
        return parse_expression(f"{name}({literals})").evaluate({})
    except ExprError as error:
        raise TemplateRuntimeError(error.message) from None


def _make_function(name: str) -> Callable[..., Any]:
    def apply_function(*values: Any) -> Any:
        for value in values:
            if isinstance(value, Undefined):
                value._fail_with_undefined_error()
            if not isinstance(value, (int, float)):
                raise TemplateRuntimeError(f"{name} needs numbers, not {value!r:.60}")
        return _evaluate_call(name, values)

    apply_function.__name__ = name
    return apply_function


def make_range(*bounds: int) -> range:
    """Return `range(*bounds)`. Raises `TemplateRuntimeError` above the sandbox's limit."""
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateRuntimeError(f"a range may have {MAX_RANGE:,} numbers, not {len(numbers):,}")
    return numbers


_FUNCTIONS = ("min", "max", "abs", "cdiv", "align", "pow2", "log2", "divides", "gcd")
ARITHMETIC = {name: _make_function(name) for name in _FUNCTIONS}
GLOBALS: dict[str, Any] = {
    **ARITHMETIC,
    "range": make_range,
    "raise": raise_error,
    "ctype": spell_ctype,
}
FILTERS: dict[str, Any] = {
    **{name: ARITHMETIC[name] for name in ("cdiv", "align", "pow2", "log2", "gcd")},
    "ctype": spell_ctype,
    "bits": bits_of,
    "bytes": size_of,
    "hex": format_hexadecimal,
}
TESTS: dict[str, Any] = {"pow2": is_pow2, "divisible": is_divisible}
