"""A file of FlashAttention's generate_kernels.py."""

from generate_kernels import Kernel


def instance(direction: str, dtype: str, head_dim: int, causal: bool) -> str:
    """Return its text."""
    return Kernel(80, dtype, head_dim, str(causal).lower(), direction).template
