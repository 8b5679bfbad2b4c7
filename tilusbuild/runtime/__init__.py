"""From a cache tree to a call: find a script's programs, choose one, load it, launch it.

A deployment has this package, tvm-ffi and Python's standard library, and nothing else: nothing here
imports the builder, no compiler is run, and no directory that holds programs is written. What
builder and deployment must agree on (sealed files, who runs what, buckets, the meaning of an
expression, the forms of `script.json` and of the dispatch table) is defined here, and the builder
imports it.

The price of needing nothing else: small copies of the builder's code (signatures), which
tests hold against the originals (docs/design-notes.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilusbuild.runtime.errors import LoadError
    from tilusbuild.runtime.kernel import Kernel
    from tilusbuild.runtime.loading import library_path, load

__all__ = ["Kernel", "LoadError", "library_path", "load"]

_WHERE = {
    "Kernel": "kernel",
    "LoadError": "errors",
    "library_path": "loading",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
