"""A program's library, opened with ctypes: the plain C `launch`, bound to the arguments of a case.

`launch` takes the arguments of the kernel in their order, dimensions included, and a stream; it
returns 0, or anything else and then `launch_error()` says why (docs/abi.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tilusbuild.tune.bench.work import Argument

_C: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


class LaunchError(Exception):
    """A launch came to nothing; the text is the library's own, or the driver's."""


class LaunchRefusedError(LaunchError):
    """The library cannot be opened, or refused the call: nothing was run, nothing is harmed."""


class Bound:
    """The library's `launch` with all of its arguments: call it with none."""

    def __init__(
        self, path: str, arguments: Sequence[Argument], addresses: Sequence[int], stream: int
    ) -> None:
        try:
            library = ctypes.CDLL(path)
            launch = library.launch
            self._error = library.launch_error
        except (OSError, AttributeError) as error:
            raise LaunchRefusedError(f"the library cannot be opened: {error}") from None
        self._error.restype = ctypes.c_char_p
        launch.restype = ctypes.c_int
        launch.argtypes = [
            *(ctypes.c_void_p if a.shape is not None else _C[a.dtype] for a in arguments),
            ctypes.c_void_p,
        ]
        values = [
            _C[argument.dtype](argument.value) if argument.shape is None else ctypes.c_void_p(place)
            for argument, place in zip(arguments, addresses, strict=True)
        ]
        self._values = (*values, ctypes.c_void_p(stream))
        self._launch: Callable[..., int] = launch

    def __call__(self) -> None:
        """Raises `LaunchRefusedError`."""
        if self._launch(*self._values):
            text = self._error() or b"the launch failed, and does not say why"
            raise LaunchRefusedError(text.decode(errors="replace"))
