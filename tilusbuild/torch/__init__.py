"""tilusbuild for projects of PyTorch: `register` makes ops of a package's scripts.

The only room that needs torch, which is imported when a name of it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilusbuild.torch.ops import register

__all__ = ["register"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilusbuild.torch import ops

    return getattr(ops, name)
