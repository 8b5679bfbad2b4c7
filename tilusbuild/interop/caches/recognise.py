"""Which system a folder is the cache of, by what is in it."""

from __future__ import annotations

import os
from types import ModuleType

from tilusbuild.errors import input_error
from tilusbuild.interop.caches import hidet, tilelang, tilus, triton
from tilusbuild.interop.caches.look import Folder
from tilusbuild.interop.caches.model import Cache

SYSTEMS: tuple[ModuleType, ...] = (tilus, tilelang, hidet, triton)


def system_of(path: str) -> str | None:
    """The system's name; None for a folder of none."""
    folder = Folder(path)
    return next((each.SYSTEM for each in SYSTEMS if each.is_one(folder)), None)


def read(path: str) -> Cache:
    """The cache in a folder. Raises `InputError` when it is none that is known."""
    folder = Folder(path)
    for each in SYSTEMS:
        if each.is_one(folder):
            found: Cache = each.read(folder)
            return found
    if not os.path.isdir(path):
        raise input_error(f"{path} is no folder")
    names = ", ".join(each.SYSTEM for each in SYSTEMS)
    raise input_error(
        f"{path} is no cache that is known: it holds none of tilusbuild, {names}",
        hint="name the folder that TILELANG_CACHE_DIR, TRITON_CACHE_DIR or a cache_dir() names",
    )
