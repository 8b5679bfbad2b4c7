"""CuTe DSL: compile a `@cute.jit` function to a cubin, for a device that need not be there.

The DSL also compiles the host function, which makes the kernel's parameters of a call's arguments.
`host.py` reads it: our launcher makes the same parameters.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilusbuild.generate import Cubin, Target
from tilusbuild.generate.worker import (
    GeneratorError,
    LanguageInputs,
    call_by_name,
    describe_packages,
    make_arch_error,
)
from tilusbuild.languages.host import HostError, Number, read_launch

DEFAULTS = {"device-compiler": "none", "launch": {"grid": [1]}}
"""The keys of a script that names a function of this language, unless it sets them."""

_TYPES = {
    "bool": "Boolean", "f16": "Float16", "bf16": "BFloat16", "f32": "Float32", "f64": "Float64",
    "f8e4m3": "Float8E4M3FN", "f8e5m2": "Float8E5M2", "f8e8m0": "Float8E8M0FNU",
    **{f"{i}{bits}": f"{name}{bits}" for i, name in (("i", "Int"), ("u", "Uint"))
       for bits in (8, 16, 32, 64)},
}  # fmt: skip
_PACKAGES = [f"nvidia-cutlass-dsl{part}" for part in ("", "-libs-base", "-libs-core", "-libs-cu12")]


def generate(
    function: Any, values: Mapping[str, Any], target: Target, inputs: LanguageInputs
) -> Cubin:
    """Return the cubin of a `@cute.jit` function for a schedule. Raises `GeneratorError`."""
    from cutlass import cute
    from cutlass.base_dsl import Arch
    from cutlass.base_dsl.common import DSLBaseError

    if target.arch not in Arch.__members__ or len(target.archs) > 1:
        raise make_arch_error("CuTe DSL", target)
    if not callable(function):
        raise GeneratorError("it is not a function")
    _rename_module(function)
    if not hasattr(function, "_decorator_kind"):
        function, _ = call_by_name(function, {**values, "target": target})
    written = function if inspect.isfunction(function) else type(function).__call__
    code = getattr(inspect.unwrap(written), "__code__", None)
    location = {} if code is None else {"line": code.co_firstlineno, "path": code.co_filename}
    if getattr(written, "_decorator_kind", "") != "jit":
        hint = "name a function with @cute.jit, or one that returns such"
        raise GeneratorError("it is not a host function of CuTe DSL", hint=hint, **location)
    reader = _ArgumentReader(values, inputs, location)
    signature = inspect.signature(function, eval_str=True)
    arguments = [reader.make_argument(parameter) for parameter in signature.parameters.values()]
    with TemporaryDirectory() as directory:
        options = f"--gpu-arch {target.arch} --keep-cubin --keep-ptx --dump-dir {directory}"
        try:
            compiled = cute.compile(function, *arguments, options=options)
        except DSLBaseError as error:
            if error.filename:
                location = {"line": error.line, "path": error.filename}
            raise GeneratorError(_describe_error(error), **location) from None
        data, ptx = compiled.__cubin__, compiled.__ptx__
    types = {name: "void*" if a.is_tensor else a.dtype for name, a in inputs.arguments.items()}
    try:
        with compiled.ir_module.context:
            launch = read_launch(compiled.ir_module, iter(reader.leaves), types)
    except HostError as error:
        raise GeneratorError(f"its host function {error}", **location) from None
    (symbol,) = compiled.kernel_info
    return Cubin(
        data,
        compiler=describe_packages(*_PACKAGES),
        symbol=symbol,
        ir={f"module/ir/{written.__name__.strip('_')}.ptx": ptx},
        **launch,
    )


def _describe_error(error: Exception) -> str:
    """Return the sentences of an error that the DSL has rendered for a terminal."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    sentences = re.findall(r"error(?:\[\w+\])?: (.*(?:\n {6,}\w.*)*)", text)
    return re.sub(r"\berror: |\s+(?=\s)", "", " ".join(sentences).replace("\n", " ")) or text


