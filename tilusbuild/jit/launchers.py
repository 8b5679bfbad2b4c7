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
from tilusbuild.jit.tensors import Tensor, TensorCall, checked
from tilusbuild.runtime.cuda_driver import MAX_DYNAMIC_SHARED_SIZE_BYTES, CudaDriver
from tilusbuild.runtime.library import LIBRARY, check_library, read_meta
from tilusbuild.runtime.script import Script, ScriptArgument
from tilusbuild.tune.bench.devices import PlainLaunch, c_type

Launcher = Callable[..., None]


def _c_type(argument: ScriptArgument) -> Any:
    return c_type(argument.dtype, argument.dims is not None)


def _c_value(argument: ScriptArgument, value: Any) -> Any:
    return value.address if isinstance(value, Tensor) else value


def stream_of(call: TensorCall, args: Sequence[Any]) -> int:
    """Return the stream to launch on."""
    torch = sys.modules.get("torch")
    if call.device[0] != "cuda" or torch is None:
        return 0
    if any(isinstance(arg, torch.Tensor) for arg in args):
        return int(torch.cuda.current_stream(call.device[1]).cuda_stream)
    return 0


def through_c(script: Script, program: int) -> Launcher:
    """Return a launcher that calls the program's C function `launch`. Raises `LoadError`s."""
    path = script.library(program)
    check_library(path, read_meta(script, program)["files"][LIBRARY]["sha256"])
    function = PlainLaunch(path, [_c_type(argument) for argument in script.arguments])

    def launch(*args: Any) -> None:
        call = checked(script, args)
        values = [_c_value(argument, call.values[argument.name]) for argument in script.arguments]
        error = function(*values, stream_of(call, args))
        if error is not None:
            raise RuntimeError(error)

    return launch


class _Contexts:
    """The driver, started, and the primary contexts of the devices that were launched on."""

    def __init__(self) -> None:
        self.driver = CudaDriver()
        self._primary: dict[int, ctypes.c_void_p] = {}
        self.driver.call("cuInit", 0)

    def enter(self, device: int) -> bool:
        """Make a context of the device current, unless one is; whether it was made so here."""
        current, now = ctypes.c_void_p(), ctypes.c_int(-1)
        self.driver.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value:
            self.driver.call("cuCtxGetDevice", ctypes.byref(now))
        if now.value == device:
            return False
        if device not in self._primary:
            context = ctypes.c_void_p()
            self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._primary[device] = context
        self.driver.call("cuCtxPushCurrent_v2", self._primary[device])
        return True

    def leave(self) -> None:
        """Make what was current before `enter` current again."""
        popped = ctypes.c_void_p()
        self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(popped))


def through_driver(
    script: Script, image: bytes, symbol: str, launch: Launch, constants: Mapping[str, Value]
) -> Launcher:
    """Device code, launched by the driver; it is loaded at the first launch."""
    kept: list[tuple[_Contexts, Any]] = []

    def start(*args: Any) -> None:
        call = checked(script, args)
        known = {**constants, **call.sizes}
        grid, block, smem = _geometry(script, launch, known)
        if 0 in grid:
            return  # the driver refuses an empty grid
        if not kept:
            kept.append(_loaded(image, symbol))
        contexts, kernel = kept[0]
        driver = contexts.driver
        boxes = [
            _c_type(argument)(_c_value(argument, call.values[argument.name]))
            for argument in script.arguments
        ]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        entered = contexts.enter(call.device[1])
        try:
            if smem > _DEFAULT_MAX_SMEM:
                attribute = MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.call("cuKernelSetAttribute", attribute, smem, kernel, call.device[1])
            stream = ctypes.c_void_p(stream_of(call, args))
            driver.call("cuLaunchKernel", kernel, *grid, *block, smem, stream, pointers, None)
        finally:
            if entered:
                contexts.leave()

    return start


_DEFAULT_MAX_SMEM = 48 << 10
"""Bytes of shared memory that a block may have without asking (CUDA programming guide)."""


def _loaded(image: bytes, symbol: str) -> tuple[_Contexts, Any]:
    contexts = _Contexts()
    library, kernel, call = ctypes.c_void_p(), ctypes.c_void_p(), contexts.driver.call
    call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", ctypes.byref(kernel), library, symbol.encode())
    return contexts, kernel


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
