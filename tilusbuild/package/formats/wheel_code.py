"""The Python code in a wheel of kernels: a module with `load`, and the runtime that it loads with.

The runtime is tilusbuild's own, copied under the module's name, so that a deployment needs the
wheel, tvm-ffi and Python, and reads a package with the very code that it was made for. A wheel of
one target among several has no code but the path of its files; the shim finds it.
"""

from __future__ import annotations

import os

from tilusbuild import runtime
from tilusbuild.runtime.places import ENTRY_POINTS
from tilusbuild.runtime.regular import read_text

INSIDE = "tilus"
"""The directory of the package in the module."""
RUNTIME = "_runtime"
_LAYER = "tilusbuild.runtime"

_PART = '''\
"""Kernels of {title}, for {target}: the files. `import {shim}` loads them."""

import os

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")
'''

_LOADING = '''\
"""Kernels of {title}. `load(script)` gives one, to be called with arrays."""

{finding}

def load(script, *, target=None, strict=False, **params):
    """The kernel of a script, as `tilusbuild.load` gives it, from this package."""
    from {module}.{runtime}.loading import load

    return load(script, where=folders(), target=target, strict=strict, **params)


def __getattr__(name):
    if name not in ("Kernel", "LoadError"):
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    from {module} import {runtime}

    return getattr({runtime}, name)
'''

_SINGLE = '''\
import os

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{inside}")


def folders():
    """Where the files are."""
    return [path]
'''

_SHIM = '''\

def folders():
    """Where the files are: a folder for each target that is installed."""
    from importlib import metadata

    found = metadata.entry_points(group="{group}")
    parts = sorted(entry for entry in found if entry.name.startswith("{prefix}"))
    if not parts:
        raise ImportError(
            "none of the targets of {title} is installed: pip install '{distribution}[TARGET]'"
        )
    return [entry.load() for entry in parts]
'''


def part(title: str, target: str, shim: str) -> dict[str, bytes]:
    """Return the code of a wheel with one target of several; names are relative to the module."""
    text = _PART.format(title=title, target=target, shim=shim, inside=INSIDE)
    return {"__init__.py": text.encode()}


def single(title: str, module: str) -> dict[str, bytes]:
    """Return the code of a wheel with all targets."""
    return _loading(title, module, _SINGLE.format(inside=INSIDE))


def shim(title: str, module: str, distribution: str) -> dict[str, bytes]:
    """Return the code of the wheel that finds those of the targets by their entry points."""
    finding = _SHIM.format(
        group=ENTRY_POINTS, prefix=f"{distribution}.", title=title, distribution=distribution
    )
    return _loading(title, module, finding)


def _loading(title: str, module: str, finding: str) -> dict[str, bytes]:
    text = _LOADING.format(title=title, module=module, runtime=RUNTIME, finding=finding)
    return {"__init__.py": text.encode(), **runtime_copy(module)}


def runtime_copy(module: str) -> dict[str, bytes]:
    """Return tilusbuild's runtime as `MODULE._runtime`, with its imports naming that."""
    directory = os.path.dirname(os.path.abspath(runtime.__file__))
    found = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".py"):
            text = read_text(os.path.join(directory, name))
            copied = text.replace(_LAYER, f"{module}.{RUNTIME}")
            found[f"{RUNTIME}/{name}"] = copied.encode()
    return found
