"""Triton's groups, `__grp__NAME.json`: the only files of a foreign cache that name their own place.

A group names the files of its entry by absolute paths. In a package each is only its name, which
must be that of a listed file beside the group; installing makes paths of them again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping

import rfc8785

from tilusbuild.interop.caches import triton
from tilusbuild.package.errors import CannotPackError, InconsistentError, MalformedListError
from tilusbuild.package.model import decode

MAX_BYTES = 16 << 20
_KEY = "child_paths"


def is_group(system: str, path: str) -> bool:
    """Return whether a file of a cache is a group."""
    return system == triton.SYSTEM and os.path.basename(path).startswith("__grp__")


def without_place(path: str) -> bytes:
    """Return a group of a cache as a package has it, with names only. Raises `CannotPackError`."""
    try:
        with open(path, encoding="utf-8") as file:
            names = json.load(file)[_KEY]
        return rfc8785.dumps({_KEY: {str(name): str(name) for name in names}})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotPackError(f"{path} is not a group of Triton: {error}") from None


def check(where: str, data: bytes, files: Container[str]) -> Mapping[str, str]:
    """Return the names in a group whose path in the package is `where`.

    Raises `InconsistentError` for a name that is not that of a file among `files` beside it.
    """
    try:
        value = decode(data)
        names = value[_KEY] if isinstance(value, dict) and value.keys() == {_KEY} else None
    except MalformedListError as error:
        raise InconsistentError(f"{where} is not a group: {error}") from None
    if not isinstance(names, dict):
        raise InconsistentError(f"{where} is not a group")
    for name, path in names.items():
        if name != path or f"{os.path.dirname(where)}/{name}" not in files:
            raise InconsistentError(f"{where} names {path!r:.200}, which is not a file beside it")
    return names


def with_place(data: bytes, directory: str) -> bytes:
    """Return a checked group as Triton reads it when the directory of its entry is `directory`."""
    names = json.loads(data)[_KEY]
    placed = {name: os.path.join(directory, name) for name in names}
    return json.dumps({_KEY: placed}).encode()