def _rename_module(function: Any) -> None:
    """Give the classes of the function's file the name of an import: the DSL writes the names of
    classes into the kernel's symbol, and ours have a directory of this machine."""
    module = sys.modules[getattr(function, "__module__", __name__)]
    name = Path(module.__file__ or "").stem
    sys.modules.setdefault(name, module)
    for value in vars(module).values():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            value.__module__ = name


class _ArgumentReader:
    """Makes the arguments that a host function is compiled with."""

    def __init__(
        self, values: Mapping[str, Any], inputs: LanguageInputs, location: Mapping[str, Any]
    ) -> None:
        self.leaves: list[Any] = []
        """The values that the host function gets for the arguments so far, in order."""
        self._values, self._arguments, self._place = values, inputs.arguments, location
        self._divisors = inputs.find_divisors()
        self._sizes = {
            size for argument in inputs.arguments.values() for size in argument.dims or ()
        }

    def make_argument(self, parameter: inspect.Parameter) -> Any:
        """Return the argument for a parameter. Raises `GeneratorError`."""
        from cutlass.base_dsl.runtime.jit_arg_adapters import is_arg_annotation_constexpr
        from cutlass.cute.runtime import make_fake_stream

        name, annotation = parameter.name, parameter.annotation
        kind = getattr(annotation, "__name__", "")
        if kind == "CUstream":
            self.leaves.append(None)  # our launcher has that of the call
            return make_fake_stream()
        if name in self._arguments:
            return self._make_value(name, is_pointer=kind == "Pointer")
        value = self._values.get(name, parameter.default)
        if value is parameter.empty:
            message = f'its parameter "{name}" is not in args, space, params or derived'
            raise GeneratorError(message, **self._place)
        if not is_arg_annotation_constexpr(annotation, name, 1, None):
            self.leaves += [value] if isinstance(value, int | float) else []
        return value

    def _make_value(self, name: str, *, is_pointer: bool) -> Any:
        """Return a number, a pointer or a tensor for an argument. Raises `GeneratorError`."""
        import cutlass
        from cutlass.cute import AddressSpace, runtime

        argument, dims = self._arguments[name], self._arguments[name].dims
        if argument.dtype not in _TYPES or (dims and dims[0] == "..."):
            declared = argument.dtype if dims is None else "shape [...]"
            raise GeneratorError(f"CuTe DSL has no {declared} for {name}", **self._place)
        dtype = getattr(cutlass, _TYPES[argument.dtype])
        self.leaves.append(Number(name, 0) if name in self._sizes else Number(name))
        if dims is None:
            return dtype(0)
        align = max(self._divisors[name], dtype.width // 8)
        if is_pointer:
            return runtime.make_ptr(dtype, align, AddressSpace.gmem, assumed_align=align)
        shape = tuple(map(self._make_size, dims))
        if argument.strides is not None:
            strides = tuple(self._make_size(stride, 64) for stride in argument.strides)
            return runtime.make_fake_tensor(dtype, shape, strides, assumed_align=align)
        order = tuple(reversed(range(len(dims))))
        make_tensor = runtime.make_fake_compact_tensor
        tensor = make_tensor(dtype, shape, stride_order=order, assumed_align=align)
        for position, stride in enumerate(tensor.stride, 1):
            if not isinstance(stride, int):
                sizes = " * ".join(f"({size})" for size in dims[position:])
                self.leaves.append(Number(f"({sizes})", 0))
        return tensor

    def _make_size(self, size: int | str, width: int = 0) -> Any:
        """Return a size of a tensor, of `width` bits or of those of its argument."""
        from cutlass.cute import sym_int

        if isinstance(size, int):
            return size
        argument = self._arguments.get(size)
        is_wide = argument is not None and argument.dtype == "i64"
        self.leaves.append(Number(f"({size})" if argument is None else size, 0))
        return sym_int(width or (64 if is_wide else 32), divisibility=self._divisors.get(size, 1))
