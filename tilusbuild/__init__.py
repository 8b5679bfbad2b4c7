"""tilusbuild: the build system for projects of tuned CUDA kernels.

The public Python interface, imported on first use, so that `import tilusbuild` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module `typing` would cost as much as a whole build with nothing to do
    from tilusbuild.runtime import Kernel, LoadError, load

__all__ = ["Kernel", "LoadError", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilusbuild import runtime

    return getattr(runtime, name)
