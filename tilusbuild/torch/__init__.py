"""tilusbuild for projects of PyTorch: `register` makes ops of a package's scripts, and the rest is
`torch.utils.cpp_extension` with a cache: a project changes that import, and nothing else.

`load` and `load_inline` compile through tilusbuild; every other name is torch's, and the first one
that is used makes torch's `BuildExtension` do so, wherever a setup.py has it from. The only room
that needs torch, which is imported when a name of it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilusbuild.torch.ops import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    """Return our `register`, `load` or `load_inline`; any other name is that of
    `torch.utils.cpp_extension`, whose `BuildExtension` then compiles through tilusbuild. Raises
    `ModuleNotFoundError` without torch."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in __all__:
        return getattr(importlib.import_module("tilusbuild.torch.ops"), name)
    # Not by `from`, which would ask this function for the module.
    extension = importlib.import_module("tilusbuild.torch.extension")
    try:
        if name in ("load", "load_inline"):
            return extension.wrap_load(name)
        extension.take_over_setup()
        cpp_extension = extension.import_cpp_extension()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        text = f"tilusbuild.torch.{name} needs torch, which is not installed: pip install torch"
        raise ModuleNotFoundError(text, name="torch") from None
    try:
        return getattr(cpp_extension, name)
    except AttributeError:
        version = importlib.import_module("torch").__version__
        text = f"neither tilusbuild.torch nor torch.utils.cpp_extension of torch {version} has it"
        raise AttributeError(f"{name}: {text}") from None
