"""A program's library, opened with ctypes: the plain C `launch`, and what one sample of it is.

`launch` takes the arguments of the kernel in their order, dimensions included, and a stream; it
returns 0, or anything else and then `launch_error()` has the reason (docs/abi.md).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.tune.bench.work import CaseArgument

_NAMED = {"bool": ctypes.c_bool, "f32": ctypes.c_float, "f64": ctypes.c_double}


class LaunchError(Exception):
    """A launch failed; the text is the library's own, or the driver's."""


class LaunchRefusedError(LaunchError):
    """The library cannot be opened, or refused the call: nothing ran, nothing is harmed."""


def c_type(dtype: str, is_tensor: bool) -> Any:
    """Return the ctypes type that an argument is passed to C as."""
    if is_tensor:
        return ctypes.c_void_p
    return _NAMED.get(dtype) or getattr(ctypes, f"c_{DTYPES[dtype].numpy}")


class PlainLaunch:
    """The C function `launch` of a library. Raises `OSError` and `AttributeError` for a file that
    is not such a library."""

    def __init__(self, path: str, types: Sequence[Any]) -> None:
        library = ctypes.CDLL(path)
        self._launch = library.launch
        self._launch.restype = ctypes.c_int
        self._launch.argtypes = [*types, ctypes.c_void_p]
        self._error = library.launch_error
        self._error.restype = ctypes.c_char_p

    def __call__(self, *values: Any) -> str | None:
        """Launch with these arguments and a stream; the library's error, None where it worked."""
        if not self._launch(*values):
            return None
        text: bytes = self._error() or b"the launch failed, and gives no reason"
        return text.decode(errors="replace")


class BoundLaunch:
    """A library's `launch` with all of its arguments: call it with none."""

    def __init__(
        self, path: str, arguments: Sequence[CaseArgument], addresses: Sequence[int], stream: int
    ) -> None:
        types = [c_type(argument.dtype, argument.shape is not None) for argument in arguments]
        try:
            self._launch: Callable[..., str | None] = PlainLaunch(path, types)
        except (OSError, AttributeError) as error:
            raise LaunchRefusedError(f"the library cannot be opened: {error}") from None
        # Made once: converting them would be timed with every call.
        self._values = (
            *(
                kind(address if argument.shape is not None else argument.value)
                for kind, argument, address in zip(types, arguments, addresses, strict=True)
            ),
            ctypes.c_void_p(stream),
        )

    def __call__(self) -> None:
        """Raise `LaunchRefusedError` when the library reports an error."""
        error = self._launch(*self._values)
        if error is not None:
            raise LaunchRefusedError(error)


@dataclass(frozen=True, slots=True)
class TimedLaunches:
    """One sample: `seconds` is the mean of `launches` launches that were timed together."""

    seconds: float
    launches: int
    hidden: bool = True
    """Whether every launch was queued before the device came to it, so that none waited for the
    host."""


def launches_for(estimate: float, span: float, limit: int) -> int:
    """Return how many launches of `estimate` seconds fill `span` seconds, 1 to `limit`."""
    if estimate <= 0:
        return limit
    return max(1, min(limit, math.ceil(span / estimate)))
