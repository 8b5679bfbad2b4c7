"""From a cache tree to a call: finds a script's programs, chooses one, loads it, launches it.

A deployment has only this package, tvm-ffi and Python's standard library. So no module here imports
the builder, runs a compiler, or writes into a directory of programs. This package defines all on
which builder and deployment must agree: sealed files, which code runs on which device, buckets,
expressions, `script.json` and dispatch tables.

The price: small copies of the builder's code (signatures), which tests compare with the originals
(docs/design-notes.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilusbuild.runtime.errors import LoadError
    from tilusbuild.runtime.kernel import Kernel
    from tilusbuild.runtime.loading import library_path, load

__all__ = ["Kernel", "LoadError", "library_path", "load"]

_MODULES = {"Kernel": "kernel", "LoadError": "errors", "library_path": "loading", "load": "loading"}


def __getattr__(name: str) -> object:
    # Imported on first use: the builder imports single modules of this package.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
