"""Launching without tvm-ffi: the library's plain C function, or the driver's own launch.

Both take all arguments in declared order, checked as `tensors` says, and return when the launch is
queued. torch's current stream is used for its tensors, the default stream for all others.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilusbuild.compile.model import Launch
from tilusbuild.expr import ExprError, Value
from tilusbuild.jit.tensors import Call, Tensor, checked
from tilusbuild.runtime.library import LIBRARY, check_library, read_meta
from tilusbuild.runtime.script import Argument, Script

_SCALARS: Mapping[str, Any] = {
    "bool": ctypes.c_bool,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    **{f"i{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
}

Launcher = Callable[..., None]


def c_type(argument: Argument) -> Any:
    """How an argument is passed to C."""
    return ctypes.c_void_p if argument.dims is not None else _SCALARS[argument.dtype]


def _c_value(argument: Argument, value: Any) -> Any:
    return value.address if isinstance(value, Tensor) else value


def stream_of(call: Call, args: Sequence[Any]) -> int:
    """The stream to launch on."""
    torch = sys.modules.get("torch")
    if call.device[0] != "cuda" or torch is None:
        return 0
    if any(isinstance(arg, torch.Tensor) for arg in args):
        return int(torch.cuda.current_stream(call.device[1]).cuda_stream)
    return 0


def through_c(script: Script, program: int) -> Launcher:
    """The program's C function `launch`. Raises `LoadError`s."""
    path = script.library(program)
    check_library(path, read_meta(script, program)["files"][LIBRARY]["sha256"])
    library = ctypes.CDLL(path)
    function, said = library.launch, library.launch_error
    function.argtypes = [*(c_type(argument) for argument in script.arguments), ctypes.c_void_p]
    function.restype = ctypes.c_int
    said.restype = ctypes.c_char_p

    def launch(*args: Any) -> None:
        call = checked(script, args)
        values = [_c_value(argument, call.values[argument.name]) for argument in script.arguments]
        if function(*values, stream_of(call, args)):
            raise RuntimeError((said() or b"").decode(errors="replace"))

    return launch


class Driver:
    """libcuda.so.1, opened at the first launch."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"no CUDA driver was found on this machine ({error})") from None
        self._primary: dict[int, ctypes.c_void_p] = {}
        self.do("cuInit", 0)

    def do(self, function: str, *arguments: Any) -> None:
        """Call the driver. Raises `RuntimeError`."""
        status = getattr(self._library, function)(*arguments)
        if status:
            raise RuntimeError(f"{function} failed with CUDA error {status}")

    def enter(self, device: int) -> bool:
        """Make a context of the device current, unless one is; whether it was made so here."""
        current, now = ctypes.c_void_p(), ctypes.c_int(-1)
        self.do("cuCtxGetCurrent", ctypes.byref(current))
        if current.value:
            self.do("cuCtxGetDevice", ctypes.byref(now))
        if now.value == device:
            return False
        if device not in self._primary:
            context = ctypes.c_void_p()
            self.do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._primary[device] = context
        self.do("cuCtxPushCurrent_v2", self._primary[device])
        return True

    def leave(self) -> None:
        popped = ctypes.c_void_p()
        self.do("cuCtxPopCurrent_v2", ctypes.byref(popped))


def through_driver(
    script: Script, image: bytes, symbol: str, launch: Launch, constants: Mapping[str, Value]
) -> Launcher:
    """Device code, launched by the driver; it is loaded at the first launch."""
    kept: list[Any] = []

    def start(*args: Any) -> None:
        call = checked(script, args)
        known = {**constants, **call.sizes}
        grid, block, smem = _geometry(script, launch, known)
        if 0 in grid:
            return
        if not kept:
            kept.extend(_loaded(image, symbol))
        driver, kernel = kept[0], kept[2]
        boxes = [
            c_type(argument)(_c_value(argument, call.values[argument.name]))
            for argument in script.arguments
        ]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        entered = driver.enter(call.device[1])
        try:
            if smem > _USUAL_SMEM:
                driver.do("cuKernelSetAttribute", _DYNAMIC_SMEM, smem, kernel, call.device[1])
            stream = ctypes.c_void_p(stream_of(call, args))
            driver.do("cuLaunchKernel", kernel, *grid, *block, smem, stream, pointers, None)
        finally:
            if entered:
                driver.leave()

    return start


_USUAL_SMEM = 48 << 10
"""Bytes of shared memory that a block may have without asking (CUDA programming guide)."""
_DYNAMIC_SMEM = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES (cuda.h)."""


def _loaded(image: bytes, symbol: str) -> tuple[Driver, Any, Any]:
    driver = Driver()
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    driver.do("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
    driver.do("cuLibraryGetKernel", ctypes.byref(kernel), library, symbol.encode())
    return driver, library, kernel


def _geometry(
    script: Script, launch: Launch, known: Mapping[str, Value]
) -> tuple[list[int], list[int], int]:
    try:
        grid = [int(each.evaluate(known)) for each in launch.grid]
        block = [int(each.evaluate(known)) for each in launch.block]
        smem = int(launch.smem.evaluate(known))
    except ExprError as error:
        raise ValueError(f"{script.name}: its launch has no value: {error.message}") from None
    return [*grid, 1, 1][:3], [*block, 1, 1][:3], smem
