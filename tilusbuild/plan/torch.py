"""PyTorch as a dependency of a library, as its installed package says, which is not imported.

Its libraries are in the process before one of ours is loaded, and take gigabytes. So they are named
by their sonames and not linked: neither their content nor their place is in a hash, and a patch
release of torch changes no library. What its headers say is, as of any other headers.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator

from tilusbuild.binary import BinaryError, read_needs
from tilusbuild.errors import Place, input_error
from tilusbuild.render.closure import Root, inside
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.toolchain import package_dir

_PACKAGE = "torch"
_INCLUDES = ("include", "include/torch/csrc/api/include")
_ABI = re.compile(r"-D(_GLIBCXX_USE_CXX11_ABI)=(\d)")
_IMPORTED = ("libtorch_python.so", "libtorch.so")
"""What `import torch` loads. They name the rest of what is then in the process."""


def roots(place: Place) -> Iterator[Root]:
    """Yield the directories of torch's headers and of Python's, which they include. Raises
    `InputError`."""
    directory = _directory("", place)
    for path in _INCLUDES:
        yield inside(_PACKAGE, directory, path)
    python = sysconfig.get_path("include")
    if os.path.isdir(python):
        yield inside(os.path.basename(python), python)


def defines(place: Place) -> dict[str, str]:
    """Return the macros that torch's own extensions are compiled with: until 2.7 the C++ ABI was
    not always the compiler's default. Raises `InputError`."""
    config = os.path.join(_directory("", place), "share/cmake/Torch/TorchConfig.cmake")
    try:
        found = _ABI.search(read_text(config))
    except OSError:
        return {}
    return {found[1]: found[2]} if found else {}


def needed(place: Place) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sonames of torch's libraries, and the files that name them. Raises
    `InputError`."""
    directory = _directory("lib", place)
    paths = tuple(os.path.join(directory, name) for name in _IMPORTED)
    try:
        named = [each for path in paths for each in read_needs(read_bytes(path)).libraries]
    except (OSError, BinaryError) as error:
        raise input_error(f"torch's libraries cannot be read: {error}", place=place) from None
    there = {each for each in named if os.path.isfile(os.path.join(directory, each))}
    return tuple(sorted(there)), paths


def _directory(path: str, place: Place) -> str:
    try:
        return package_dir(_PACKAGE, path)
    except LookupError as error:
        hint = "pip install torch, in the environment that tilusbuild runs in"
        raise input_error(str(error), place=place, hint=hint) from None
