"""tilusbuild: the build system for projects of tuned CUDA kernels.

The public Python interface, imported on first use, so that `import tilusbuild` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module `typing` would cost as much as a whole build with nothing to do
    from tilusbuild import option
    from tilusbuild._version import __version__ as __version__
    from tilusbuild.errors import InputError
    from tilusbuild.jit import KernelCache, KernelNotBuilt, Source
    from tilusbuild.runtime import Kernel, LoadError, library_path, load

__all__ = [
    "InputError",
    "Kernel",
    "KernelCache",
    "KernelNotBuilt",
    "LoadError",
    "Source",
    "library_path",
    "load",
    "option",
]
_MODULES = {"__version__": "tilusbuild._version", "InputError": "tilusbuild.errors"}
_BUILDING = ("KernelCache", "KernelNotBuilt", "Source")


def __getattr__(name: str) -> object:
    if name not in (*__all__, "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "option":
        return importlib.import_module("tilusbuild.option")
    layer = "tilusbuild.jit" if name in _BUILDING else "tilusbuild.runtime"
    return getattr(importlib.import_module(_MODULES.get(name, layer)), name)
