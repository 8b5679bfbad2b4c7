"""Packages that are named by their digest, `sha256:…`: unpacked once in the user's own directory.

The digest is the sha256 of the package's list. A package that is there already is used without the
builder; one that is not is fetched from the remote cache by `tilusbuild.package.fetch`, if that is
installed. What is there was checked in whole before it got its name, and its list is compared with
the name each time.
"""

from __future__ import annotations

import hashlib
import importlib
import os

from tilusbuild.runtime.errors import CorruptCacheError, ScriptNotFoundError
from tilusbuild.runtime.regular import read_bytes

PREFIX = "sha256:"
_LIST = "tilus-package.json"
_LIMIT = 64 << 20


def directory_of(name: str) -> str:
    """Return the directory of the package with this name, after fetching it if need be. Raises
    `ScriptNotFoundError` and `CorruptCacheError`."""
    digest = name.removeprefix(PREFIX)
    if len(digest) != 64 or digest.strip("0123456789abcdef"):
        raise ScriptNotFoundError(f"{name} is no package: sha256: and 64 hex digits name one")
    path = os.path.join(_packages(), digest)
    if not os.path.isdir(path):
        try:
            fetch = importlib.import_module("tilusbuild.package.fetch").fetch
        except ImportError as error:
            raise ScriptNotFoundError(
                f"{name} is not in {path}, and is not fetched: {error.name} is not installed\n"
                "  pip install 'tilusbuild[remote]'"
            ) from None
        try:
            fetch(digest, path)
        except Exception as error:
            raise ScriptNotFoundError(f"{name} cannot be fetched: {error}") from error
    try:
        listed = read_bytes(os.path.join(path, _LIST), limit=_LIMIT)
    except OSError as error:
        raise CorruptCacheError(f"{path}/{_LIST} cannot be read: {error.strerror}") from None
    if hashlib.sha256(listed).hexdigest() != digest:
        raise CorruptCacheError(f"{path} holds another package than its name says: remove it")
    return path


def _packages() -> str:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "tilusbuild", "packages")
