"""Launching without tvm-ffi: the library's plain C function, or the driver's own launch.

Both take all arguments in declared order, checked as `tensors` says, and return when the launch is
queued. torch's current stream is used for its tensors, the default stream for all others.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilusbuild.compile.model import Launch
from tilusbuild.expr import ExprError, Value
from tilusbuild.jit.tensors import Tensor, TensorCall, checked
from tilusbuild.runtime.cuda_driver import (
    CLUSTER_DIMENSION,
    COOPERATIVE,
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    PORTABLE_CLUSTER_SIZE,
    PREFERRED_SHARED_MEMORY_CARVEOUT,
    PROGRAMMATIC_SERIALIZATION,
    CudaDriver,
)
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
        asked = _geometry(script, launch, {**constants, **call.sizes})
        if 0 in asked["grid"]:
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
            for attribute, value in _kernel_attributes(asked):
                driver.call("cuKernelSetAttribute", attribute, value, kernel, call.device[1])
            config = _config(asked, stream_of(call, args))
            driver.call("cuLaunchKernelEx", ctypes.byref(config), kernel, pointers, None)
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


def _geometry(script: Script, launch: Launch, known: Mapping[str, Value]) -> dict[str, list[int]]:
    """Return the launch by the manifest's keys; grid, block and cluster have three sizes."""
    try:
        asked = {
            name: [int(each.evaluate(known)) for each in expressions]
            for name, expressions in launch.lines
        }
    except ExprError as error:
        raise ValueError(f"{script.name}: its launch has no value: {error.message}") from None
    asked |= {name: [*asked.get(name, ()), 1, 1, 1][:3] for name in ("grid", "block", "cluster")}
    if any(
        size and blocks % size for blocks, size in zip(asked["grid"], asked["cluster"], strict=True)
    ):
        grid, cluster = tuple(asked["grid"]), tuple(asked["cluster"])
        raise ValueError(
            f"{script.name}: a grid of {grid} is not a multiple of the cluster, {cluster}"
        )
    return asked


def _kernel_attributes(asked: Mapping[str, list[int]]) -> Iterator[tuple[int, int]]:
    """Yield what must be set on the kernel before the launch: CUfunction_attribute and value."""
    smem = asked["smem"][0]
    if smem > _DEFAULT_MAX_SMEM:
        yield MAX_DYNAMIC_SHARED_SIZE_BYTES, smem
    if "carve-out" in asked:
        yield PREFERRED_SHARED_MEMORY_CARVEOUT, asked["carve-out"][0]
    if math.prod(asked["cluster"]) > PORTABLE_CLUSTER_SIZE:
        yield NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1


class _Value(ctypes.Union):
    _fields_ = (
        ("cluster", ctypes.c_uint * 3),
        ("enabled", ctypes.c_int),
        ("_", ctypes.c_char * 64),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("_", ctypes.c_int), ("value", _Value))


class _Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def _config(asked: Mapping[str, list[int]], stream: int) -> _Config:
    attributes = []
    if math.prod(asked["cluster"]) > 1:
        cluster = (ctypes.c_uint * 3)(*asked["cluster"])
        attributes.append(_Attribute(CLUSTER_DIMENSION, 0, _Value(cluster=cluster)))
    for name, attribute in (("cooperative", COOPERATIVE), ("pdl", PROGRAMMATIC_SERIALIZATION)):
        if any(asked.get(name, ())):
            attributes.append(_Attribute(attribute, 0, _Value(enabled=1)))
    sizes = ((ctypes.c_uint * 3)(*asked[name]) for name in ("grid", "block"))
    array = (_Attribute * len(attributes))(*attributes)
    return _Config(*sizes, asked["smem"][0], stream, array, len(attributes))
