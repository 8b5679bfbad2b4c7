"""The C dispatcher behind a kernel: a call then spends no Python on its selection.

`dispatch/dispatch.json` says what the dispatcher was made from. It is used only while all of that
is as it was: the script's description, its dispatch table, the programs that are there. Otherwise
the kernel chooses by itself, which comes to the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from tilusbuild.runtime import library, script, tables
from tilusbuild.runtime.errors import CorruptCacheError
from tilusbuild.runtime.process import process
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.sealed import CorruptFileError, unseal

DIRECTORY, FILE = "dispatch", "dispatch.json"
SCHEMA = 1
REFUSED = "TilusbuildRefused"
"""The kind of tvm-ffi error that a dispatcher raises when it does not come to a program's call."""


class DispatcherRefusedError(RuntimeError):
    """The dispatcher chose no program, or would not open it: the kernel finds out why."""


def made_from(described: Script, there: frozenset[int]) -> dict[str, str]:
    """Return the digests that a dispatcher of the script would be made from now."""
    programs = " ".join(map(str, sorted(there)))
    return {
        "script": described.hash,
        "described": _digest(os.path.join(described.path, script.FILE)),
        "tables": _digest(os.path.join(described.path, tables.FILE)),
        "programs": hashlib.sha256(programs.encode()).hexdigest(),
    }


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def launcher(
    described: Script, there: frozenset[int], on_nearest: Callable[[], None]
) -> Callable[..., Any] | None:
    """Return the packed function of the script's dispatcher; None when there is none that is
    current.

    `on_nearest` is called when sizes are served by the nearest that was measured. Raises
    `LibraryChangedError` and `CorruptCacheError` for a dispatcher that is not what was built.
    """
    directory = os.path.join(described.path, DIRECTORY)
    try:
        with open(os.path.join(directory, FILE), "rb") as file:
            value = unseal(file.read())
        if value["schema"] != SCHEMA or value["from"] != made_from(described, there):
            return None
        path = os.path.join(directory, os.path.basename(value["library"]["name"]))
        digest, symbol = str(value["library"]["sha256"]), str(value["symbol"])
    except FileNotFoundError:
        return None
    except (OSError, CorruptFileError, KeyError, TypeError) as error:
        raise CorruptCacheError(f"{directory}/{FILE} is damaged: {error}") from None
    library.check_library(path, digest)
    return _opened(path, symbol, on_nearest)


def _opened(path: str, symbol: str, on_nearest: Callable[[], None]) -> Callable[..., Any]:
    import ctypes

    import tvm_ffi

    tvm_ffi.register_error(REFUSED, DispatcherRefusedError)
    try:
        launch: Callable[..., Any] = tvm_ffi.load_module(path)["launch"]
        hook = ctypes.CFUNCTYPE(None)(on_nearest)
        getattr(ctypes.CDLL(path), f"{symbol}_on_nearest")(hook)
    except (RuntimeError, AttributeError, OSError) as error:
        raise CorruptCacheError(f"{path} cannot be loaded: {error}") from None
    process.callbacks.append(hook)  # C calls it as long as the process lives
    return launch
