"""One program, loaded and called: right or wrong, and how long it takes.

A library is loaded through tvm-ffi, as a deployment would. Every call that is checked gets fresh
copies of the inputs, so that a kernel which reads its own output shows the same numbers twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilusbuild.signature import DTYPES, Signature
from tilusbuild.tune.bench.elements import Mismatch, errors
from tilusbuild.tune.dlpack import Typed
from tilusbuild.tune.inputs import Input, copied, widen


@dataclass(frozen=True, slots=True)
class Check:
    """How a program's outputs compare with the reference's."""

    max_error: float
    """The largest absolute difference."""
    mismatch: Mismatch | None
    """The worst element outside the tolerance, if there is one."""


def load(library: str) -> Callable[..., Any]:
    """The packed function of a `lib.so`. Raises what tvm-ffi raises when it does not load."""
    import tvm_ffi

    launch: Callable[..., Any] = tvm_ffi.load_module(library)["launch"]
    return launch


def _ready(value: Input) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(value) if isinstance(value, (np.ndarray, Typed)) else value


def call(
    launch: Callable[..., Any], signature: Signature, inputs: Mapping[str, Input]
) -> dict[str, Input]:
    """Call once on copies of `inputs`; returns the outputs by name."""
    own = {name: copied(value) for name, value in inputs.items()}
    launch(*(_ready(value) for value in own.values()))
    return {a.name: own[a.name] for a in signature.callable_arguments if a.out}


def tolerances(dtype: str, rtol: float | None, atol: float | None) -> tuple[float, float]:
    """What the manifest gives, else twice (fp8: once) the type's spacing at 1 and that again
    absolutely: 2^-9 for f16, 2^-6 for bf16, 2^-2 for fp8; f32 1e-5; f64 1e-12; integers exact."""
    usual = {"f16": 2.0**-9, "bf16": 2.0**-6, "f8e4m3": 0.25, "f8e5m2": 0.25, "f32": 1e-5}
    known = usual.get(dtype, 1e-12 if dtype == "f64" else 0.0)
    relative = known if rtol is None else rtol
    return relative, relative if atol is None else atol


def compare(
    signature: Signature,
    got: Mapping[str, Input],
    want: Mapping[str, Any],
    *,
    rtol: float | None,
    atol: float | None,
) -> Check:
    """Compare every output. An element is right when |got - want| <= atol + rtol * |want|, when
    both are NaN, or when both are the same infinity."""
    worst, mismatch = 0.0, None
    dtypes = {a.name: a.dtype for a in signature.arguments}
    for name, value in got.items():
        actual = np.asarray(widen(value))
        reference = np.asarray(widen(want[name]))
        if reference.shape != actual.shape:
            reference = np.broadcast_to(reference, actual.shape)
        if actual.size == 0:
            continue
        relative, absolute = tolerances(dtypes[name], rtol, atol)
        error, wrong = errors(np, actual, reference, relative, absolute)
        worst = max(worst, float(error.max()))
        if wrong.any():
            at = np.unravel_index(int(np.argmax(np.where(wrong, error, -1.0))), actual.shape)
            mismatch = mismatch or Mismatch(
                name,
                tuple(int(i) for i in at),
                float(actual[at]),
                float(reference[at]),
                int(wrong.sum()),
                actual.size,
            )
    return Check(worst, mismatch)


def timed(
    launch: Callable[..., Any], inputs: Mapping[str, Input], *, seconds: float = 0.2
) -> tuple[float, int]:
    """The median time of a call in seconds, and how many were timed: after a warm-up, for about
    `seconds`, at least 5 and at most 10,000. On the cpu target only: a GPU launch returns early."""
    ready = [_ready(copied(value)) for value in inputs.values()]
    for _ in range(2):
        launch(*ready)
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 10_000):
        start = time.perf_counter()
        launch(*ready)
        samples.append(time.perf_counter() - start)
    return float(np.median(samples)), len(samples)


def bytes_moved(signature: Signature, inputs: Mapping[str, Input]) -> int:
    """Bytes of all tensors, each counted once: a lower bound of what a call reads and writes."""
    total = 0
    for argument in signature.callable_arguments:
        value = inputs[argument.name]
        array = value.array if isinstance(value, Typed) else value
        if isinstance(array, np.ndarray):
            total += array.size * DTYPES[argument.dtype].bytes
    return total
