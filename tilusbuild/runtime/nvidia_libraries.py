"""Libraries of NVIDIA that a program's library was linked with, found where the loader does not
look by itself.

A library that was linked with the shared CUDA runtime, or cuBLAS, asks for it by its soname. In a
process that has torch it is there already; else it may be in a wheel, where the loader never looks,
or in a toolkit. The loader names what is missing, one name at a time: so nothing is listed
here, nothing is opened that was not asked for, and a release other than the soname's never is.
Nothing of this is done for a library that opens by itself. A bundle carries this module: it needs
the standard library alone.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

_Opened = TypeVar("_Opened")

_MISSING = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
"""What glibc says of a library that another one needs. The one that is opened is named by a path,
which has other letters before its name."""
_MAX_COUNT = 16
"""Libraries that one may need in turn; cuBLAS needs one more, cuDNN eight."""


def opened(open_library: Callable[[], _Opened]) -> _Opened:
    """Return what `open_library` returns, once all that it needs is loaded. Raises what it raises:
    `OSError`, or tvm-ffi's `RuntimeError`, with the loader's words."""
    return _with_needs(open_library, set())


def _with_needs(open_library: Callable[[], _Opened], tried: set[str]) -> _Opened:
    while True:
        try:
            return open_library()
        except (OSError, RuntimeError) as error:
            missing = _MISSING.search(str(error))
            if missing is None or missing[1] in tried or len(tried) == _MAX_COUNT:
                raise
            tried.add(missing[1])
            if not _load(missing[1], tried):
                raise


def _load(name: str, tried: set[str]) -> bool:
    """Load a library, and those that it needs, to stay: the loader then knows it by its soname."""
    for path in _places(name):
        try:
            _with_needs(partial(ctypes.CDLL, path), tried)
        except OSError:
            continue
        return True
    return False


def _places(name: str) -> Iterator[str]:
    """Yield the files of a name: in NVIDIA's wheels, then in the toolkits that one was pointed to
    or that are installed."""
    for directory in filter(None, sys.path):  # "" is wherever one happens to work, such as /tmp
        wheels = os.path.join(glob.escape(os.path.abspath(directory)), "nvidia", "*", "lib")
        yield from sorted(glob.glob(os.path.join(wheels, glob.escape(name))))
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    for root in filter(None, roots):
        path = os.path.join(root, "lib64", name)
        if os.path.isfile(path):
            yield path
