"""What a cache can run into, as typed errors that name the path and what to do.

They are `OSError`s too, with the errno that the system gave, so that whoever handles a full disk in
general handles ours.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tilusbuild.errors import TilusbuildError

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class CacheError(TilusbuildError, OSError):
    """The cache could not be written. `path` is where; nothing half-done is left there."""

    advice = "the disk or the file system under the cache is in trouble"

    def __init__(self, path: str, cause: OSError) -> None:
        reason = cause.strerror or str(cause)
        super().__init__(cause.errno, reason, path)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot write {self.path}: {self.reason}\n  {self.advice}"


class CacheReadOnlyError(CacheError):
    """The cache may be read, and something was to be written."""

    advice = "this cache is read-only here; build into another one with --cache-dir"


class CacheFullError(CacheError):
    """There is no room."""

    advice = "make room, for example with `tilusbuild cache gc`"


class CacheBusyError(TilusbuildError):
    """Something runs in this cache that cannot be disturbed."""


class CacheDamagedError(TilusbuildError):
    """Something in the cache is not what it must be, and going on would do harm."""


class InputChangedError(TilusbuildError):
    """An input is no longer what the plan read."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while the build ran\n  build again")
        self.path = path


@contextmanager
def wrap_oserror(path: str) -> Iterator[None]:
    """Turn any `OSError` of the block into the typed error for `path`."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path
        raise cache_error(where, error) from error


def cache_error(path: str, cause: OSError) -> CacheError:
    """Return the error of the right type."""
    if cause.errno in _READ_ONLY:
        return CacheReadOnlyError(path, cause)
    if cause.errno in _FULL:
        return CacheFullError(path, cause)
    return CacheError(path, cause)
