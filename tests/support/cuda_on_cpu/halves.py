"""Numbers of 16 bits in NumPy, which has no bfloat16: its bits are uint16 here."""

import numpy as np


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """float32 → the bits of bfloat16, rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """To what the kernel reads: float16, or the bits of bfloat16 as uint16."""
    return x.astype(np.float16) if dtype == "f16" else bf16_bits(x)


def widen(x: np.ndarray) -> np.ndarray:
    """Back to float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)
