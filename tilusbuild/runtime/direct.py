"""The C dispatcher behind a kernel: a call then spends no Python on its selection.

`dispatch/dispatch.json` says what the dispatcher was made from. It is used only while all of that
is as it was: the script's description, its dispatch table, the programs that are there. Otherwise,
and where the system will not load it, the kernel chooses by itself, with the same result.

A dispatcher stays open as long as the process. The loader knows libraries by their paths, so one
that was made again at the same path is not opened: the loader would return the old one.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tilusbuild.runtime import library, script, table_file
from tilusbuild.runtime.errors import CorruptCacheError
from tilusbuild.runtime.process import process
from tilusbuild.runtime.regular import read_bytes, try_read_bytes
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, unseal

DIRECTORY, FILE = "dispatch", "dispatch.json"
SCHEMA = 1
REFUSED = "TilusbuildRefused"
"""The kind of tvm-ffi error that a dispatcher raises when it does not come to a program's call."""


class DispatcherRefusedError(RuntimeError):
    """The dispatcher chose no program, or would not open it: the kernel finds out why."""


class OpenDispatcher(NamedTuple):
    """A dispatcher's library that this process has open."""

    digest: str
    launch: Callable[..., Any]
    listeners: weakref.WeakSet[Any]
    hook: Any
    """C calls it as long as the process lives: it must never be freed."""


def made_from(described: Script, there: frozenset[int]) -> dict[str, str]:
    """Return the digests that a dispatcher of the script would be made from now."""
    programs = " ".join(map(str, sorted(there)))
    return {
        "script": described.hash,
        "described": _digest(os.path.join(described.path, script.FILE)),
        "tables": _digest(os.path.join(described.path, table_file.FILE)),
        "programs": hashlib.sha256(programs.encode()).hexdigest(),
    }


def _digest(path: str) -> str:
    data = try_read_bytes(path)
    return "" if data is None else hashlib.sha256(data).hexdigest()


def launcher(
    described: Script, available: frozenset[int], listener: Any
) -> Callable[..., Any] | None:
    """Return the packed function of the script's dispatcher; None without one that is current and
    can be loaded.

    `listener.warn_nearest` is called when sizes are served by the nearest that was measured. Raises
    `CorruptCacheError` for a dispatcher that is not what was built.
    """
    directory = os.path.join(described.path, DIRECTORY)
    try:
        value = unseal(read_bytes(os.path.join(directory, FILE)))
        if value["schema"] != SCHEMA or value["from"] != made_from(described, available):
            return None
        path = os.path.join(directory, os.path.basename(value["library"]["name"]))
        digest, symbol = str(value["library"]["sha256"]), str(value["symbol"])
    except FileNotFoundError:
        return None
    except (OSError, CorruptFileError, KeyError, TypeError) as error:
        raise CorruptCacheError(f"{directory}/{FILE} is damaged: {error}") from None
    with process.library_lock:
        opened = process.dispatchers.get(path)
        if opened is None:
            library.check_library(path, digest)
            opened = _opened(path, digest, symbol)
        if opened is None or opened.digest != digest:
            return None
        process.dispatchers[path] = opened
    opened.listeners.add(listener)
    return opened.launch


def _opened(path: str, digest: str, symbol: str) -> OpenDispatcher | None:
    import ctypes

    import tvm_ffi

    tvm_ffi.register_error(REFUSED, DispatcherRefusedError)
    listeners: weakref.WeakSet[Any] = weakref.WeakSet()

    def tell() -> None:
        for listener in list(listeners):
            listener.warn_nearest()

    hook = ctypes.CFUNCTYPE(None)(tell)
    try:
        launch: Callable[..., Any] = tvm_ffi.load_module(path)["launch"]
        getattr(ctypes.CDLL(path), f"{symbol}_on_nearest")(hook)
    except (RuntimeError, AttributeError, OSError):
        # Its bytes are right, so it is the system that refuses: mounted noexec, no memory left.
        return None
    return OpenDispatcher(digest, launch, listeners, hook)
