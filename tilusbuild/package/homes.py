"""Where Tilus, TileLang, Hidet and Triton look for their caches on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tilusbuild.errors import input_error

_KNOWN = {
    "tilelang": (("TILELANG_CACHE_DIR", ""), "~/.tilelang/cache"),
    "triton": (("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache"), "~/.triton/cache"),
}
"""What names the place, the first that is set: a variable and what follows its value, or a folder
of the user's (TileLang 0.1.15, env.py; Triton 3.7, knobs.py)."""


def home_of(system: str, environment: Mapping[str, str]) -> str:
    """The folder, absolute. Raises `InputError` for a system whose place depends on where the
    system itself is installed, which only its own Python knows."""
    for place in _KNOWN.get(system, ()):
        if isinstance(place, str):
            return os.path.abspath(os.path.expanduser(place))
        variable, below = place
        if environment.get(variable):
            return os.path.abspath(os.path.join(os.path.expanduser(environment[variable]), below))
    raise input_error(
        f"where {system} keeps its cache depends on where {system} is installed",
        hint=f"name the folder with --into: {system}.option.get_cache_dir() says it",
    )
