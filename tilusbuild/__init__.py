"""tilusbuild: the build system for projects of tuned CUDA kernels.

The public Python interface, imported on first use, so that `import tilusbuild` costs nothing.
"""

from __future__ import annotations

import sys

if sys.platform != "linux":
    raise ImportError(
        f"tilusbuild needs Linux, and this is {sys.platform}: on Windows install it in WSL 2,"
        " elsewhere in a container or a virtual machine"
    )

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module `typing` would cost as much as a whole build with nothing to do
    from tilusbuild import option
    from tilusbuild._version import __version__ as __version__
    from tilusbuild.errors import InputError
    from tilusbuild.jit.kernel_cache import KernelCache, KernelNotBuilt
    from tilusbuild.jit.request import Source
    from tilusbuild.runtime import Kernel, LoadError, library_path, load
    from tilusbuild.runtime.record import record

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
    "record",
]
_MODULES = {
    "__version__": "tilusbuild._version",
    "InputError": "tilusbuild.errors",
    "record": "tilusbuild.runtime.record",
    **dict.fromkeys(("Kernel", "LoadError", "library_path", "load"), "tilusbuild.runtime"),
}


def __getattr__(name: str) -> object:
    missing = f"module {__name__!r} has no attribute {name!r}"
    # First, and by `__all__`: `from tilusbuild import MODULE` asks this for every module.
    if name not in (*__all__, "__version__"):
        raise AttributeError(missing)
    import importlib

    if name == "option":
        return importlib.import_module("tilusbuild.option")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    rooms = importlib.import_module("tilusbuild.rooms")
    if name not in (optional := rooms.find_contributions("public name")):
        raise AttributeError(f"{missing}: the part of tilusbuild that has it is not here")
    value: object = rooms.import_value(optional[name])
    return value
