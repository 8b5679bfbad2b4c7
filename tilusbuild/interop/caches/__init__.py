"""Foreign caches, those of Tilus, TileLang, Hidet and Triton: read, verify and clean them up.

A cache is recognised by its content, never by its name. There is a module for each system, with
its name, `is_cache_root` and `read_cache`. Only `gc` changes anything. Pickles are named and never
opened; libraries are read as bytes and never loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

from tilusbuild.errors import input_error
from tilusbuild.interop.caches import hidet, tilelang, tilus, triton
from tilusbuild.interop.caches.directory import CacheDirectory, ForeignCache

SYSTEMS: Mapping[str, ModuleType] = {
    module.SYSTEM: module for module in (tilus, tilelang, hidet, triton)
}
_HOMES = {
    "tilelang": ({"TILELANG_CACHE_DIR": ""}, "~/.tilelang/cache"),
    "triton": ({"TRITON_CACHE_DIR": "", "TRITON_HOME": ".triton/cache"}, "~/.triton/cache"),
}
"""Variables in order of precedence, with the path below each one's value; and the directory of a
user who sets none (TileLang 0.1.15, env.py; Triton 3.7, knobs.py)."""


def recognize_system(path: str) -> str | None:
    """Return the name of the system whose cache a directory is; None for any other directory."""
    directory = CacheDirectory(path)
    return next((name for name, mod in SYSTEMS.items() if mod.is_cache_root(directory)), None)


def read_foreign_cache(path: str) -> ForeignCache:
    """Recognize the system of the cache in a directory, and read its entries. Raises `InputError`
    for a directory that holds no known cache."""
    system = recognize_system(path)
    if system is not None:
        cache: ForeignCache = SYSTEMS[system].read_cache(CacheDirectory(path))
        return cache
    if not os.path.isdir(path):
        raise input_error(f"{path} is not a directory")
    raise input_error(
        f"{path} is not a known cache: neither of tilusbuild nor of {', '.join(SYSTEMS)}",
        hint="name the directory that TILELANG_CACHE_DIR, TRITON_CACHE_DIR or a cache_dir() names",
    )


def find_home(system: str, environment: Mapping[str, str]) -> str:
    """Return the absolute path of the directory in which a system looks for its cache on this
    machine: that of its variables in `environment`, else the user's default.

    Raises `InputError` for a system whose cache is beside its installation, which only its own
    Python knows.
    """
    if system in _HOMES:
        variables, home = _HOMES[system]
        for variable, below in variables.items():
            if environment.get(variable):
                home = os.path.join(environment[variable], below)
                break
        return os.path.abspath(os.path.expanduser(home))
    raise input_error(
        f"where {system} keeps its cache depends on where {system} is installed",
        hint=f"name the directory with --into: {system}.option.get_cache_dir() returns it",
    )
